"""Batch fits: rounds of one method from the best starts, each followed, until they gain no more."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from streammoe.engine.em import Em, statistics_at
from streammoe.engine.gradient import gradient, squared_norm
from streammoe.engine.interruption import FitCancelled, interruptible, is_cancelled, uncancellable
from streammoe.engine.methods import M_STEPS, METHODS, point_at
from streammoe.engine.state import MMState, UnsoundError, is_sound, unsound_parts
from streammoe.engine.warmup import CandidateFit, as_streamed, chosen
from streammoe.experts import Parameters
from streammoe.types import IntArray

CONVERGED = "gained less than the tolerance"
STATIONARY = "no step gains anything beyond rounding"
OUT_OF_ROUNDS = "out of rounds"
STOPPED = "asked to stop"
DIVERGED = "diverged: the next round left numbers that are not finite"


class Round(NamedTuple):
    """What one round has come to."""

    start: int
    """Which of the starts it goes on from, 0 the most promising one."""
    number: int
    """0 is the start itself."""
    objective: float
    """Penalised log-likelihood of an event, in the model's own coordinates."""
    change: float
    """What the round has gained; NaN at the start."""
    gradient: float
    """Norm of the objective's gradient, see `streammoe.engine.gradient`; 0 at a stationary point."""
    seconds: float
    """Since this start."""


Listener: TypeAlias = Callable[[Round], object]
"""Told of each round; one that returns True ends the fit there."""


class Descent(NamedTuple):
    """The way from one start."""

    theta: Parameters
    """The likeliest met."""
    trace: tuple[Round, ...]
    reason: str
    """Why it ended."""

    @property
    def objective(self) -> float:
        """Of `theta`."""
        return max(each.objective for each in self.trace)


def fit(
    em: Em,
    starts: Sequence[Parameters],
    method: str,
    *,
    rounds: int,
    tolerance: float,
    step: float | None = None,
    folds: IntArray | None = None,
    on_round: Listener | None = None,
) -> tuple[Descent, MMState]:
    """Run a method from every start and settle at the best end.

    Args:
        em: the rows, their family and the prior.
        starts: the most promising first.
        method: one of `METHODS`.
        rounds: most rounds from each start.
        tolerance: a round that changes an event's penalised log-likelihood by less is the last one.
        step: of the gradient methods, in place of their line search.
        folds: (n,) parts of the rows to choose among the ends by, as a warm-up does; None: the likeliest end whose
            experts all have rows enough.
        on_round: told of each round.

    Returns:
        The way that was taken, and the state to stream on from. Its parameters are θ̄(s_0), one majorization step on,
        which is never less likely.

    Raises:
        UnsoundError: nothing finite comes of the rows.
    """
    with np.errstate(all="ignore"):  # the result is judged instead
        ways: list[Descent] = []
        for at, theta in enumerate(starts):
            try:
                way = descend(em, theta, method, at, rounds=rounds, tolerance=tolerance, step=step, on_round=on_round)
            except FitCancelled:
                if not ways:
                    raise
                break
            if way is not None:
                ways.append(way)
                if way.reason == STOPPED:
                    break
        if not ways:
            raise UnsoundError(["likelihood of every start"])
        # Whoever wants to stop waits for no refits to parts of the rows.
        folds = None if is_cancelled() else folds
        with uncancellable():
            theta = chosen([CandidateFit(way.objective, way.theta) for way in ways], em, folds)
            best = next(way for way in ways if way.theta is theta)
            state = interruptible(em.work(len(theta.experts)), statistics_at, as_streamed(em), best.theta.copied())
    if not is_sound(state):
        raise UnsoundError(unsound_parts(state))
    return best, state


def descend(
    em: Em,
    theta: Parameters,
    method: str,
    start: int = 0,
    *,
    rounds: int,
    tolerance: float,
    step: float | None = None,
    on_round: Listener | None = None,
) -> Descent | None:
    """Rounds from one start, which is left as it was; None where its likelihood is not finite.

    Raises:
        FitCancelled: a stop was requested before the first point was known; later, that point is the end.
    """
    way = METHODS[method](step)
    began = time.perf_counter()
    trace: list[Round] = []
    point = best = point_at(em, theta)
    if not math.isfinite(point.objective):
        return None
    change, reason = math.nan, OUT_OF_ROUNDS
    work = em.work(len(theta.experts))
    for number in range(rounds + 1):
        try:
            slope = interruptible(work, gradient, em, point.theta, point.tau)
        except FitCancelled:
            if not trace:
                raise
            reason = STOPPED
            break
        norm = math.sqrt(squared_norm(*slope))
        trace.append(Round(start, number, point.objective, change, norm, time.perf_counter() - began))
        if point.objective > best.objective:
            best = point
        if on_round is not None and on_round(trace[-1]) is True:
            reason = STOPPED
            break
        if abs(change) <= tolerance:
            reason = CONVERGED
            break
        if number == rounds:
            break
        try:
            after = interruptible(M_STEPS * work, way.advance, em, point, slope)
        except FitCancelled:
            reason = STOPPED
            break
        if after is None:
            reason = STATIONARY
            break
        if not math.isfinite(after.objective):
            reason = DIVERGED
            break
        change = after.objective - point.objective
        point = after
    return Descent(best.theta, tuple(trace), reason)
