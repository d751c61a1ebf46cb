"""Predictions of one event or of many rows, from which nothing is learned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from streammoe.distributions import Gaussian, MultivariateMixture
from streammoe.distributions.mixtures import check_level
from streammoe.engine import mixture, portfolio
from streammoe.engine.intervals import AT_ONCE, mixture_intervals
from streammoe.kernels.state import Trace
from streammoe.model.bound import Row
from streammoe.model.context import Context
from streammoe.model.learner import Learner
from streammoe.model.phase import in_units
from streammoe.model.streaming import Streaming
from streammoe.model.tables import Table, raw_rows
from streammoe.types import AnyArray, FloatArray


def score(
    learner: Learner, X: FloatArray, Y: FloatArray | None, *, is_next: bool = False, traced: bool = False
) -> tuple[mixture.Scores, FloatArray]:
    """Score raw rows, and return the mixture's responsibilities, or without targets the gate's probabilities.

    With `is_next` a single row is the next event, for which the last targets are known. With `traced` the scores keep
    the parameters of each component, from which a distribution is made.
    """
    context = learner.context
    served, encoder = learner.phase.served(context), context.encoder
    if not served.members:
        losses = np.full(len(X), np.nan)
        return mixture.Scores(losses, context.targets.blank(len(X)), mixture.NO_TRACE), np.empty((len(X), 0))
    # Predictions reject no value: one whose powers would overflow is clipped.
    X = encoder.bounded(X)
    W, R, unheld = encoder.designs(*encoder.hold(X))
    scaler = encoder.scaler
    scores, responsibilities = portfolio.score(
        context.family,
        *served,
        W,
        R,
        None if Y is None else (Y - scaler.target_center) / scaler.target_scale,
        unheld=unheld,
        last=context.last_targets(learner.n),
        is_next=is_next,
        n_outputs=context.targets.n_outputs,
        traced=traced,
    )
    scores = in_units(scores, scaler)
    if context.family.is_metric:
        # A point prediction is moved into the range of the targets seen; the density stays.
        encoder.hold_predictions(scores.predictions)
    return scores, responsibilities


def predict_one(learner: Learner, x: Mapping[Any, Any]) -> Any:
    """Predict one event, in the form of the targets."""
    context, phase = learner.context, learner.phase
    is_next = False
    if isinstance(phase, Streaming):
        row = context.encoder.plain_row(x)
        if row is None:
            row = context.encoder.row(x)[0].tolist()
        is_next = _is_next(context, row)
        found = phase.bound(context).predict(row, is_next)
        if found is not None:
            return found if isinstance(found, float) else context.targets.one(found)
    scores, _ = score(learner, context.with_last(context.encoder.row(x)), None, is_next=is_next)
    return context.targets.one(scores.predictions)


def distribution_one(learner: Learner, x: Mapping[Any, Any]) -> Any:
    """Return the distribution of the targets of an event, which are numbers."""
    X, is_next = _next_row(learner, x)
    (shares, means, within, ranks, _) = score(learner, X, None, is_next=is_next, traced=True)[0].trace
    targets, members = learner.targets, learner.phase.served(learner.context).members
    names, noise, Q = tuple(targets.lagged_names), learner.context.family.noise, targets.n_outputs
    if members:
        variances, scale = [each.theta.variances for each in members], learner.encoder.scaler.target_scale
        is_full = variances[0].ndim == 3
        own = np.concatenate(variances) * np.outer(scale, scale) if is_full else within[0]
        joint = MultivariateMixture(shares[0], means[0], own, noise, names, ranks[0] if ranks.size else None)
    else:
        joint = MultivariateMixture(np.ones(1), np.zeros((1, Q)), np.ones((1, Q)), Gaussian(tail=math.inf), names)
    return joint.marginal(names[0]) if targets.is_number else joint


def intervals(learner: Learner, X: FloatArray, level: float, *, is_next: bool = False) -> FloatArray:
    """Return the interval of a level of each raw row, (n, Q, 2); NaN before anything was learned.

    Raises:
        ConfigError: a level outside (0, 1).
    """
    check_level(level)
    found = np.full((len(X), learner.targets.n_outputs, 2), np.nan)
    for rows, trace in _traces(learner, X, is_next=is_next):
        found[rows] = mixture_intervals(*trace, level, learner.context.family.noise)
    return found


def interval_one(learner: Learner, x: Mapping[Any, Any], level: float) -> Any:
    """Return the interval of a level of each output of an event, (Q, 2)."""
    X, is_next = _next_row(learner, x)
    return intervals(learner, X, level, is_next=is_next)[0]


def interval_array(learner: Learner, table: Table, level: float) -> FloatArray:
    """Return the interval of a level of each row of a table and of each output, (n, Q, 2)."""
    return intervals(learner, _rows(learner, table), level)


def std_array(learner: Learner, table: Table) -> AnyArray:
    """Return the standard deviation of what is predicted for each row of a table, in the form of the targets."""
    X, Q = _rows(learner, table), learner.targets.n_outputs
    found = np.full((len(X), Q), np.nan)
    for rows, (given, means, squares, *_) in _traces(learner, X):
        shares, counts = given[:, :, None], given[:, :, None] > 0.0  # what else has no share may be anything
        mean = np.sum(shares * means, axis=1, where=counts, keepdims=True)
        variances = learner.context.family.noise.spread(Q) * squares + (means - mean) ** 2
        found[rows] = np.sqrt(np.sum(shares * variances, axis=1, where=counts))
    return learner.targets.many(found)


def predict(learner: Learner, table: Table) -> AnyArray:
    """Predict the rows of a table, in the form of the targets."""
    scores, _ = score(learner, _rows(learner, table), None)
    return learner.targets.many(scores.predictions)


def log_likelihood(learner: Learner, table: Table, y: Any) -> FloatArray:
    """Return log s(y|x) of each row of a table."""
    n, targets = len(table.rows), learner.targets
    Y, novel, rejected = targets.read(targets.check_array(y, n), n)
    if rejected:
        raise rejected[min(rejected)]
    Y[novel] = np.nan
    scores, _ = score(learner, _rows(learner, table), Y)
    # A class that the model has never encountered has no probability.
    return np.where(novel, -np.inf, -scores.losses)


def _traces(learner: Learner, X: FloatArray, *, is_next: bool = False) -> Iterator[tuple[slice, Trace]]:
    """Yield which raw rows are scored at once, and their distributions; nothing before anything was learned."""
    for start in range(0, len(X) if learner.phase.served(learner.context).members else 0, AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        yield rows, score(learner, X[rows], None, is_next=is_next, traced=True)[0].trace


def _is_next(context: Context, row: Row) -> bool:
    """Return whether the last targets before a row are known, and note that it was predicted by itself."""
    if context.past is None:
        return False
    context.past.shown = row
    return context.past.is_timely


def _next_row(learner: Learner, x: Mapping[Any, Any]) -> tuple[FloatArray, bool]:
    """Encode an event that is to be predicted, and return what `_is_next` does of it."""
    raw = learner.encoder.row(x)
    return learner.context.with_last(raw), _is_next(learner.context, raw[0].tolist())


def _rows(learner: Learner, table: Table) -> FloatArray:
    """Encode rows that are to be predicted, all with the lags of the next event."""
    return learner.context.with_last(raw_rows(table, learner.encoder))
