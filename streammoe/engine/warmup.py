"""The fit that ends a warm-up: batch EM on the buffer from several starts, and the statistics for streaming.

Several kinds of starts are tried, since none wins everywhere: K-means on (x, y), or on x if y is a class, which finds
experts in different regions; gate first, which finds experts that cross; moments, which need no initial guess; and
annealing, which separates random experts slowly. Cross-validation selects among the likeliest results. Everything is a
function of the buffer and the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from streammoe.columns.outliers import MAX_ERROR_SHARE, winsorised
from streammoe.engine.cost import Shape, is_without_matrices, row_cost, row_cost_with_matrices
from streammoe.engine.em import Buffer, Em, one_expert_prior, statistics
from streammoe.engine.jobs import Job
from streammoe.engine.starts import cluster_starts, gate_first_starts, random_starts, spectral_starts
from streammoe.engine.state import MMState, UnsoundError, is_sound, unsound_parts
from streammoe.experts import Family, Parameters
from streammoe.kernels.state import LearningOptions
from streammoe.types import FloatArray, IntArray

GATE_STARTS_PER_RESTART = 4
SHORT_ROUNDS = 8
LONG_ROUNDS = 200
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
"""Maximum multiply-adds of a warm-up; wide models get fewer starts and rounds rather than a stall of minutes."""
SMALL_WORK_LIMIT = 8e9
"""The same where rounds build no Gram matrices: under their strong prior such fits settle within a few rounds."""
LEAST_STRENGTH = 1e-3
"""Minimum prior strength, in pseudo-events, during a search."""
BRIEF_ROUNDS = 200.0
BRIEF_PART = 3.0
"""Limits of a brief fit: the work of `BRIEF_ROUNDS` rounds, and `WORK_LIMIT` divided by `BRIEF_PART`."""
TYPICAL_ROUNDS = 1500.0
"""Rounds of a fit, from all starts, where work is no object."""
FEWEST_ROUNDS = 60.0
"""Rounds of a fit to rows of which each costs so much that only two starts are tried."""
MOST_EVENTS = 350.0
"""Events over which a fit is spread, unless its pace is at a limit; at most half as many as it has rows."""
FEWEST_EVENTS = 20.0
CATCH_UP = 1.5e7
"""Multiply-adds of the steps by which the result learns the events in between; wide models get fewer such events than
`MOST_EVENTS`, but not fewer than `FEWEST_EVENTS`."""
REPLAY_WORK = 4e6
FEWEST_REPLAYED = 3
"""Multiply-adds of those steps that are done at one event, and the least number of steps."""
RESCALE_WORK = 2.5e8
"""Multiply-adds by which the one expert learns buffered events again, on another scale, at one event."""
LEAST_RELEARNED = 2
"""Least number of buffered events at an event; with one, it would never have learned all."""
RARENESS = 16.0
"""A scale by n events is replaced by one of at least n (1 + `RARENESS` / rows relearned at an event)."""
ROWS_PER_REFRESH = 3
"""How many of those events there are, at least, for each time that its Gram matrix is inverted."""
LEAST_PACE, LARGEST_PACE = 1.2e7, 1e9
"""Limits of the multiply-adds at each event: 10 and 200 ms, roughly."""
ROUND_LIMIT = 2.5e7
"""Multiply-adds of one round over a buffer of default size, unless that has fewer than `LARGEST_LEAST` rows."""
LEAST_SIZE, LARGEST_LEAST = 400, 800
"""Least number of rows of a buffer of default size; with more features than the first, as many, up to the second."""


def default_size(family: Family, shape: Shape) -> int:
    """Return the default number of events in a warm-up buffer: a dozen or more for each parameter, at least 400.

    Wide models get fewer: a fit must be short enough for a mixture to serve after some hundreds of events, and a larger
    buffer would not make up for the events in which a single expert has to do.

    >>> from streammoe.experts import families
    >>> family = families()["gaussian"]
    >>> default_size(family, Shape(4, 1, 11, 11)), default_size(family, Shape(4, 1, 301, 301))
    (972, 400)
    """
    affordable = ROUND_LIMIT / row_cost_with_matrices(family, shape)
    least = min(max(shape.p_v, LEAST_SIZE), LARGEST_LEAST)
    return int(max(min(ample_size(family, shape), affordable), least))


def ample_size(family: Family, shape: Shape) -> int:
    """Return the number of events that determine the parameters of a mixture well: a dozen or more for each."""
    return max(family.events_per_parameter * n_measured(family, shape), LEAST_SIZE)


def pace(family: Family, shape: Shape, n: int) -> float:
    """Return the multiply-adds of a fit to n rows that are done at each event while it is in progress."""
    of_round = n * row_cost(family, shape)
    work = max(min(of_round * TYPICAL_ROUNDS, work_limit(family, shape)), of_round * FEWEST_ROUNDS)
    events = max(min(MOST_EVENTS, n / 2, CATCH_UP / step_cost(shape)), FEWEST_EVENTS)
    return float(np.clip(work / events, LEAST_PACE, LARGEST_PACE))


def work_limit(family: Family, shape: Shape) -> float:
    """Return the most multiply-adds of a warm-up's fit."""
    return SMALL_WORK_LIMIT if is_without_matrices(family, shape) else WORK_LIMIT


def replayed_rows(shape: Shape) -> int:
    """Return how many of the events that came during a fit its result learns at each event after it.

    >>> [replayed_rows(Shape(4, 1, 11, 11)), replayed_rows(Shape(2, 9, 785, 785))]
    [6163, 3]
    """
    return max(int(REPLAY_WORK / step_cost(shape)), FEWEST_REPLAYED)


def relearned_rows(shape: Shape, others: Sequence[int] = ()) -> int:
    """Return how many buffered events the one expert of a warm-up learns again at an event when its scale has changed.

    Args:
        shape: size of the largest mixture.
        others: numbers of features of further experts that do.

    >>> [relearned_rows(Shape(2, 9, p, p)) for p in (11, 201, 785)], relearned_rows(Shape(2, 9, 785, 785), [785])
    ([444181, 174, 3], 2)
    """
    _, N, _, p_v = shape
    work = sum(step_cost(Shape(1, N, p, p)) + p**3 / (2 * ROWS_PER_REFRESH) for p in (p_v, *others))
    return max(int(RESCALE_WORK / work), LEAST_RELEARNED)


def is_rescaled(n: int, before: int, at_each: int) -> bool:
    """Return whether the one expert of a warm-up takes another scale at n events.

    Args:
        n: number of events.
        before: number of events whose moments are its scale.
        at_each: of `relearned_rows`; a model that learns few of them at an event changes its scale less often.

    >>> [is_rescaled(48, 4, 2), is_rescaled(32, 4, 2), is_rescaled(128, 64, 174)]
    [True, False, True]
    """
    return n >= (1.0 + RARENESS / at_each) * before


def step_cost(shape: Shape) -> int:
    """Estimate the multiply-adds of one step of a mixture."""
    K, N, p_w, p_v = shape
    return p_w**2 + K * p_v * (p_v + N)


def n_measured(family: Family, shape: Shape) -> int:
    """Count the parameters that determine the size of a buffer: of a covariance, only the diagonal.

    `streammoe.engine.model_selection.n_parameters` counts free parameters, for the cost of a model. Here covariances
    would make buffers grow with the square of the outputs, although every row measures all pairs of them at once.
    """
    K, N, p_w, p_v = shape
    variances = N if family.n_variances(1) else 0
    return (K - 1) * p_w + K * (N * p_v + variances)


def fit(
    family: Family,
    buffer: Buffer,
    *,
    n_experts: int,
    n_outputs: int,
    restarts: int,
    seed: int,
    options: LearningOptions,
    brief: bool = False,
) -> Job[MMState]:
    """Fit a mixture to these rows: the best of several batch fits, with its statistics.

    Args:
        family: of the experts.
        buffer: the rows.
        n_experts: K.
        n_outputs: Q, or the number of classes.
        restarts: starts of each kind (gate first: four times as many, since each is cheap and chancy).
        seed: seed of the random starts.
        options: bound and prior of the model.
        brief: whether to run fewer starts and rounds, in a fraction of the time.

    Raises:
        UnsoundError: the fit is not finite.
    """
    em = yield from with_own_prior(family, buffer, n_outputs, options)
    theta = yield from _search(for_search(em), n_experts, restarts, np.random.default_rng(seed), brief=brief)
    state = yield from statistics(as_streamed(em), theta)
    if not is_sound(state):
        raise UnsoundError(unsound_parts(state))
    return state


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


def for_search(em: Em) -> Em:
    """Return EM without outliers, under the prior that the family searches with."""
    em = without_outliers(em)
    return em._replace(prior=em.family.search_prior(em.prior, em.buffer.Y))


def as_streamed(em: Em) -> Em:
    """Return `em` with the prior used for streaming, which may have strength 0."""
    return em._replace(prior=em.prior._replace(strength=em.options.prior_strength))


class Starts(NamedTuple):
    """The starts that a search runs to the end."""

    thetas: list[Parameters]
    """The likeliest few, the best first."""
    rounds: int
    """Maximum rounds from each."""
    folds: IntArray | None
    """(n,) folds of the rows to hold out when choosing among the results; None if none can be spared."""


def _search(em: Em, n_experts: int, restarts: int, rng: np.random.Generator, *, brief: bool = False) -> Job[Parameters]:
    """Run a few rounds from every start and many from the likeliest few; return the result that predicts best."""
    starts = yield from best_starts(em, n_experts, restarts, rng, brief=brief)
    ended = yield from _each_run(em, starts.thetas, starts.rounds)
    return (yield from chosen(ended, em, starts.folds))


def best_starts(em: Em, n_experts: int, restarts: int, rng: np.random.Generator, *, brief: bool = False) -> Job[Starts]:
    """Return the likeliest few after a few rounds from every start; `brief` as in `fit`.

    Raises:
        UnsoundError: no start has a finite likelihood.
    """
    n, p_v = em.buffer.R.shape
    if n_experts == 1:
        return Starts([(yield from em.fitted_to(np.ones((n, 1))))], 1 if em.family.is_exact else LONG_ROUNDS, None)
    shape = Shape(n_experts, len(em.prior.experts), em.buffer.W.shape[1], p_v)
    work_of_rounds = work_limit(em.family, shape) / row_cost(em.family, shape)
    searched = em if brief else _sampled(em, shape, int(work_of_rounds / AMPLE_ROUNDS), rng)
    affordable_rounds = work_of_rounds / len(searched.buffer.R)
    if brief:
        affordable_rounds = min(affordable_rounds / BRIEF_PART, BRIEF_ROUNDS)
    starts = yield from _starts(searched, n_experts, restarts, affordable_rounds, rng)
    for rounds, kept in STAGES if affordable_rounds >= AMPLE_ROUNDS else FEW_STAGES:
        starts = yield from _likeliest(searched, starts, rounds, kept)
    if searched is not em:
        affordable_rounds = work_of_rounds / n
        for rounds, kept in FEW_STAGES:
            starts = yield from _likeliest(em, starts, rounds, kept)
    if not starts:
        raise UnsoundError(["likelihood of every start"])
    rounds = int(np.clip(affordable_rounds / 4 / len(starts), SHORT_ROUNDS, LONG_ROUNDS))
    folds = rng.permutation(n) % FOLDS if n >= ROWS_PER_PARAMETER * n_measured(em.family, shape) else None
    return Starts(starts, rounds, folds)


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


def _likeliest(em: Em, thetas: Sequence[Parameters], rounds: int, kept: int) -> Job[list[Parameters]]:
    """Run rounds from each of these parameters, in place, and return the likeliest few."""
    fits = yield from _each_run(em, thetas, rounds)
    finite = [fit for fit in fits if np.isfinite(fit.score)]
    return [fit.theta for fit in sorted(finite, key=lambda fit: fit.score, reverse=True)[:kept]]


class CandidateFit(NamedTuple):
    """A fit among which to choose."""

    score: float
    """Penalized mean log-likelihood of the rows that it was fitted to."""
    theta: Parameters


def _each_run(em: Em, thetas: Sequence[Parameters], rounds: int) -> Job[list[CandidateFit]]:
    """Run rounds from each of these parameters, in place."""
    fits = []
    for theta in thetas:
        score = yield from em.rounds(theta, rounds)
        fits.append(CandidateFit(score, theta))
    return fits


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
