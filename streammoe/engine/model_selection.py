"""Selection of the number of experts: fits of several numbers to one buffer, then a race of the best on later events.

Each candidate learns every event, the best so far serves, and a fixed count decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from streammoe.engine import mixture
from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.em import Buffer
from streammoe.engine.interruption import interruptible
from streammoe.engine.jobs import Job
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.state import MMState, UnsoundError
from streammoe.experts import Family
from streammoe.kernels.state import LearningOptions, Trace
from streammoe.types import FloatArray, IntArray

PATIENCE = 2
"""Stop trying more experts once so many numbers in a row have cost more than the best."""
ENTRANTS = 3
"""How many of the fits take part in the race."""
SHORTEST_RACE = 2000
RACE_PER_BUFFER = 2
"""Length of a race, in events of the warm-up."""


class Entrant(NamedTuple):
    """A state that takes part in a race, and its cost so far."""

    state: MMState
    total: float
    """−log-likelihood of the buffer, plus what the division of the prior gained, plus ½ log n for each parameter,
    n being the events at the end of the race."""


def race_length(n: int) -> int:
    """Return the number of events after a warm-up of n until its race is decided."""
    return max(RACE_PER_BUFFER * n, SHORTEST_RACE)


def race_start(until: int) -> int:
    """Return the number of warm-up events, given the count at which the race is decided.

    >>> [race_start(n + race_length(n)) for n in (0, 400, 1000, 5000)]
    [0, 400, 1000, 5000]
    """
    return min(until // (RACE_PER_BUFFER + 1), until - SHORTEST_RACE)


def n_parameters(family: Family, n_experts: int, n_outputs: int, p_w: int, p_v: int) -> int:
    """Count the free parameters of a mixture: (K−1) p_w for the gate, N p_v and (co)variances for each expert."""
    variances = family.variances_of(np.ones(family.n_variances(n_outputs)), 1)[0]
    # A covariance matrix is symmetric.
    free = variances.size if variances.ndim < 2 else len(variances) * (len(variances) + 1) // 2
    return (n_experts - 1) * p_w + n_experts * (family.n_rows(n_outputs) * p_v + free)


def entrants(
    family: Family,
    buffer: Buffer,
    fit: Callable[[int], Job[MMState]],
    *,
    max_experts: int,
    n_outputs: int,
    p_w: int,
    p_v: int,
) -> Job[list[Entrant]]:
    """Fit 1 to `max_experts` experts and return the cheapest few, the cheapest first.

    With the losses that a race adds, an entrant's total is half a Bayesian information criterion in which all events
    after the buffer were predicted before they were learned.

    Args:
        family: family of the experts.
        buffer: rows of the warm-up.
        fit: called once for each number of experts, from 1 up.
        max_experts: largest number of experts.
        n_outputs: Q, or the number of classes.
        p_w, p_v: numbers of features, padding excluded.

    Raises:
        UnsoundError: none of the fits is finite.
    """
    n_end = len(buffer.W) + race_length(len(buffer.W))
    found: list[Entrant] = []
    problem = UnsoundError(["likelihood of every fit"])
    for n_experts in range(1, max_experts + 1):
        try:
            state = yield from fit(n_experts)
        except UnsoundError as error:
            problem = error
            continue
        work = len(buffer.W) * row_cost(family, Shape(n_experts, family.n_rows(n_outputs), p_w, p_v))
        theta = mixture.served_parameters(state)
        scores, _ = interruptible(work, mixture.score, family, theta, buffer.W, buffer.R, buffer.Y, n_outputs=n_outputs)
        yield work
        loss = float(np.sum(buffer.weights * scores.losses)) + len(buffer.W) * prior_gain(state)
        penalty = 0.5 * math.log(n_end) * n_parameters(family, n_experts, n_outputs, p_w, p_v)
        found.append(Entrant(state, loss + penalty))
        best = min(range(len(found)), key=lambda at: found[at].total)
        if len(found) - best > PATIENCE:
            break
    if not found:
        raise problem
    return sorted(found, key=lambda entrant: entrant.total)[:ENTRANTS]


class Candidate(NamedTuple):
    """A mixture with everything that its steps need."""

    state: MMState
    residual: FloatArray
    options: LearningOptions


def leading_scores(
    runs: Sequence[mixture.Scores], totals: FloatArray, weights: FloatArray
) -> tuple[mixture.Scores, FloatArray]:
    """Return for each row the scores of the run that had cost least before it; earlier runs win ties.

    Args:
        runs: the scores of the same n rows by each candidate.
        totals: (len(runs),) cost of all earlier events, by candidate.
        weights: (n,).

    Returns:
        The scores, and the totals after these rows.
    """
    sums = running_totals(totals, np.stack([run.losses for run in runs]), weights)
    return led_scores(runs, sums[:, :-1].argmin(axis=0)), sums[:, -1].copy()


def running_totals(totals: FloatArray, costs: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the totals before each of n rows and after the last one, (m, n + 1).

    Args:
        totals: (m,) before these rows.
        costs: (m, n) of the rows, NaN where a row costs nothing.
        weights: (n,).
    """
    # Summed one by one, starting from the total so far, so that the result does not depend on where batches were cut.
    return np.cumsum(np.column_stack([totals, weights * np.where(np.isnan(costs), 0.0, costs)]), axis=1)


def led_scores(runs: Sequence[mixture.Scores], leads: IntArray) -> mixture.Scores:
    """Return for each row the scores of the run that `leads` names.

    Outliers are those of the first run, whose count does not depend on who leads.
    """
    latest = [run.latest for run in runs if run.latest is not None]
    return _chosen(runs, leads)._replace(outliers=runs[0].outliers, latest=_chosen(latest, leads) if latest else None)


def _chosen(runs: Sequence[mixture.Scores], leads: IntArray) -> mixture.Scores:
    """Return for each row the scores of the run that `leads` names; experts that it lacks get a share of 0."""
    if not len(leads) or (leads == leads[0]).all():
        return runs[int(leads[0]) if len(leads) else 0]
    losses = np.choose(leads, [run.losses for run in runs])
    predictions = np.choose(leads[:, None], [run.predictions for run in runs])
    parts = []
    for i in range(len(Trace._fields)):
        arrays = [run.trace[i] for run in runs]
        whole = np.zeros((len(arrays[0]), *np.max([array.shape[1:] for array in arrays], axis=0)))
        for at, array in enumerate(arrays):
            rows = np.flatnonzero(leads == at) if len(array) else np.empty(0, dtype=np.int64)
            whole[rows] = np.pad(array[rows], [(0, 0), *_missing(array, whole)])
        parts.append(whole)
    return mixture.Scores(losses, predictions, Trace(*parts))


def _missing(array: FloatArray, whole: FloatArray) -> list[tuple[int, int]]:
    """Return the padding that gives all axes but the first of `array` the lengths of those of `whole`."""
    return [(0, wide - size) for size, wide in zip(array.shape[1:], whole.shape[1:], strict=True)]
