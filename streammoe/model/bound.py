"""A model bound to the kernel that learns its events (`streammoe.kernels.event`).

What the kernel has to know is bound once: as long as a model learns, its arrays change in place and are not replaced.
Before each call it is checked that this still holds.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from streammoe.engine import drift
from streammoe.engine.bound_mixture import (
    CALIBRATED,
    options_arrays,
    rows_at_once,
    schedule_numbers,
    scratch_of,
    table_of,
    trace_of,
    write_member,
)
from streammoe.engine.drift import DriftDetector
from streammoe.engine.intervals import NO_NOISE, table_of_noise
from streammoe.engine.members import Single
from streammoe.engine.mixture import NO_TRACE, TORN, Scores
from streammoe.engine.portfolio import OF_MIXTURE
from streammoe.engine.recent import PAIRED, least_variation
from streammoe.experts import Parameters
from streammoe.kernels.by_address import address_of
from streammoe.kernels.calibration import STRETCH_STEP
from streammoe.kernels.event import (
    AT,
    AVERAGE,
    FLAGS,
    LATEST,
    LEARNS,
    MEMBER_FIELDS,
    RULES,
    STAYS,
    options_as_numbers,
)
from streammoe.kernels.state import MMState, SingleExpert
from streammoe.model.context import DISBELIEF, Context
from streammoe.model.undo import Notes
from streammoe.replacements import REPLACEMENTS
from streammoe.types import AnyArray, FloatArray

Row: TypeAlias = Sequence[float]
"""A raw row."""
_ONE, _SHOWN, _NEXT, _MANY = range(4)
"""Ways to call the kernel: it learns single events, which it screens; it predicts one, or the next one; it learns rows.
"""
WAYS = {
    _ONE: ("screens", "learns", "weighs"),
    _SHOWN: ("screens",),
    _NEXT: ("screens", "shows_series"),
    _MANY: ("learns",),
}
"""Switches that are on in each of them."""
OF_DETECTOR = ("losses_block", "loss_counts", "usual", "sums")


class Bound:
    """A model, bound to its kernel.

    Attributes:
        n_experts: of all members.
        rows_at_once: how many rows one call learns, which no other thread interrupts.
        may_learn: whether there is room for the latest events.
        leaves_more: whether single events are kept elsewhere as well, which Python does.
        learn_one: learns a raw row with its target and weight, and returns why that was not all, or 0. Raises
            `struct.error` if a value is no number.
        predict: returns the prediction of a raw row, and whether it is the next event, in the targets' own units, a
            number or (1, M), or None if that takes more. Raises likewise.
        next_refit: count of events at which the mixture is fitted again after a drift.
        row: (1, F) the row that was learned last, with its lags.
        closed: (1, 3) what the drift test says of the block of losses that was closed last.
    """

    def __init__(self, context: Context, phase: Any) -> None:
        encoder, recent, state = context.encoder, context.recent, phase.leader.state
        F, T, M = len(encoder.fields), encoder.n_outputs, context.targets.n_outputs
        self._context, self._phase = context, phase
        self._seen: object = None
        """`REPLACEMENTS.latest` when all that was bound was last found to be what the model uses."""
        self._owners, room = owners(context, phase), recent.room(F, T)
        self.may_learn = bool(room)
        module, shape = context.family.compiled(state.experts)
        self.leaves_more = context.reservoir is not None
        # Functions, at which River ends its search for the memory of a model: kernels belong to the process.
        kernel = module.learn
        self._kernel: Callable[[], Any] = lambda: kernel
        singles: tuple[Single, ...] = () if phase.portfolio is None else phase.portfolio.singles
        grams = [state.gate_gram[None], state.expert_grams, *(single.expert.expert_grams for single in singles)]
        self.rows_at_once = rows_at_once(sum(len(gram) * gram.shape[1] ** 2 for gram in grams))
        states = [state, *(single.state for single in singles if single.kind.sees == "all")]
        rows, p_w, p_v = context.family.n_rows(M), encoder.gate_width, encoder.expert_width
        if state.gate_gram.shape[0] != p_w or any(each.experts.shape[1:] != (rows, p_v) for each in states):
            raise RuntimeError(TORN)
        widths = [state.experts.shape[2], *(single.state.experts.shape[2] for single in singles)]
        self.n_fields, self.n_targets, self._M = F, T, M
        self._K, self._Q = len(state.masses), state.variances.shape[1]
        self.n_experts = self._K if phase.portfolio is None else len(OF_MIXTURE) * self._K + len(singles)
        numbers = _sizes(context, phase, singles) | {"n_experts": self.n_experts}
        most = max(self.n_experts, len(OF_MIXTURE) * self._K)
        scratch = scratch_of(numbers, n_experts=most, widest=max(widths)) | _rows(numbers)
        table, steps = self._members(singles, state, phase.fitted, scratch)
        numbers["judge_every"] = phase.JUDGE_EVERY if phase.judges(context) else 0
        numbers["n_recent"] = len(room["losses"]) if room else 0
        self._n_ranked = T if numbers["has_means"] else 0
        noise = table_of_noise(context.family.noise) if self._n_ranked else NO_NOISE
        self.closed = np.empty((1, 3))
        self._arrays = {
            **_encoder_arrays(context),
            **_learned_arrays(phase),
            **_options_arrays(phase, singles),
            **_memory_arrays(context, phase),
            **{f"recent_{name}": array for name, array in room.items()},
            **scratch,
            "shape": np.array(shape, dtype=np.float64),
            "rules": _rules(context, phase, noise.unit),
            "cells": noise.cells,
            "members": table,
            "steps": steps,
            "mean_weight": context.mean_weight,
            "outliers": context.outliers,
            "closed": self.closed,
            "schedule": np.zeros(7),
        }
        self.row = self._arrays["raw"]
        found = table_of(numbers, self._arrays)
        self._sizes = [found.copy() for _ in WAYS]
        for way, names in WAYS.items():
            for name in names:
                self._sizes[way][AT[name]] = 1
        for way in (_ONE, _SHOWN, _NEXT):
            self._sizes[way][AT["n_lags"]] = encoder.columns.n_lags
            self._sizes[way][AT["n_identifiers"]] = len(encoder.columns.identifiers)
        raw = bytearray(8 * (F + T + 1))
        cells = np.frombuffer(raw)
        one = (cells[:F].reshape(1, F), cells[F:-1].reshape(1, T), cells[-1:], np.empty((1, 2 + M + F)))
        self.learn_one = _learning(kernel, raw, (self._sizes[_ONE], *one))
        self.predict = _predicting(kernel, self._room, F, is_number=context.targets.is_number)
        self.refresh()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model has arrays of its own, to which nothing is bound."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def _members(
        self, singles: Sequence[Single], state: MMState, fitted: Parameters, scratch: Mapping[str, AnyArray]
    ) -> tuple[AnyArray, FloatArray]:
        """Return the table of the members, and their step sizes."""
        m, K, p_v = len(OF_MIXTURE) + len(singles), len(state.masses), state.experts.shape[2]
        table, steps = np.zeros((m, len(MEMBER_FIELDS)), dtype=np.int64), np.ones((m, 2))
        average = {"gate": state.average_gate, "experts": state.average_experts, "variances": state.average_variances}
        latest = {"gate": state.gate, **{name: getattr(state, name) for name in SingleExpert._fields}}
        self._alive: list[AnyArray] = []
        for at, (kind, arrays) in enumerate([(AVERAGE, average), (STAYS, fitted._asdict()), (LATEST, latest)]):
            write_member(table[at], {"kind": kind, "K": K, "p": p_v}, {**arrays, "seen": scratch["R"]})
        for at, single in enumerate(singles, len(OF_MIXTURE)):
            p = single.state.experts.shape[2]
            arrays = {"gate": single.state.gate, "seen": scratch["R"], **single.expert._asdict()}
            if single.terms is not None:
                arrays |= {"seen": np.empty(p), "terms": single.terms}
            elif single.n_lags:
                arrays["seen"] = np.empty(p)
            numbers = {"kind": LEARNS, "K": 1, "p": p, "n_lags": single.n_lags, "near": not single.kind.is_held}
            write_member(table[at], numbers, arrays)
            steps[at] = single.steps
            self._alive += arrays.values()
        return table, steps

    def is_of(self, context: Context, phase: Any) -> bool:
        """Return whether all that was bound is still what the model uses.

        Nothing that a kernel uses is changed: threads that predict may ask while another one learns.
        """
        latest = REPLACEMENTS.latest
        if phase is not self._phase or context is not self._context:
            return False
        if latest is self._seen:
            return True
        current = owners(context, phase)
        if len(current) != len(self._owners) or not all(map(operator.is_, current, self._owners)):
            return False
        self._seen = latest
        return True

    def refresh(self) -> None:
        """Find out anew how large steps are, and when a fit after a drift is due."""
        context, phase = self._context, self._phase
        steps, options, arrays = phase.steps(context), phase.leader.options, self._arrays
        self.next_refit = phase.next_refit(context)
        arrays["schedule"][:] = schedule_numbers(steps)
        if steps.origin:
            options = options._replace(origin=steps.origin)
        arrays["options"][:], arrays["flags"][:] = options_as_numbers(options)
        for sizes in self._sizes:
            sizes[AT["look_at"]] = self.next_refit

    def note_in(self, notes: Notes, until: int) -> None:
        """Let the kernel note single events, and leave those from a count on to Python."""
        one = self._sizes[_ONE]
        one[AT["until"]], self._notes = until, notes
        one[AT["noted"]], one[AT["noted_used"]] = address_of(notes.rows), address_of(notes.used)

    def _room(self) -> Any:
        raw, out = bytearray(8 * self.n_fields), np.empty((1, 1 + self._M))
        rows, unknown = np.frombuffer(raw).reshape(1, self.n_fields), np.full((1, self.n_targets), np.nan)
        rest = (rows, unknown, np.ones(1), out)
        return raw, [(self._sizes[way], *rest) for way in (_SHOWN, _NEXT)], out, out.data[0:1].cast("B").cast("d")

    def scores(self, out: FloatArray, *, traced: bool) -> Scores:
        """Return what the kernel has written of rows."""
        M, E = self._M, self.n_experts
        if not traced:
            return Scores(out[:, 0], out[:, 1 : 1 + M], NO_TRACE)
        trace = trace_of(out[:, 2 + M + self.n_fields :], E, M, self._Q, self._n_ranked)
        return Scores(out[:, 0], out[:, 1 : 1 + M], trace, gate=out[:, out.shape[1] - self._K :])

    def learn(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> tuple[int, FloatArray]:
        """Learn rows up to the first after which something is due; return what `event.learn` returns, and its `out`."""
        width = 2 + self._M + self.n_fields
        if traced:
            width += self.n_experts * (1 + self._M + self._Q) + self._n_ranked * CALIBRATED + self._K
        out = np.empty((len(X), width))
        return self._kernel()(self._sizes[_MANY], X, Y, weights, out), out


def _learning(kernel: Any, raw: bytearray, arguments: Sequence[Any]) -> Callable[[Row, Row, float], int]:
    """Make `Bound.learn_one`; the kernel finds in `raw` what is written there."""
    pack = struct.Struct(f"{len(raw) // 8}d").pack_into

    def learn_one(row: Row, target: Row, weight: float) -> int:
        pack(raw, 0, *row, *target, weight)
        found: int = kernel(*arguments)
        return found % FLAGS

    return learn_one


def _predicting(
    kernel: Any, new_room: Callable[[], Any], n_fields: int, *, is_number: bool
) -> Callable[[Row, bool], float | FloatArray | None]:
    """Make `Bound.predict`."""
    pack = struct.Struct(f"{n_fields}d").pack_into
    free: list[Any] = []
    """Room for predictions, which several threads may want at once."""

    def predict(row: Row, is_next: bool) -> float | FloatArray | None:
        try:
            room = free.pop()
        except IndexError:
            room = new_room()
        raw, arguments, out, said = room
        pack(raw, 0, *row)
        flags = kernel(*arguments[is_next]) % FLAGS
        found: float | FloatArray = said[1] if is_number else out[:, 1:].copy()
        free.append(room)
        return None if flags else found

    return predict


def owners(context: Context, phase: Any) -> tuple[object, ...]:
    """Return all objects on whose staying the same the addresses depend."""
    encoder, portfolio, recent = context.encoder, phase.portfolio, context.recent
    own = (
        context.options,
        context.detector,
        encoder,
        encoder.plan,
        encoder.scaler,
        encoder.scales,
        encoder.target_scales,
        encoder.bounds,
        encoder.target_bounds,
        encoder.doubts,
        context.mean_weight,
        context.outliers,
        context.reservoir,
        phase.leader,
        phase.fitted,
        phase.is_fitted,
        phase.is_settled,
        portfolio,
        recent.storage,
        context.lags and context.lags.past,
        context.level_means,
        context.past and context.past.targets,
    )
    if portfolio is None:
        return own
    return (*own, portfolio.singles, portfolio.trust, portfolio.beside)


def _sizes(context: Context, phase: Any, singles: Sequence[Single]) -> dict[str, int]:
    """Return the sizes and switches that the kernel knows."""
    encoder, portfolio, lags, state = context.encoder, phase.portfolio, context.lags, phase.leader.state
    plan, (K, N, p_v) = encoder.plan, state.experts.shape
    detector = _detector(context, phase)
    block, counts = (None, None) if detector is None else detector.arrays_of_losses[:2]
    return {
        "F": len(encoder.fields),
        "T": encoder.n_outputs,
        "M": context.targets.n_outputs,
        "Q": state.variances.shape[1],
        "K": K,
        "N": N,
        "p_w": encoder.gate_width,
        "p_v": p_v,
        "m": len(OF_MIXTURE) + len(singles),
        "n_columns": len(encoder.feature_names),
        "n_numeric": len(plan.numeric),
        "n_coded": len(plan.coded),
        "n_places": plan.places.shape[1],
        "n_timed": len(plan.timed),
        "n_block": encoder.scales.blocks.shape[1],
        "n_residual": len(phase.leader.residual),
        "n_losses": 0 if block is None else len(block),
        "n_counts": 0 if counts is None else len(counts),
        "lag_size": context.n_series_lags if lags is None else lags.lags.size,
        "n_sources": encoder.n_outputs + (0 if lags is None else len(lags.lags.inputs)),
        "n_values": 0 if context.level_means is None else len(context.level_means.values),
        "at_means": encoder.columns.n_lags,
        "at_series": 0 if portfolio is None else portfolio.at_series,
        "has_past": context.past is not None,
        "holds": encoder.holds,
        "doubts": context.doubts_targets and encoder.holds and phase.is_fitted,
        "is_metric": context.family.is_metric,
        "has_own_gate": encoder.gate_degree != encoder.degree,
        "has_near": any(not single.kind.is_held for single in singles),
        "has_portfolio": portfolio is not None,
        "has_means": portfolio is not None and portfolio.trust.mean_squares.size > 0,
        "degree": encoder.degree,
        "gate_degree": encoder.gate_degree,
        "n_series": encoder.n_lags_of_targets,
        "n_compared": PAIRED,
        "most_recent": context.recent.capacity,
    }


def _rules(context: Context, phase: Any, unit: float) -> FloatArray:
    """Return the numbers by which the kernel judges values, targets and losses."""
    encoder = context.encoder
    rules = {
        "range_factor": encoder.range_factor,
        "limit": encoder.limit,
        "disbelief": DISBELIEF,
        "least_variation": least_variation(phase.JUDGE_EVERY, encoder.scaler.target_scale),
        "calibration": drift.CALIBRATION,
        "tolerance": drift.TOLERANCE,
        "threshold": drift.THRESHOLD,
        "unit": unit,
        "stretch_step": STRETCH_STEP if getattr(context.options, "calibrate", False) else 0.0,
    }
    return np.array([rules[name] for name in RULES])


def _encoder_arrays(context: Context) -> dict[str, AnyArray]:
    """Return the arrays by which values become features."""
    encoder = context.encoder
    return {
        **encoder.scales._asdict(),
        **{f"target_{name}": array for name, array in encoder.target_scales._asdict().items()},
        **encoder.bounds._asdict(),
        **{f"target_{name}": array for name, array in encoder.target_bounds._asdict().items()},
        **encoder.plan._asdict(),
        **encoder.scaler._asdict(),
        "kinds": encoder.columns.judged,
        "doubted": encoder.doubts,
    }


def _learned_arrays(phase: Any) -> dict[str, AnyArray]:
    """Return the arrays of the mixture, and of the trust in members."""
    portfolio = phase.portfolio
    arrays = {f"mixture_{name}": array for name, array in phase.leader.state._asdict().items()}
    arrays["residual"] = phase.leader.residual
    if portfolio is not None:
        arrays |= portfolio.trust._asdict()
        beside = {} if portfolio.beside is None else portfolio.beside._asdict()
        arrays |= {f"beside_{name}": array for name, array in beside.items()}
    return arrays


def _options_arrays(phase: Any, singles: Sequence[Single]) -> dict[str, AnyArray]:
    """Return the options of steps of the mixture, and of each member."""
    options = phase.leader.options
    # Those of the mixture stand there for its own members, which do not read them.
    of_members = [options_as_numbers(each) for each in [options] * len(OF_MIXTURE) + [one.options for one in singles]]
    return {
        **options_arrays(options),
        "member_options": np.array([numbers for numbers, _ in of_members]),
        "member_flags": np.array(of_members[-1][1], dtype=np.int64),
    }


def _memory_arrays(context: Context, phase: Any) -> dict[str, AnyArray]:
    """Return the arrays of the drift detector, of lags, and of levels, of which there may be none."""
    found: dict[str, AnyArray] = {}
    if (detector := _detector(context, phase)) is not None:
        found |= zip(OF_DETECTOR, detector.arrays_of_losses, strict=True)
    if context.lags is not None:
        inputs = [context.encoder.columns.index.get(name) for name in context.lags.lags.inputs]
        F, T = len(context.encoder.fields), context.encoder.n_outputs
        fields = [*(-1 - q for q in range(T)), *(F if field is None else field for field in inputs)]
        found["lag_fields"] = np.array(fields, dtype=np.int64)
        found["lag_past"] = context.lags.memory(len(fields))
    elif context.past is not None:
        found["lag_fields"] = np.array([-1 - q for q in range(context.encoder.n_outputs)], dtype=np.int64)
        found["lag_past"] = context.past.targets
    if (known := context.level_means) is not None:
        levels = known.levels(context.encoder.columns)
        found |= {f"level_{name}": array for name, array in levels._asdict().items()}
    return found


def _rows(numbers: Mapping[str, int]) -> dict[str, AnyArray]:
    """Return room for a row as it was given, as it is held, and as features."""
    F, R = numbers["F"], np.zeros((1, numbers["p_v"]))
    return {
        "raw": np.empty((1, F)),
        "held": np.empty((1, F)),
        "near": np.empty((1, F)),
        "R": R,
        "near_R": np.zeros_like(R),
        "W": np.zeros((1, numbers["p_w"])) if numbers["has_own_gate"] else R,
        "ranged": np.empty((1, numbers["T"])),
        "verdict": np.zeros(1, dtype=np.int64),
        "member_shares": np.empty((1, numbers["m"])),
        "logs": np.empty((2, 1 + numbers["m"])),
        "beside_loss": np.empty(1),
        "beside_served": np.empty((1, numbers["M"])),
        "rank": np.empty((2, numbers["T"])),
    }


def _detector(context: Context, phase: Any) -> DriftDetector | None:
    """Return the drift detector, which takes no losses as long as their unit may change."""
    return context.detector if phase.is_settled else None
