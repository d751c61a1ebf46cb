"""One event of a model whose warm-up is over, by a single call of a kernel (`streammoe.kernels.one_event`).

What the kernel has to know is bound once: as long as a model learns one event after another, its arrays change in place
and are not replaced. Before each event it is checked that this still holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from streammoe.engine.blocks import is_in_blocks
from streammoe.engine.interruption import LONG
from streammoe.engine.members.average import Average
from streammoe.engine.members.contract import Member
from streammoe.engine.members.latest import Latest
from streammoe.engine.members.one_expert import OneExpert
from streammoe.engine.members.refitted import MOST_AT_ONCE, Refitted
from streammoe.engine.state import UnsoundError
from streammoe.features import INPUT_PACE, MARGIN, TARGET_PACE
from streammoe.kernels.by_address import LayoutError, address_of
from streammoe.kernels.features import FAR
from streammoe.kernels.loop import UNSOUND
from streammoe.kernels.one_event import (
    AVERAGE,
    EVENT,
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
from streammoe.model.phases.streaming import JUDGE_EVERY, Mixture, is_refitted
from streammoe.types import AnyArray, FloatArray


class OneEvent:
    """A model, bound for events one at a time."""

    def __init__(self, context: Context, phase: Mixture) -> None:
        """Bind a model; `bound_to` knows whether it can be."""
        self._owners = _owners(context, phase)
        family, encoder, portfolio, leader = context.family, context.encoder, phase.portfolio, phase.leader
        state = leader.state
        compiled = family.compiled(state.experts)
        assert compiled is not None  # noqa: S101 - `bound_to` has said so
        module, self._shape = compiled
        kernels = kernels_for(module, len(self._shape), state.variances.ndim)
        # A function, at which River ends its search for the memory of a model: kernels belong to the process.
        self._kernels: Callable[[], Kernels] = lambda: kernels
        R = np.zeros((1, encoder.expert_width))
        members, own = _members(phase, R)
        F, T, M, m = len(encoder.fields), encoder.n_outputs, context.targets.n_outputs, len(members)
        p_w, p_v, has_portfolio = encoder.gate_width, encoder.expert_width, portfolio is not None
        self._context, self._phase, self._keeps = context, phase, is_refitted(context)
        self.refresh()
        self._n_said, self._held, self._loss = M, np.empty((1, F)), np.empty(1)
        self._weight, self._n_closed, self._closed = np.empty(1), np.zeros(1, dtype=np.int64), np.empty((1, 3))
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
            "served_loss": self._loss,
            "served": np.empty((1, M)),
            "shares": np.empty((1, m)),
            "outliers": context.outliers,
            "n_closed": self._n_closed,
            "closed": self._closed,
        }
        if portfolio is not None:
            arrays["weights"] = portfolio.weights
            if portfolio.means is not None:
                means = portfolio.means
                arrays |= {"mean_weights": means.weights, "mean_squares": means.squares, "mean_count": means.count}
        if detector is not None:
            block, counts, usual = detector.arrays_of_losses
            arrays |= {"losses_block": block, "loss_counts": counts, "usual": usual}
            sizes |= {"block_size": len(block), "n_counts": len(counts)}
        addresses = {name: callee.address() for name, callee in kernels.callees.items()}
        event = _record(EVENT, {**sizes, **addresses}, arrays)
        K, N, _ = state.experts.shape
        options = leader.options._replace(origin=context.steps.origin) if context.steps.origin else leader.options
        mixture = _record(
            MIXTURE,
            {"K": K, "N": N, "residual_size": len(leader.residual), **_numbers(options)},
            {**state._asdict(), "residual": leader.residual},
        )
        self._event, self._mixture, self._members = address_of(event), address_of(mixture), address_of(members)
        self._alive = (arrays, own, event, mixture, members)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model has arrays of its own, to which nothing is bound."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def is_of(self, context: Context, phase: Phase) -> bool:
        """Return whether all that was bound is still what the model uses."""
        if phase is not self._phase:
            return False
        current = _owners(context, self._phase)
        return len(current) == len(self._owners) and all(map(operator.is_, current, self._owners))

    def predict(self, row: FloatArray) -> FloatArray:
        """Return the prediction of a raw row, (1, F), in the targets' own units, (1, M)."""
        served = np.empty((1, self._n_said))
        self._kernels().predict_event(self._shape, self._event, self._members, row, served)
        return served

    def refresh(self) -> None:
        """Find out anew when something is due, and which step sizes there are."""
        self._until, self._steps = self._phase.usual_until(self._context), self._context.steps

    def learn(self, row: FloatArray, target: FloatArray, weight: float) -> bool:
        """Learn a raw row, (1, F), with its target, (1, T), and return so; else nothing was changed.

        Raises:
            UnsoundError: the model has NaN or infinity; it must be discarded.
        """
        phase = self._phase
        n = phase.n + 1
        if n >= self._until or (n % JUDGE_EVERY == 0 and not phase.is_usual(self._context, target)):
            return False
        found = self._kernels().learn_event(
            self._shape, self._event, self._mixture, self._members, row, target, self._steps(n), weight
        )
        if found == UNUSUAL:
            return False
        if found == UNSOUND:
            raise UnsoundError(["state"])
        closed = self._closed if self._n_closed[0] else None
        phase.learned_one(self._context, self._held, target, self._weight, self._loss, closed, keeps=self._keeps)
        return True


def bound_to(context: Context, phase: Phase) -> OneEvent | None:
    """Return a model bound for single events; None if they take more than the kernel does, or too long for a call."""
    if not isinstance(phase, Mixture) or not _is_usual(context, phase):
        return None
    try:
        return OneEvent(context, phase)
    except LayoutError:  # arrays that a file or a caller brought; the usual way takes them in any order
        return None


def _is_usual(context: Context, phase: Mixture) -> bool:
    if context.lags is not None:
        return False
    state, portfolio = phase.leader.state, phase.portfolio
    if len(state.group) or is_in_blocks(state) or context.family.compiled(state.experts) is None:
        return False
    if (portfolio is not None) != (context.options.serve == "portfolio"):
        return False
    members = () if portfolio is None else portfolio.members
    K, N, p = state.experts.shape
    work = len(state.gate_gram) ** 2 + K * p * (p + N)
    return work < LONG and all(isinstance(member, Average | Latest | OneExpert | Refitted) for member in members)


def _owners(context: Context, phase: Mixture) -> tuple[object, ...]:
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
        phase.leader,
        portfolio,
    )
    if portfolio is None:
        return own
    means = portfolio.means
    return (*own, portfolio.members, portfolio.weights, means, None if means is None else means.weights)


def _members(phase: Mixture, R: FloatArray) -> tuple[AnyArray, list[AnyArray]]:
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
