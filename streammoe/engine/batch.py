"""Batch fits: rounds of EM ([MD] Algorithm 1) from the best starts, until they gain no more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streammoe.engine.em import Em, statistics_at
from streammoe.engine.interruption import FitCancelled, interruptible, is_cancelled, uncancellable
from streammoe.engine.jobs import run_job
from streammoe.engine.search import CandidateFit, as_streamed, chosen
from streammoe.engine.state import UnsoundError, sound
from streammoe.experts import Parameters
from streammoe.kernels.state import MMState
from streammoe.types import FloatArray, IntArray

M_STEPS = 20
"""Most Newton steps of one M-step; a handful does unless the start is far away."""
CONVERGED = "gained less than the tolerance"
STATIONARY = "no step gains anything beyond rounding"
OUT_OF_ROUNDS = "out of rounds"
STOPPED = "stopped on request"
NOTHING_TO_GAIN = frozenset({CONVERGED, STATIONARY})
DIVERGED = "diverged: the next round gave numbers that are not finite"


class Round(NamedTuple):
    """The result of one round."""

    start: int
    """Index of the start that it belongs to; 0 is the most promising one."""
    number: int
    """Number of the round; 0 is the start itself."""
    objective: float
    """Penalized log-likelihood of an event, in the model's own coordinates."""
    change: float
    """Gain of the round; NaN at the start."""
    seconds: float
    """Time since this start began."""


Listener: TypeAlias = Callable[[Round], object]
"""Called after each round; returning True ends the fit."""


class Point(NamedTuple):
    """Parameters with their objective and responsibilities."""

    theta: Parameters
    objective: float
    """Penalized log-likelihood per event."""
    tau: FloatArray
    """(n, K) responsibilities."""


Advance: TypeAlias = Callable[[Any, Point], Point | None]
"""One round: from EM on some rows, at a point, to the next one, or None if no step gains beyond rounding."""


class Descent(NamedTuple):
    """The rounds from one start."""

    theta: Parameters
    """The likeliest parameters found."""
    trace: tuple[Round, ...]
    reason: str
    """Why it ended: one of the constants above."""

    @property
    def objective(self) -> float:
        """Objective at `theta`."""
        return max(each.objective for each in self.trace)


def point_at(em: Any, theta: Parameters) -> Point:
    """Perform the E-step at θ."""
    return Point(theta, *em.e_step(theta))


def em_round(em: Em, point: Point) -> Point:
    """Fit each expert by weighted least squares, and the gate and experts of classes by regressions to convergence."""
    theta = point.theta.copied()
    em.m_step(theta, point.tau, M_STEPS)
    return point_at(em, theta)


def fit(
    em: Em,
    starts: Sequence[Parameters],
    *,
    rounds: int,
    tolerance: float,
    folds: IntArray | None = None,
    on_round: Listener | None = None,
) -> tuple[Descent, MMState]:
    """Run EM from every start and return the best result.

    Args:
        em: the rows, their family and the prior.
        starts: the most promising first.
        rounds: most rounds from each start.
        tolerance: a round that changes an event's penalized log-likelihood by less is the last one.
        folds: (n,) folds of the rows by which to choose among the results; None chooses the
            likeliest whose experts all have enough rows.
        on_round: called after each round.

    Returns:
        The rounds from the best start, and the state from which to continue streaming. Its parameters are θ̄(s_0), one
        more majorization step, which never lowers the likelihood.

    Raises:
        UnsoundError: no fit is finite.
    """
    with np.errstate(all="ignore"):  # the result is checked instead
        descents: list[Descent] = []
        for at, theta in enumerate(starts):
            try:
                descent = descend(em, theta, start=at, rounds=rounds, tolerance=tolerance, on_round=on_round)
            except FitCancelled:
                if not descents:
                    raise
                break
            if descent is not None:
                descents.append(descent)
                if descent.reason == STOPPED:
                    break
        if not descents:
            raise UnsoundError(["likelihood of every start"])
        # A user who requests a stop should not wait for refits to parts of the rows.
        folds = None if is_cancelled() else folds
        with uncancellable():
            theta = run_job(chosen([CandidateFit(descent.objective, descent.theta) for descent in descents], em, folds))
            best = next(descent for descent in descents if descent.theta is theta)
            state = interruptible(em.work(len(theta.experts)), statistics_at, as_streamed(em), best.theta.copied())
    return best, sound(state)


def descend(
    em: Any,
    theta: Parameters,
    advance: Advance = em_round,
    *,
    start: int = 0,
    rounds: int,
    tolerance: float,
    on_round: Listener | None = None,
) -> Descent | None:
    """Run rounds from one start, which is not modified; return None if its likelihood is not finite.

    Args:
        em: EM on rows; or on rows in parts, of which no more is asked than an `Em` has.
        theta: the start.
        advance: one round.
        start, rounds, tolerance, on_round: see `fit`.

    Raises:
        FitCancelled: a stop was requested before the first point was known; later stops end the rounds instead.
    """
    began = time.perf_counter()
    trace: list[Round] = []
    point = best = point_at(em, theta)
    if not math.isfinite(point.objective):
        return None
    change, reason = math.nan, OUT_OF_ROUNDS
    work = em.work(len(theta.experts))
    try:
        for number in range(rounds + 1):
            trace.append(Round(start, number, point.objective, change, time.perf_counter() - began))
            best = max(best, point, key=lambda each: each.objective)
            if on_round is not None and on_round(trace[-1]) is True:
                reason = STOPPED
            elif abs(change) <= tolerance:
                reason = CONVERGED
            elif number < rounds:
                after = interruptible(M_STEPS * work, advance, em, point)
                if after is not None and math.isfinite(after.objective):
                    change, point = after.objective - point.objective, after
                    continue
                reason = STATIONARY if after is None else DIVERGED
            break
    except FitCancelled:
        if not trace:
            raise
        reason = STOPPED
    return Descent(best.theta, tuple(trace), reason)
