"""Batch fits of rows that lie in several parts, from which the same is found as in all of them together.

The parts are read in order, each by a model that knows what those before it have found: columns, categories, labels and
ranges. So the same rows are accepted as by one model that reads everything. What is frozen of a column needs all rows
of that column, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from streammoe.engine import batch, em, partitioned, warmup
from streammoe.engine.batch import Descent, Listener
from streammoe.engine.jobs import run_job
from streammoe.engine.partitioned import PartitionedEm, Parts
from streammoe.experts import Parameters
from streammoe.experts.on_sums import Sums
from streammoe.features import Frozen
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.model import reduction
from streammoe.model.fitting import at_the_model, from_warmup, prior_of, warn_of_want
from streammoe.model.learner import Learner
from streammoe.model.phases.contract import Phase
from streammoe.model.phases.streaming import Streaming
from streammoe.model.phases.warmup import Collecting, Empty, Rows, joined_rows
from streammoe.types import BoolArray, FloatArray


class Start(NamedTuple):
    """Where rounds over all parts begin."""

    theta: Parameters
    prior: Prior
    options: LearningOptions


@contextmanager
def collecting(learner: Learner) -> Iterator[None]:
    """Only put rows aside that are learned within the block, for `collected`; afterwards none were learned."""
    before = learner.phase
    learner.phase = Collecting(before if isinstance(before, Streaming) else None)
    learner.undo.forget()
    try:
        yield
    finally:
        learner.phase = _after(learner)
        learner.undo.forget()


def _after(learner: Learner) -> Phase:
    """Return the phase that goes on after `collecting`; columns and labels may have been added to it."""
    phase = learner.phase
    return phase.before if isinstance(phase, Collecting) and phase.before is not None else Empty()


def collected(learner: Learner) -> Rows:
    """Return the rows that were put aside within `collecting`."""
    phase = learner.phase
    return phase.rows(learner.context) if isinstance(phase, Collecting) else joined_rows([], 0, 1)


def frozen_columns(learner: Learner, fields: Sequence[int], X: FloatArray) -> Frozen:
    """Return what is frozen of some fields, which are numbers, given all their rows, (n, fields)."""
    encoder = learner.encoder.of_numbers(fields)
    return encoder.frozen_columns(X, standardize=learner.context.options.standardize)


def frozen_targets(learner: Learner, Y: FloatArray) -> Frozen:
    """Return what is frozen of the targets, given all of them, (n, Q)."""
    context = learner.context
    # Class indexes must not be scaled.
    targets = Y if context.family.is_metric else np.zeros_like(Y)
    return learner.encoder.frozen_targets(targets, standardize=context.options.standardize)


def freeze(learner: Learner, columns: Sequence[Frozen], targets: Frozen, *, from_model: bool) -> None:
    """Let a model take what was frozen of its `number_fields`, in order, and of its targets."""
    joined = Frozen(*(np.concatenate(parts) for parts in zip(*columns, strict=True))) if columns else _nothing()
    learner.encoder.freeze(joined, targets, joining=from_model)


def _nothing() -> Frozen:
    empty = np.empty(0)
    return Frozen(empty, empty, empty, empty, empty, empty, empty, np.empty(0, dtype=np.int64))


def buffer_of(learner: Learner, rows: Rows) -> em.Buffer:
    """Return a part of the rows as a fit takes them; the model has been frozen."""
    context = learner.context
    X = np.pad(rows.X, [(0, 0), (0, len(context.encoder.fields) - rows.X.shape[1])], constant_values=np.nan)
    return context.buffer(context.encoder, X, rows.Y, rows.weights)


def start_of(learner: Learner, sample: Rows, *, from_model: bool, rounds: int, tolerance: float) -> Start:
    """Return where rounds begin: at the parameters that a frozen model serves, or at a fit to a sample of the rows.

    Raises:
        UnsoundError: the fit is not finite.
    """
    context = learner.context
    buffer = buffer_of(learner, sample)
    if from_model and (leader := learner.phase.leader) is not None:
        problem, (theta,) = at_the_model(context, leader, buffer)
        return Start(theta, problem.prior, problem.options)
    run = partial(batch.fit, method="em", rounds=rounds, tolerance=tolerance)
    descent, state = from_warmup(context, buffer, run)
    options = context.learning_options(len(state.masses))
    strength = max(context.options.prior_strength, warmup.LEAST_STRENGTH)
    return Start(descent.theta, prior_of(state, strength, options.variance_floor), options)


def fit_alone(learner: Learner, rows: Rows, *, from_model: bool, rounds: int, tolerance: float) -> Descent:
    """Fit a frozen model to one part of the rows, as if there were no others.

    Raises:
        UnsoundError: the fit is not finite.
    """
    context, buffer = learner.context, buffer_of(learner, rows)
    run = partial(batch.fit, method="em", rounds=rounds, tolerance=tolerance)
    if from_model and (leader := learner.phase.leader) is not None:
        descent, state = run(*at_the_model(context, leader, buffer))
    else:
        descent, state = from_warmup(context, buffer, run)
    learner.start(state)
    return descent


def reduced_start(
    learner: Learner, new: Learner, fitted: Sequence[Learner], counts: Sequence[int], sample: Rows, *, from_model: bool
) -> Start:
    """Return the one mixture to which models that were fitted to the parts are reduced over a sample of all rows.

    Args:
        learner: frozen.
        new: a new one with the same options.
        fitted: by `fit_alone`, each with its part of the prior's strength.
        counts: how many rows each was fitted to.
        sample: of all rows.
        from_model: whether they were fitted from the parameters of the model, whose prior then counts.

    Raises:
        ConfigError: there are too few rows to compare the models at.
    """
    context = learner.context
    weights = np.array(counts, dtype=np.float64)
    K = max((len(each.masses) for each in fitted), key=[len(each.masses) for each in fitted].count)
    reduction.prepare(new, fitted, weights)
    reduction.reduce_learners(new, fitted, weights, sample.X, K, shares_prior=True)
    theta = reduction.mixture_parameters(new)
    assert theta is not None  # noqa: S101 - it was just started
    buffer = buffer_of(learner, sample)
    if from_model and (leader := learner.phase.leader) is not None:
        problem, _ = at_the_model(context, leader, buffer)
    else:
        n_outputs, options = context.targets.n_outputs, context.learning_options(K)
        problem = run_job(warmup.with_own_prior(context.family, buffer, n_outputs, options))
    return Start(theta, problem.prior, problem.options)


def part_of(learner: Learner, buffer: em.Buffer, n_experts: int) -> em.Em:
    """Return EM on a part of the rows, under a prior of strength 0."""
    context = learner.context
    prior = context.family.unit_prior(0.0, buffer.W.shape[1], buffer.R.shape[1], context.targets.n_outputs)
    return em.Em(context.family, buffer, prior, context.learning_options(n_experts))


def fit(
    learner: Learner,
    parts: Parts,
    start: Start,
    *,
    is_empty: BoolArray,
    rounds: int,
    tolerance: float,
    on_round: Listener | None,
) -> Descent:
    """Fit all parts by EM; streaming continues from the result.

    Args:
        learner: frozen.
        parts: the rows, each part as `part_of` returns it.
        start: where rounds begin.
        is_empty: (F,) which fields have no value in any row.
        rounds, tolerance, on_round: see `streammoe.engine.batch.fit`.

    Raises:
        UnsoundError: the fit is not finite.
    """
    problem = PartitionedEm(learner.context.family, parts, start.prior, start.options)
    descent, state = partitioned.fit(problem, start.theta, rounds=rounds, tolerance=tolerance, on_round=on_round)
    learner.encoder.limits = None
    learner.context.reported = set()
    learner.start(state)
    warn_of_want(learner.context, is_empty, parts.n, len(state.masses))
    return descent


def score_sums(learner: Learner, rows: Rows) -> Sums:
    """Return Σ w, Σ w · loss in the target's own units, and Σ w · squared error, or of correct labels, of a part."""
    X, Y, weights = rows
    X = np.pad(X, [(0, 0), (0, len(learner.encoder.fields) - X.shape[1])], constant_values=np.nan)
    scores, _ = learner.score(X, Y)
    if learner.context.family.is_metric:
        each = ((Y - scores.predictions) ** 2).mean(axis=1)
    else:
        each = (scores.predictions.argmax(axis=1) == Y[:, 0]).astype(np.float64)
    return tuple(np.array([np.sum(weights * values)]) for values in (np.ones(len(Y)), scores.losses, each))
