"""One event of a model whose warm-up is over, by a single call of a kernel (`streammoe.kernels.one_event`).

What the kernel has to know is bound once: as long as a model learns one event after another, its arrays change in place
and are not replaced. Before each event it is checked that this still holds.

An event is a tuple of floats, NaN where missing, and its target is a float, or a tuple of several. Kernels read them
where Python has them (`streammoe.kernels.by_address`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from streammoe.columns.encoder import INPUT_PACE, MARGIN, TARGET_PACE
from streammoe.engine.interruption import LONG
from streammoe.engine.members.average import Average
from streammoe.engine.members.contract import Member
from streammoe.engine.members.latest import Latest
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.members.refitted import MOST_AT_ONCE, Refitted
from streammoe.engine.recent import CAPACITY, PAIRED, least_variation
from streammoe.engine.state import UnsoundError
from streammoe.kernels.by_address import OBJECTS, LayoutError, address_of, can_read_tuples
from streammoe.kernels.features import FAR
from streammoe.kernels.loop import UNSOUND
from streammoe.kernels.one_event import (
    AVERAGE,
    CLOSED,
    EVENT,
    GROWS,
    LATEST,
    LEARNS,
    MEMBER,
    MIXTURE,
    STAYS,
    UNUSUAL,
    Kernels,
    kernels_for,
)
from streammoe.kernels.state import LearningOptions
from streammoe.model.context import Context
from streammoe.model.phases.contract import Phase
from streammoe.model.phases.streaming import JUDGE_EVERY, Streaming, is_refitted
from streammoe.model.undo import EVERY, Notes
from streammoe.replacements import REPLACEMENTS
from streammoe.types import AnyArray, FloatArray

Row: TypeAlias = tuple[float, ...]
"""A raw row."""
Target: TypeAlias = float | Row
"""A number, or several of them."""
AT_ONCE = EVERY
"""Number of events whose step sizes are computed together."""
OF_RECENT = ("X", "Y", "weights", "losses", "used")
"""Arrays of `RecentEvents` to which a kernel adds."""
OF_NOTES = ("rows", "used")
"""Arrays of `Notes`, likewise."""


class Owner(Protocol):
    """A model that learns by a `OneEvent`."""

    def new_notes(self, n_fields: int, n_targets: int) -> Notes:
        """Return where the kernel notes what it learns from now on, see `Undo.notes`."""


class OneEvent:
    """A model, bound for events one at a time."""

    def __init__(self, context: Context, phase: Streaming, stop: int = 0) -> None:
        """Bind a model; `bound_to` knows whether it can be.

        Args:
            context: context of the model.
            phase: its phase.
            stop: event count at which more is due than the phase knows of.
        """
        self._seen: object = None
        """`REPLACEMENTS.latest` when all that follows was bound, or last found to be."""
        self._owners = _owners(context, phase)
        family, encoder, portfolio, leader = context.family, context.encoder, phase.portfolio, phase.leader
        state = leader.state
        compiled = family.compiled(state.experts)
        assert compiled is not None  # noqa: S101 - `bound_to` has said so
        module, shape = compiled
        kernels = kernels_for(module, len(shape), state.variances.ndim)
        # A function, at which River ends its search for the memory of a model: kernels belong to the process.
        self._kernels: Callable[[], Kernels] = lambda: kernels
        R = np.zeros((1, encoder.expert_width))
        members, own = _members(phase, R)
        F, T, M, m = len(encoder.fields), encoder.n_outputs, context.targets.n_outputs, len(members)
        p_w, p_v, has_portfolio = encoder.gate_width, encoder.expert_width, portfolio is not None
        self._context, self._phase, self._stop, self._keeps = context, phase, stop, is_refitted(context)
        self._is_number, self._n_said = context.targets.is_number, M
        self._held, self._target = np.empty((1, F)), np.empty((1, T))
        self._weight, self._closed = np.empty(1), np.empty((1, 3))
        numbers = np.array(shape)
        W = R if encoder.gate_degree == encoder.degree else np.zeros((1, p_w))
        unknown = np.full((1, max(T, 1)), np.nan)
        plan, scaler, detector = encoder.plan, encoder.scaler, context.detector
        sizes: dict[str, float] = {
            "F": F,
            "T": T,
            "M": M,
            "Q": state.variances.shape[1],
            "m": m,
            "p_w": p_w,
            "p_v": p_v,
            "n_columns": len(encoder.feature_names),
            "n_numeric": len(plan.numeric),
            "n_coded": len(plan.coded),
            "n_places": plan.places.shape[1],
            "n_timed": len(plan.timed),
            "n_block": encoder.scales.blocks.shape[1],
            "holds": encoder.holds,
            "doubts": context.doubts_targets,
            "is_metric": family.is_metric,
            "has_own_gate": W is not R,
            "has_portfolio": has_portfolio,
            "has_means": portfolio is not None and portfolio.means is not None,
            "degree": encoder.degree,
            "gate_degree": encoder.gate_degree,
            "n_series": encoder.n_lags_of_targets,
            "range_factor": encoder.range_factor,
            "limit": encoder.limit,
            "margin": MARGIN,
            "input_pace": INPUT_PACE,
            "target_pace": TARGET_PACE,
            "far": FAR,
            "most_gained": MOST_AT_ONCE,
            "recent_most": CAPACITY,
            **OBJECTS,
        }
        arrays: dict[str, AnyArray] = {
            **encoder.scales._asdict(),
            **{f"target_{name}": array for name, array in encoder.target_scales._asdict().items()},
            **encoder.bounds._asdict(),
            **{f"target_{name}": array for name, array in encoder.target_bounds._asdict().items()},
            **plan._asdict(),
            **scaler._asdict(),
            "target_doubts": encoder.doubts,
            "verdict": np.zeros(1, dtype=np.int64),
            "shape": numbers,
            "row": np.empty((1, F)),
            "target": self._target,
            "held": self._held,
            "bounded": np.empty((1, F)),
            "shown": np.empty((1, F)),
            "shown_loss": np.empty(1),
            "R": R,
            "W": W,
            "Z": np.empty((1, T)),
            "ranged": np.empty((1, T)),
            "unknown": unknown,
            "losses": np.empty(2),
            "predictions": np.empty((2, M)),
            "gamma": np.empty(1),
            "weight": self._weight,
            "responsibilities": np.empty(max(len(state.masses), *members["K"].tolist(), 1)),
            "said_losses": np.empty((m, 1)),
            "said": np.empty((m, 1, M)),
            "served_loss": np.empty(1),
            "served": np.empty((1, M)),
            "shares": np.empty((1, m)),
            "outliers": context.outliers,
            "mean_weight": context.mean_weight,
            "closed": self._closed,
        }
        if portfolio is not None:
            arrays |= {"weights": portfolio.weights, "surprise": portfolio.surprise}
            if portfolio.means is not None:
                means = portfolio.means
                arrays |= {f"mean_{name}": array for name, array in means.named().items()}
        if detector is not None:
            block, counts, usual = detector.arrays_of_losses
            arrays |= {"losses_block": block, "loss_counts": counts, "usual": usual}
            sizes |= {"block_size": len(block), "n_counts": len(counts)}
        addresses = {name: callee.address() for name, callee in kernels.callees.items()}
        K, N, _ = state.experts.shape
        options = leader.options._replace(origin=context.steps.origin) if context.steps.origin else leader.options
        mixture = _record(
            MIXTURE,
            {"K": K, "N": N, "residual_size": len(leader.residual), **_numbers(options)},
            {**state._asdict(), "residual": leader.residual},
        )
        arrays |= {"mixture": mixture, "members": members}
        self._record = _record(EVENT, {**sizes, **addresses}, arrays)
        self._event, self._alive = address_of(self._record), (arrays, own)
        self.refresh()
        self._note_in(Notes(0, F, T))

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model has arrays of its own, to which nothing is bound."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def is_of(self, context: Context, phase: Phase) -> bool:
        """Return whether all that was bound is still what the model uses, but for where events are kept.

        Nothing that a kernel uses is changed: threads that predict may ask while another one learns.
        """
        latest = REPLACEMENTS.latest
        if phase is self._phase and context is self._context and latest is self._seen:
            return True
        if phase is not self._phase:
            return False
        current = _owners(context, self._phase)
        if len(current) != len(self._owners) or not all(map(operator.is_, current, self._owners)):
            return False
        if self._keeps_as_bound():
            self._seen = latest
        return True

    def _keeps_as_bound(self) -> bool:
        return all(map(operator.is_, _kept(self._context, self._phase), self._kept))

    def predict(self, row: Row) -> float | FloatArray | None:
        """Return the prediction of a raw row in the targets' own units, a number or (1, M); None if that takes more."""
        if self._is_number:
            only: float = self._kernels().predict_event(self._event, id(row), 0)
            return only if only == only else None  # noqa: PLR0124 - not NaN
        served = np.empty((1, self._n_said))
        first = self._kernels().predict_event(self._event, id(row), address_of(served))
        return served if first == first else None  # noqa: PLR0124 - same

    def learn(self, row: Row, target: Target, weight: float, owner: Owner) -> bool:
        """Learn a raw row with its target, and return so; else nothing was changed, since the event is unusual.

        Args:
            row: of floats, NaN where missing.
            target: its target.
            weight: how much it counts, above 0.
            owner: the model.

        Raises:
            UnsoundError: the model has NaN or infinity; it must be discarded.
        """
        if self._seen is not REPLACEMENTS.latest and not self._keeps_as_bound():
            self.refresh()
        found = self._kernels().learn_event(self._event, id(row), id(target), weight)
        if found == 0:
            return True
        if found == UNUSUAL and self._proceeds(target, owner):
            found = self._kernels().learn_event(self._event, id(row), id(target), weight)
        if found == UNUSUAL:
            return False
        if found == UNSOUND:
            raise UnsoundError(["state"])
        try:
            detector, portfolio = self._context.detector, self._phase.portfolio
            if found & GROWS and portfolio is not None and portfolio.growing is not None:
                portfolio.growing.add(self._held, self._target, self._weight)
            if found & CLOSED and detector is not None:
                self._phase.judge_block(self._context, detector, self._closed)
        except BaseException:
            self.drop_note()
            raise
        return True

    def drop_note(self) -> None:
        """Drop the note of the last event, of which not all was done."""
        self._notes.drop_last()

    def refresh(self) -> None:
        """Find out anew when something is due, and what is kept of each event until then."""
        context, phase = self._context, self._phase
        encoder, recent = context.encoder, context.recent
        self._until = phase.usual_until(context)
        if phase.n < self._stop:
            self._until = min(self._until, self._stop)
        room: dict[str, AnyArray] = {}
        if recent is not None and self._keeps:
            room = recent.room(len(encoder.fields), encoder.n_outputs)
        if recent is not None and not room and (self._keeps or not recent.is_empty):
            self._until = 0  # the next event makes room, or drops what is there
        for name in OF_RECENT:
            self._record[f"recent_{name}"] = address_of(room[name]) if room else 0
        self._record["recent_size"] = len(room["losses"]) if room else 0
        self._recent, self._room = recent, room
        self._kept = _kept(context, phase)
        if phase.judges(context):
            self._record["look_every"], self._record["n_compared"] = JUDGE_EVERY, PAIRED
            self._record["least_variation"] = least_variation(JUDGE_EVERY, encoder.scaler.target_scale)
        self._record["grows"] = GROWS if self._kept[-1] is not None else 0
        self._go_on_from(phase.n + 1)

    def _note_in(self, notes: Notes) -> None:
        self._notes = notes
        for name in OF_NOTES:
            self._record[f"noted_{name}"] = address_of(getattr(notes, name))

    def _go_on_from(self, n: int) -> None:
        """Let the kernel learn the n-th event and those after it, until something may be due."""
        self._first, self._last = n, min(self._until, n + AT_ONCE)
        self._steps = self._context.steps.steps(n, max(self._last - n, 0))
        self._record["next_count"], self._record["until_count"] = self._first, self._last
        self._record["steps"] = address_of(self._steps)

    def _proceeds(self, target: Target, owner: Owner) -> bool:
        """Return whether the kernel may try again an event that it has left, since it knows more now."""
        phase, n, knows = self._phase, self._phase.n + 1, False
        if n >= self._until:
            return False
        if n % JUDGE_EVERY == 0:
            if not phase.is_usual(self._context, np.array(target, ndmin=2)):
                return False
            self._record["looked_at"], knows = n, True
        notes_end = not self._notes.n_free
        if notes_end:
            self._note_in(owner.new_notes(self._held.size, self._target.size))
            knows = True
        # All of it at one event, so that few take longer.
        if notes_end or not self._first <= n < self._last:
            self._go_on_from(n)
            knows = True
        if self._room and self._recent is not None and self._recent.n_free < max(1, self._notes.n_free):
            self._recent.make_room()
            knows = True
        return knows


def bound_to(context: Context, phase: Phase, stop: int) -> OneEvent | None:
    """Return a model bound for single events; None if they take more than the kernel does, or too long for a call."""
    if not isinstance(phase, Streaming) or not _is_usual(context, phase) or not can_read_tuples():
        return None
    try:
        return OneEvent(context, phase, stop)
    except LayoutError:  # arrays that a file or a caller brought; the usual way takes them in any order
        return None


def _is_usual(context: Context, phase: Streaming) -> bool:
    if context.lags is not None:
        return False
    state, portfolio = phase.leader.state, phase.portfolio
    if context.family.compiled(state.experts) is None:
        return False
    if (portfolio is not None) != context.options.has_portfolio:
        return False
    members = () if portfolio is None else portfolio.members
    K, N, p = state.experts.shape
    work = len(state.gate_gram) ** 2 + K * p * (p + N)
    return work < LONG and all(isinstance(member, Average | Latest | OneExpert | Refitted) for member in members)


def _owners(context: Context, phase: Streaming) -> tuple[object, ...]:
    """Return all objects on whose staying the same the addresses depend."""
    encoder, portfolio = context.encoder, phase.portfolio
    own = (
        context,
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
        phase.leader,
        portfolio,
    )
    if portfolio is None:
        return own
    means = portfolio.means
    return (*own, portfolio.members, portfolio.weights, means, None if means is None else means.weights)


def _kept(context: Context, phase: Streaming) -> tuple[object, ...]:
    """Return where events are kept: for a refit after a drift, and for one to more of the first rows."""
    recent, portfolio = context.recent, phase.portfolio
    storage = None if recent is None else recent.storage
    return recent, storage, None if portfolio is None else portfolio.growing


def _members(phase: Streaming, R: FloatArray) -> tuple[AnyArray, list[AnyArray]]:
    """Return the members' records, without a portfolio one of the average, and the arrays to which they point."""
    state, portfolio = phase.leader.state, phase.portfolio
    members: tuple[Member, ...] = (Average(),) if portfolio is None else portfolio.members
    own: list[AnyArray] = []
    found = np.zeros(len(members), dtype=MEMBER)
    for at, member in enumerate(members):
        theta = member.parameters(state)
        K, N, p = theta.experts.shape
        values: dict[str, float] = {"kind": _kind(member), "K": K, "N": N, "p": p, "step": 0.0}
        arrays: dict[str, AnyArray] = {
            "gate": theta.gate,
            "average_experts": theta.experts,
            "average_variances": theta.variances,
        }
        if isinstance(member, OneExpert):
            arrays |= member.expert._asdict()
            values |= {"step": member.step, **_numbers(member.options)}
        elif isinstance(member, Refitted):
            arrays["gain"] = member.gain
        if member.terms is not None:
            arrays |= {"terms": member.terms, "seen": np.empty((1, p))}
        else:
            arrays["seen"] = R
        found[at : at + 1] = _record(MEMBER, values, arrays)
        own += arrays.values()
    return found, own


def _kind(member: Member) -> int:
    if isinstance(member, OneExpert):
        return LEARNS
    if isinstance(member, Refitted):
        return STAYS
    return AVERAGE if isinstance(member, Average) else LATEST


def _numbers(options: LearningOptions) -> dict[str, float]:
    """Return the options of steps as numbers."""
    found: dict[str, float] = {}
    for name, value in options._asdict().items():
        if isinstance(value, tuple):
            found |= {f"{name}_a": value[0], f"{name}_b": value[1]}
        else:
            found[name] = value
    return found


def _record(kind: np.dtype[np.void], values: dict[str, float], arrays: dict[str, AnyArray]) -> AnyArray:
    """Return a record, (1,), of values and of the addresses of arrays; others are 0."""
    found = np.zeros(1, dtype=kind)
    for name, value in values.items():
        found[name] = value
    for name, array in arrays.items():
        found[name] = address_of(array)
    return found
