"""The start: a bounded buffer, batch EM from several starts, and the statistics to stream on from.

Several families of starts are tried, since none wins everywhere: K-means on (x, y), which finds experts that live in
different regions; gate first, which finds experts that cross; moments, which need no guess; and for classifiers
annealing, which lets random experts part slowly. Everything is a function of the buffer and the seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.engine.em import Buffer, Em, one_expert_prior, settled
from streammoe.engine.starts import cluster_starts, gate_first_starts, random_starts, spectral_starts
from streammoe.engine.state import MMState, UnsoundError, is_sound, unsound_parts
from streammoe.experts import Family, Parameters
from streammoe.kernels.batch import NEWTON_LIMIT
from streammoe.kernels.state import LearningOptions

GATE_STARTS_PER_RESTART = 4
SHORT_ROUNDS = 8
LONG_ROUNDS = 200
FINALISTS = 3
ANNEALED_ROUNDS = 30
WORK_LIMIT = 2e10
"""Multiply-adds that a warm-up may cost; wide models get fewer starts and rounds rather than a stall of minutes."""
ROUND_LIMIT = 1e9
"""Multiply-adds of one round over a buffer of default size."""


class Shape(NamedTuple):
    """What a fit costs: K experts, N rows of coefficients each, p_w and p_v features."""

    n_experts: int
    n_rows: int
    p_w: int
    p_v: int


def default_size(family: Family, shape: Shape) -> int:
    """Events a warm-up buffer holds unless told: a dozen or more for each parameter, at least 400.

    Wide models get fewer, so that a round of EM stays below a second or so, but at least two for each feature.

    >>> from streammoe.experts import families
    >>> family = families()["gaussian"]
    >>> default_size(family, Shape(4, 1, 11, 11)), default_size(family, Shape(4, 1, 301, 301))
    (972, 1839)
    """
    K, N, p_w, p_v = shape
    variances = N if family.n_variances(1) else 0
    parameters = (K - 1) * p_w + K * (N * p_v + variances)
    affordable = ROUND_LIMIT / _row_cost(family, shape)
    return int(max(min(family.events_per_parameter * parameters, affordable), 2 * p_v, 400))


def _row_cost(family: Family, shape: Shape) -> float:
    """Multiply-adds of one row in one round of EM, to a factor."""
    K, N, p_w, p_v = shape
    experts = K * p_v**2 if family.n_variances(1) else K * _softmax_cost(N, p_v)
    return max(experts + _softmax_cost(K - 1, p_w), 1.0)


def _softmax_cost(free: int, p: int) -> float:
    size = free * p
    return size**2 if size <= NEWTON_LIMIT else 2 * p**2


def fit(
    family: Family,
    buffer: Buffer,
    *,
    n_experts: int,
    n_outputs: int,
    restarts: int,
    seed: int,
    options: LearningOptions,
) -> MMState:
    """The state after a warm-up on these rows: the likeliest of several batch fits, and its statistics.

    Args:
        family: of the experts.
        buffer: the rows.
        n_experts: K.
        n_outputs: Q, or the number of classes.
        restarts: starts of each family (gate first: four times as many, since each is cheap and chancy).
        seed: of the random starts.
        options: bound and prior of the model.

    Raises:
        UnsoundError: the rows are such that nothing finite comes of them.
    """
    with np.errstate(all="ignore"):  # the result is judged instead
        prior = one_expert_prior(family, buffer, n_outputs, options)
        # Without a prior a degenerate expert has unbounded likelihood; a thousandth of an event bounds it unnoticeably.
        em = Em(family, buffer, prior._replace(strength=max(prior.strength, 1e-3)), options)
        theta = _search(em, n_experts, restarts, np.random.default_rng(seed))
        state = settled(em._replace(prior=prior), theta)
    if not is_sound(state):
        raise UnsoundError(unsound_parts(state))
    return state


def _search(em: Em, n_experts: int, restarts: int, rng: np.random.Generator) -> Parameters:
    """The likeliest fit: a few rounds from every start, then the best few run on."""
    buffer = em.buffer
    n, p_v = buffer.R.shape
    if n_experts == 1:
        theta = em.under(np.ones((n, 1)))
        em.run(theta, 1 if em.family.is_exact else LONG_ROUNDS)
        return theta
    shape = Shape(n_experts, len(em.prior.experts), buffer.W.shape[1], p_v)
    affordable_rounds = WORK_LIMIT / (n * _row_cost(em.family, shape))
    affordable = max(int(affordable_rounds / 2 / SHORT_ROUNDS), 2)
    starts = gate_first_starts(em, n_experts, GATE_STARTS_PER_RESTART * restarts, rng)
    if em.family.is_metric:
        starts = [*cluster_starts(em, n_experts, restarts, rng), *starts]
    # Both families keep a place where only a few starts are affordable.
    starts = starts[:: max(len(starts) // affordable, 1)]
    can_afford_more = affordable_rounds > 4 * FINALISTS * SHORT_ROUNDS
    if can_afford_more:
        starts += spectral_starts(em, n_experts, rng)
    if not em.family.is_metric and affordable_rounds > 4 * ANNEALED_ROUNDS:
        annealed = random_starts(em, n_experts, restarts + 1, rng)
        for theta in annealed:
            em.anneal(theta, ANNEALED_ROUNDS)
        starts = [*starts, *annealed]
    scored = [(em.run(theta, SHORT_ROUNDS), -at, theta) for at, theta in enumerate(starts)]
    if not any(np.isfinite(score) for score, *_ in scored):
        raise UnsoundError(["likelihood of every start"])
    n_finalists = FINALISTS if can_afford_more else 1
    finalists = sorted((entry for entry in scored if np.isfinite(entry[0])), reverse=True, key=lambda e: e[:2])
    rounds = int(np.clip(affordable_rounds / 2 / n_finalists, SHORT_ROUNDS, LONG_ROUNDS))
    ended = [(em.run(theta, rounds), at, theta) for _, at, theta in finalists[:n_finalists]]
    return max(ended, key=lambda e: e[:2])[2]
