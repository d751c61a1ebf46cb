"""How many experts: fits of several numbers of them to one buffer, then a race of the best on the events that follow.

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
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.state import MMState, UnsoundError
from streammoe.experts import Family
from streammoe.kernels.state import LearningOptions, Trace
from streammoe.types import FloatArray, IntArray

PATIENCE = 2
"""No more experts are tried once so many numbers in a row have cost more than the best."""
ENTRANTS = 3
"""How many of the fits go on to learn side by side."""
SHORTEST_RACE = 2000
RACE_PER_BUFFER = 2
"""A race takes so many times the events of the warm-up."""


class Entrant(NamedTuple):
    """A state that may go on, and what it has cost."""

    state: MMState
    total: float
    """−log-likelihood of the buffer, what the division of the prior has gained of it, and ½ log n for each parameter,
    n being the events at the end of the race."""


def race_length(n: int) -> int:
    """Events after a warm-up of n until a race is decided."""
    return max(RACE_PER_BUFFER * n, SHORTEST_RACE)


def race_start(until: int) -> int:
    """The events of the warm-up whose race is decided at a count.

    >>> [race_start(n + race_length(n)) for n in (0, 400, 1000, 5000)]
    [0, 400, 1000, 5000]
    """
    return min(until // (RACE_PER_BUFFER + 1), until - SHORTEST_RACE)


def n_parameters(family: Family, n_experts: int, n_outputs: int, p_w: int, p_v: int) -> int:
    """Free numbers of a mixture: (K−1) p_w of the gate, N p_v and the variances or covariances of each expert."""
    variances = family.variances_of(np.ones(family.n_variances(n_outputs)), 1)[0]
    # Of a covariance matrix one half.
    free = variances.size if variances.ndim < 2 else len(variances) * (len(variances) + 1) // 2
    return (n_experts - 1) * p_w + n_experts * (family.n_rows(n_outputs) * p_v + free)


def entrants(
    family: Family,
    buffer: Buffer,
    fit: Callable[[int], MMState],
    *,
    max_experts: int,
    n_outputs: int,
    p_w: int,
    p_v: int,
) -> list[Entrant]:
    """The cheapest few of the fits of 1 to `max_experts` experts, the cheapest first.

    What an entrant has cost is, with the losses that a race adds, half a Bayesian information criterion, for whose
    likelihood all events after the buffer were predicted before they were learned.

    Args:
        family: of the experts.
        buffer: the rows of the warm-up.
        fit: called once for each number of experts, from 1 up.
        max_experts: the largest of them.
        n_outputs: Q, or the number of classes.
        p_w, p_v: features that are more than padding.

    Raises:
        UnsoundError: nothing finite comes of any of them.
    """
    n_end = len(buffer.W) + race_length(len(buffer.W))
    found: list[Entrant] = []
    problem = UnsoundError(["likelihood of every fit"])
    for n_experts in range(1, max_experts + 1):
        try:
            state = fit(n_experts)
        except UnsoundError as error:
            problem = error
            continue
        work = len(buffer.W) * row_cost(family, Shape(n_experts, family.n_rows(n_outputs), p_w, p_v))
        scores, _ = interruptible(work, mixture.score, family, state, buffer.W, buffer.R, buffer.Y, n_outputs=n_outputs)
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
    """A candidate: a mixture with all that its steps need."""

    state: MMState
    residual: FloatArray
    options: LearningOptions


def led(runs: Sequence[mixture.Scores], totals: FloatArray, weights: FloatArray) -> tuple[mixture.Scores, FloatArray]:
    """The scores of each row by the run that had cost least before it, earlier ones winning ties.

    Args:
        runs: what each candidate said of the same n rows.
        totals: (len(runs),) what the events before have cost each of them.
        weights: (n,).

    Returns:
        The scores, and the totals with what these rows have cost.
    """
    costs = np.stack([weights * np.where(np.isnan(run.losses), 0.0, run.losses) for run in runs])
    # Added up one by one from the total so far, so that cuts between batches leave no trace.
    sums = np.cumsum(np.column_stack([totals, costs]), axis=1)
    return _chosen(runs, sums[:, :-1].argmin(axis=0)), sums[:, -1].copy()


def _chosen(runs: Sequence[mixture.Scores], leads: IntArray) -> mixture.Scores:
    """The scores of each row by the run that `leads` names; experts that it does not have get a share of 0."""
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
    """How to pad all axes but the first of an array to those of another."""
    return [(0, wide - size) for size, wide in zip(array.shape[1:], whole.shape[1:], strict=True)]
