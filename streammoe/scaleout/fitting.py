"""Batch fits of rows that lie in several parts, from which the same is found as in all of them together.

The parts are read in order, each by a model that knows what those before it have found: columns, categories, labels and
ranges. So the same rows are accepted as by one model that reads everything. What is frozen of a column needs all rows
of that column, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from streammoe.columns.arrays import joined
from streammoe.columns.encoder import Encoder
from streammoe.columns.fitting import fit_scaler
from streammoe.columns.ranges import Bounds, limits_of
from streammoe.columns.scaling import identity_scaler
from streammoe.engine import batch, em, search
from streammoe.engine.batch import Descent, Listener
from streammoe.experts import Parameters
from streammoe.experts.on_sums import Sums
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.model.fits import Rows
from streammoe.model.fitting import at_the_model, from_warmup, prior_of, warn_of_want
from streammoe.model.learner import Learner
from streammoe.model.predicting import score
from streammoe.scaleout import partitioned
from streammoe.scaleout.partitioned import PartitionedEm, Parts
from streammoe.types import BoolArray, FloatArray, IntArray


class Frozen(NamedTuple):
    """What is frozen of C columns of numbers, or targets, each of which is found from all rows of that column alone."""

    limits: FloatArray
    """(C,) largest sizes in range."""
    fill: FloatArray
    center: FloatArray
    scale: FloatArray
    """(C,) of these three see `Scaler`."""
    low: FloatArray
    high: FloatArray
    first: FloatArray
    seen: IntArray
    """(C,) of the last four see `Bounds`."""


class StartingPoint(NamedTuple):
    """Where rounds over all parts begin."""

    theta: Parameters
    prior: Prior
    options: LearningOptions


def frozen_columns(learner: Learner, X: FloatArray) -> Frozen:
    """Return what is frozen of some numeric fields, given all their rows, (n, fields)."""
    encoder = _frozen(learner, X, np.zeros((0, learner.encoder.n_outputs)))
    fill, center, scale = encoder.scaler[:3]
    return Frozen(limits_of(X, encoder.range_factor), fill, center, scale, *encoder.bounds)


def frozen_targets(learner: Learner, Y: FloatArray) -> Frozen:
    """Return what is frozen of the targets, given all of them, (n, Q)."""
    # Class indexes must not be scaled.
    targets = Y if learner.context.family.is_metric else np.zeros_like(Y)
    encoder = _frozen(learner, np.zeros((0, 0)), targets)
    center, scale = encoder.scaler[3:]
    return Frozen(limits_of(targets, encoder.range_factor), center, center, scale, *encoder.target_bounds)


def _frozen(learner: Learner, X: FloatArray, Y: FloatArray) -> Encoder:
    """Return an encoder of nothing but numbers after a fit of its scales to these rows."""
    encoder = learner.encoder.with_first(0)
    encoder.set_columns(range(X.shape[1]), ["number"] * X.shape[1])
    fit_scaler(encoder, X, Y, standardize=learner.context.options.standardize)
    return encoder


def freeze(learner: Learner, columns: Sequence[Frozen], targets: Frozen, *, from_model: bool) -> None:
    """Let a model take what was frozen of its numeric fields, in order, and of its targets; rows are parts of all."""
    encoder = learner.encoder
    fields, places = encoder.plan.numeric.T
    inputs = joined(*columns) if columns else frozen_columns(learner, np.empty((0, 0)))
    limits = np.full(len(encoder.fields), np.inf)
    limits[fields] = inputs.limits
    encoder.limits = limits, targets.limits
    if encoder.holds:
        bounds, of_targets = Bounds.blank(len(encoder.fields)), Bounds(*targets[4:])
        for ours, found in zip(bounds, inputs[4:], strict=True):
            ours[fields] = found
        encoder.bounds = encoder.bounds.union(bounds) if from_model else bounds
        encoder.target_bounds = encoder.target_bounds.union(of_targets) if from_model else of_targets
        encoder.doubts = np.zeros(encoder.n_outputs)
    if not from_model:
        scaler = identity_scaler(len(encoder.feature_names), encoder.n_outputs)
        for ours, found in zip(scaler[:3], inputs[1:4], strict=True):
            ours[places] = found
        encoder.scaler = scaler._replace(target_center=targets.center, target_scale=targets.scale)


def buffer_of(learner: Learner, rows: Rows) -> em.Buffer:
    """Return a part of the rows as a fit takes them; the model has been frozen."""
    context = learner.context
    X = np.pad(rows.X, [(0, 0), (0, len(context.encoder.fields) - rows.X.shape[1])], constant_values=np.nan)
    return context.buffer(context.encoder, X, rows.Y, rows.weights)


def start_of(learner: Learner, sample: Rows, *, from_model: bool, rounds: int, tolerance: float) -> StartingPoint:
    """Return where rounds begin: at the parameters that a frozen model serves, or at a fit to a sample of the rows.

    Raises:
        UnsoundError: the fit is not finite.
    """
    context = learner.context
    buffer = buffer_of(learner, sample)
    if from_model and (leader := learner.phase.leader) is not None:
        problem, (theta,) = at_the_model(context, leader, buffer)
        return StartingPoint(theta, problem.prior, problem.options)
    run = partial(batch.fit, method="em", rounds=rounds, tolerance=tolerance)
    descent, state = from_warmup(context, buffer, run)
    options = context.learning_options(len(state.masses))
    strength = max(context.options.prior_strength, search.LEAST_STRENGTH)
    return StartingPoint(descent.theta, prior_of(state, strength, options.variance_floor), options)


def part_of(learner: Learner, buffer: em.Buffer, n_experts: int) -> em.Em:
    """Return EM on a part of the rows, under a prior of strength 0."""
    context = learner.context
    prior = context.family.unit_prior(0.0, buffer.W.shape[1], buffer.R.shape[1], context.targets.n_outputs)
    return em.Em(context.family, buffer, prior, context.learning_options(n_experts))


def fit(
    learner: Learner,
    parts: Parts,
    start: StartingPoint,
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
    scores, _ = score(learner, X, Y)
    if learner.context.family.is_metric:
        each = ((Y - scores.predictions) ** 2).mean(axis=1)
    else:
        each = (scores.predictions.argmax(axis=1) == Y[:, 0]).astype(np.float64)
    return tuple(np.array([np.sum(weights * values)]) for values in (np.ones(len(Y)), scores.losses, each))
