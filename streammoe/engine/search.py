"""Fits of a mixture to rows: from several starts, or from the best so far.

Several kinds of starts are tried, since none wins everywhere: K-means on (x, y), or on x if y is a class, which finds
experts in different regions; gate first, which finds experts that cross; moments, which need no initial guess; and
annealing, which separates random experts slowly. Everything is a function of the rows, the start and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from streammoe.columns.outliers import MAX_ERROR_SHARE, winsorised
from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.em import PRIOR_ROUNDS, TOLERANCE, UNDER_ROUNDS, Buffer, Em, one_expert_prior, statistics
from streammoe.engine.jobs import Job
from streammoe.engine.starts import cluster_starts, gate_first_starts, random_starts, spectral_starts
from streammoe.engine.state import UnsoundError, sound
from streammoe.experts import Family, Parameters
from streammoe.kernels.batch import is_conjugate
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray, IntArray

GATE_STARTS_PER_RESTART = 4
SHORT_ROUNDS = 8
N_GATE_FIRST = 2
"""Number of starts of a stream whose gate comes first; with four, errors on real streams were about the same."""
N_STARTS = N_GATE_FIRST + 2
"""Number of new starts in a stream."""
STAGES = ((SHORT_ROUNDS, 12), (40, 3))
"""Rounds from each start, and how many starts are kept; where EM is slow, a few rounds do not show which are best."""
FEW_STAGES = ((SHORT_ROUNDS, 1),)
AMPLE_ROUNDS = 2 * sum(rounds * kept for (_, kept), (rounds, _) in pairwise(STAGES)) + 1
"""Rounds over all rows that a search must be able to afford, for more starts and all stages."""
ANNEALED_ROUNDS = 30
FOLDS = 4
REFIT_ROUNDS = 20
"""Rounds from a fit to all rows to a fit without the rows of a fold."""
ROWS_PER_PARAMETER = 6
"""With fewer rows, none can be held out."""
WORK_LIMIT = 2e10
"""Most multiply-adds of the search of a batch fit; wide models get fewer starts and rounds."""
SMALL_WORK_LIMIT = 8e9
"""The same where rounds build no Gram matrices: under their strong prior such fits settle within a few rounds."""
LEAST_STRENGTH = 1e-3
"""Minimum prior strength, in pseudo-events, during a search."""
LEAST_SAMPLE, SAMPLE_PER_FEATURE = 400, 10
"""Number of rows from which new starts are tried in a stream, at least, and for each feature."""
MOST_SAMPLED = 1600
"""A quarter of the rows, up to so many, if that is more: fewer do not tell the experts of five classes apart."""
ENOUGH = 2.0
"""Nats that a round of a stream's fit must gain for another one to follow."""
STREAM_WORK = 2e8
"""Multiply-adds of the rounds of a stream's fit; wide models get fewer rounds, and at least `FEWEST_ROUNDS`."""
FEWEST_ROUNDS = 2
"""Fewest rounds, so that each fit moves on from where it begins."""
STREAM_ROUNDS = 40
"""Most rounds over all rows of a stream's fit."""
STREAM_ANNEALED_ROUNDS = 20
"""Rounds of an annealed start of a stream; with `ANNEALED_ROUNDS`, errors on real streams were no smaller."""


def ample_size(family: Family, shape: Shape) -> int:
    """Return the number of events that determine the parameters of a mixture well: a dozen or more for each."""
    return max(family.events_per_parameter * n_measured(family, shape), LEAST_SAMPLE)


def step_cost(shape: Shape) -> int:
    """Estimate the multiply-adds of one step of a mixture."""
    K, N, p_w, p_v = shape
    return p_w**2 + K * p_v * (p_v + N)


def n_measured(family: Family, shape: Shape) -> int:
    """Count the parameters that rows have to determine: of a covariance, only the diagonal.

    `streammoe.engine.model_selection.n_parameters` counts free parameters, for the cost of a model. Here covariances
    would ask for rows with the square of the outputs, although every row measures all pairs of them at once.
    """
    K, N, p_w, p_v = shape
    variances = N if family.n_variances(1) else 0
    return (K - 1) * p_w + K * (N * p_v + variances)


def fit(
    family: Family,
    buffer: Buffer,
    start: Parameters | None,
    *,
    n_experts: int,
    n_outputs: int,
    seed: int,
    options: LearningOptions,
    is_searching: bool,
) -> Job[MMState]:
    """Fit a mixture to rows of a stream: a few rounds from the best so far, and from new starts.

    Args:
        family: of the experts.
        buffer: the rows.
        start: the best so far; None if there is nothing.
        n_experts: K.
        n_outputs: Q, or the number of classes.
        seed: seed of the random starts.
        options: bound and prior of the model.
        is_searching: whether to try new starts as well.

    Returns:
        The likelier result, with its statistics.

    Raises:
        UnsoundError: the fit is not finite.
    """
    em = yield from with_own_prior(family, buffer, n_outputs, options)
    searched = without_outliers(em)
    searched = searched._replace(prior=family.search_prior(em.prior, searched.buffer.Y))
    rounds = int(_affordable_rounds(searched.work(n_experts)))
    starts = [] if start is None else [start.copied()]
    if is_searching or not starts:
        starts += yield from _new_start(searched, n_experts, np.random.default_rng(seed))
    fits = yield from _fits(searched, starts, rounds, ENOUGH / len(searched.buffer.R))
    if not fits:
        raise UnsoundError(["likelihood of every start"])
    theta = yield from chosen(fits, searched, None)
    return sound((yield from statistics(as_streamed(em), theta)))


def fit_work(family: Family, shape: Shape, n: int, *, is_searching: bool) -> float:
    """Return the most multiply-adds that `fit` to n rows takes."""
    of_row = row_cost(family, shape)
    rounds = _affordable_rounds(n * of_row)
    work: float = n * (PRIOR_ROUNDS * row_cost(family, shape._replace(n_experts=1)) + (rounds + 2) * of_row)
    work += n * row_cost(family, shape, has_matrices=True)
    if is_searching:
        of_starts = N_STARTS * (UNDER_ROUNDS + SHORT_ROUNDS) + STREAM_ANNEALED_ROUNDS
        work += of_row * (min(n, sample_size(n, shape.p_v)) * of_starts + (rounds + 1) * n)
    return work


def _affordable_rounds(of_round: float) -> float:
    """Return how many rounds over all rows a stream's fit may have, given the multiply-adds of one."""
    return float(np.clip(STREAM_WORK / of_round, FEWEST_ROUNDS, STREAM_ROUNDS))


def sample_size(n: int, n_features: int) -> int:
    """Return the number of rows, of n, from which new starts are tried in a stream."""
    return max(LEAST_SAMPLE, SAMPLE_PER_FEATURE * n_features, min(n // 4, MOST_SAMPLED))


def _new_start(em: Em, n_experts: int, rng: np.random.Generator) -> Job[list[Parameters]]:
    """Return the likeliest of several starts after a few rounds on some of the rows."""
    n, p_v = em.buffer.R.shape
    if n_experts == 1:
        return [(yield from em.fitted_to(np.ones((n, 1))))]
    kept = np.zeros(n, dtype=np.bool_)
    kept[rng.permutation(n)[: sample_size(n, p_v)]] = True
    some = em if kept.all() else em._replace(buffer=em.buffer.rows(kept))
    starts = [
        *(yield from cluster_starts(some, n_experts, 1, rng, range(1))),
        *(yield from gate_first_starts(some, n_experts, N_GATE_FIRST, rng, range(N_GATE_FIRST))),
    ]
    annealed = yield from random_starts(some, n_experts, 1, rng)
    yield from some.anneal(annealed[0], STREAM_ANNEALED_ROUNDS)
    return (yield from _likeliest(some, [*annealed, *starts], SHORT_ROUNDS, 1))


def with_own_prior(family: Family, buffer: Buffer, n_outputs: int, options: LearningOptions) -> Job[Em]:
    """Return EM on these rows with a prior derived from them.

    Without any prior a degenerate expert has unbounded likelihood; a thousandth of an event bounds it unnoticeably.
    """
    prior = yield from one_expert_prior(family, buffer, n_outputs, options)
    return Em(family, buffer, prior._replace(strength=max(prior.strength, LEAST_STRENGTH)), options)


def without_outliers(em: Em) -> Em:
    """Return EM without rows of no weight, and without rows whose target is absurd, for a search by experts with tails.

    Such experts give these rows hardly any weight, unless a start has put one of them there. If there are no such rows,
    `em` itself is returned.
    """
    kept = em.buffer.weights > 0.0
    if em.family.has_tails:
        kept &= (winsorised(em.buffer.Y, share=MAX_ERROR_SHARE) == em.buffer.Y).all(axis=1)
    return em if kept.all() else em._replace(buffer=em.buffer.rows(kept))


def as_streamed(em: Em) -> Em:
    """Return `em` with the prior used for streaming, which may have strength 0."""
    return em._replace(prior=em.prior._replace(strength=em.options.prior_strength))


def best_starts(
    em: Em, n_experts: int, restarts: int, rng: np.random.Generator
) -> Job[tuple[list[Parameters], IntArray | None]]:
    """Return the likeliest few after a few rounds from every start, for a batch fit, the best first.

    With them come the folds of the rows, (n,), to hold out when choosing among the results; None if none can be spared.

    Raises:
        UnsoundError: no start has a finite likelihood.
    """
    n, p_v = em.buffer.R.shape
    if n_experts == 1:
        return [(yield from em.fitted_to(np.ones((n, 1))))], None
    shape = Shape(n_experts, len(em.prior.experts), em.buffer.W.shape[1], p_v)
    has_matrices = em.family.n_variances(1) or not is_conjugate(shape.n_rows, p_v)
    work_of_rounds = (WORK_LIMIT if has_matrices else SMALL_WORK_LIMIT) / row_cost(em.family, shape)
    searched = _sampled(em, shape, int(work_of_rounds / AMPLE_ROUNDS), rng)
    affordable_rounds = work_of_rounds / len(searched.buffer.R)
    starts = yield from _starts(searched, n_experts, restarts, affordable_rounds, rng)
    for rounds, kept in STAGES if affordable_rounds >= AMPLE_ROUNDS else FEW_STAGES:
        starts = yield from _likeliest(searched, starts, rounds, kept)
    if searched is not em:
        for rounds, kept in FEW_STAGES:
            starts = yield from _likeliest(em, starts, rounds, kept)
    if not starts:
        raise UnsoundError(["likelihood of every start"])
    return starts, rng.permutation(n) % FOLDS if n >= ROWS_PER_PARAMETER * n_measured(em.family, shape) else None


def _sampled(em: Em, shape: Shape, most: int, rng: np.random.Generator) -> Em:
    """Return EM on so many of the rows, at random, but on no fewer than determine the parameters.

    A few rounds from a few starts on all of many rows find a poor optimum more often. Rows of large weight are taken
    first, each for itself, and others in proportion to their weights, each for as many as it stands for (priority
    sampling; Duffield, Lund and Thorup, JACM 54, 2007).
    """
    n, weights = len(em.buffer.R), em.buffer.weights
    kept = max(most, ample_size(em.family, shape))
    if kept >= n:
        return em
    priorities = weights * (n / (1.0 + rng.permutation(n)))
    least = np.partition(priorities, -kept - 1)[-kept - 1]
    sample = em.buffer.rows(priorities > least)
    amounts = np.maximum(sample.weights, least)
    return em._replace(buffer=sample._replace(weights=amounts * (weights.mean() / amounts.mean())))


class CandidateFit(NamedTuple):
    """A fit among which to choose."""

    score: float
    """Penalized mean log-likelihood of the rows that it was fitted to."""
    theta: Parameters


def _fits(em: Em, thetas: Sequence[Parameters], rounds: int, tolerance: float = TOLERANCE) -> Job[list[CandidateFit]]:
    """Run rounds from each of these parameters, in place; return those that are finite, the likeliest first."""
    fits = []
    for theta in thetas:
        score = yield from em.rounds(theta, rounds, tolerance)
        if np.isfinite(score):
            fits.append(CandidateFit(score, theta))
    return sorted(fits, key=lambda fit: fit.score, reverse=True)


def _likeliest(em: Em, thetas: Sequence[Parameters], rounds: int, kept: int) -> Job[list[Parameters]]:
    """Run rounds from each of these parameters, in place, and return the likeliest few."""
    fits = yield from _fits(em, thetas, rounds)
    return [fit.theta for fit in fits[:kept]]


def _starts(
    em: Em, n_experts: int, restarts: int, affordable_rounds: float, rng: np.random.Generator
) -> Job[list[Parameters]]:
    """Return starts of all kinds, fewer if they are expensive."""
    affordable = max(int(affordable_rounds / 2 / SHORT_ROUNDS), 2)
    n_gate_first = GATE_STARTS_PER_RESTART * restarts
    # Both kinds remain represented if only a few starts are affordable.
    every = max((restarts + n_gate_first) // affordable, 1)
    clusters, gates = range(0, restarts, every), range(-restarts % every, n_gate_first, every)
    starts = [
        *(yield from cluster_starts(em, n_experts, restarts, rng, clusters)),
        *(yield from gate_first_starts(em, n_experts, n_gate_first, rng, gates)),
    ]
    if affordable_rounds >= AMPLE_ROUNDS:
        starts += yield from spectral_starts(em, n_experts, rng)
    if affordable_rounds > 4 * ANNEALED_ROUNDS:
        # Only for classes have annealed starts been observed to find what no other start did.
        count = min(restarts, 2) if em.family.is_metric else restarts + 1
        annealed = yield from random_starts(em, n_experts, count, rng)
        for theta in annealed:
            yield from em.anneal(theta, ANNEALED_ROUNDS)
        starts += annealed
    return starts


def chosen(fits: Sequence[CandidateFit], em: Em, folds: IntArray | None) -> Job[Parameters]:
    """Return the likeliest fit, unless another predicts held-out rows better by more than the standard error.

    A fit with an expert responsible for fewer rows than it has coefficients is chosen only if there is no other: such
    an expert interpolates its rows, and the likelihood is unbounded.
    """
    proper = [fit for fit in fits if not _is_degenerate(fit.theta, em)] or fits
    yield len(fits) * em.work(len(fits[0].theta.experts))
    best, *others = sorted(proper, key=lambda fit: fit.score, reverse=True)
    if folds is None or not others:
        return best.theta
    losses = yield from _held_out_losses(best.theta, em, folds)
    for fit in others:
        gains = losses - (yield from _held_out_losses(fit.theta, em, folds))
        if gains.mean() > gains.std() / np.sqrt(len(gains)):
            best, losses = fit, losses - gains
    return best.theta


def _held_out_losses(theta: Parameters, em: Em, folds: IntArray) -> Job[FloatArray]:
    """Return weighted −log s(y|x) of each row, (n,), after some rounds from θ on the rows of the other folds."""
    losses = np.empty(len(folds))
    for fold in range(FOLDS):
        held = folds == fold
        rest = em._replace(buffer=em.buffer.rows(~held))
        refitted = theta.copied()
        yield from rest.rounds(refitted, REFIT_ROUNDS)
        losses[held] = em._replace(buffer=em.buffer.rows(held)).losses(refitted)
    return losses * em.buffer.weights


def _is_degenerate(theta: Parameters, em: Em) -> bool:
    _, tau = em.e_step(theta)
    return bool((tau * em.buffer.weights[:, None]).sum(axis=0).min() < theta.experts.shape[2] + 1)
