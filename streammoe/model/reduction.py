"""Reduction of the mixtures of several learners to one, in a learner that continues from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.fitting import join_ranges
from streammoe.columns.layout import MOST_IDENTIFIERS
from streammoe.columns.scaling import Scaler, identity_scaler
from streammoe.engine import mixture
from streammoe.engine.portfolio import OF_MIXTURE
from streammoe.engine.reduction import (
    Classes,
    Local,
    Normal,
    Problem,
    Reduction,
    divergence_between,
    log_softmax,
    reduce,
    statistics_of,
)
from streammoe.errors import ConfigError
from streammoe.experts import Parameters
from streammoe.kernels.level_means import LONGEST
from streammoe.model.common_rows import events_of, fill_reservoir, outputs_of
from streammoe.model.learner import Learner
from streammoe.model.level_means import LevelMeans
from streammoe.model.refinement import have_forgotten, refined
from streammoe.model.streaming import Streaming
from streammoe.text import some_of
from streammoe.types import BoolArray, FloatArray, IntArray


def signature(learner: Learner) -> tuple[float, ...]:
    """Return numbers by which models differ that have learned different events, whatever the order of experts."""
    state = learner.state
    if state is None:
        return (float(learner.n),)
    decay = float(state.decay[0])
    return float(learner.n), decay * float(state.gate_gram.sum()), decay * float(state.expert_grams.sum())


def mixture_parameters(learner: Learner) -> Parameters | None:
    """Return the parameters by which a learner's mixture predicts best; None before its first fit.

    Of a portfolio these are the average's, those of the last fit or the latest ones, whichever are trusted most.
    """
    phase, state = learner.phase, learner.state
    if state is None:
        return None
    if not isinstance(phase, Streaming) or phase.portfolio is None:
        return mixture.served_parameters(state)
    trust = phase.portfolio.trust.weights[: len(OF_MIXTURE)]
    return phase.portfolio.predictors(state, phase.fitted)[int(trust.argmax())].theta


def check_alike(learners: Sequence[Learner], names: Sequence[str]) -> None:
    """Check that models can become one.

    Raises:
        ConfigError: a model's mixture was not fitted yet, or it has other columns, outputs or features than the first.
    """
    problems = []
    first = learners[0]
    for name, learner in zip(names, learners, strict=True):
        if learner.state is None:
            problems.append(f"{name}: its warm-up is not over ({learner.n:,} events so far); leave it out until then")
            continue
        problems += [f"{name}: {problem}" for problem in _differences(first, learner, names[0])]
    if problems:
        raise ConfigError(*problems)


def _differences(first: Learner, other: Learner, name: str) -> list[str]:
    problems = []
    ours, theirs = other.encoder.columns.own_kinds, first.encoder.columns.own_kinds
    more, less = sorted(ours.keys() - theirs.keys(), key=str), sorted(theirs.keys() - ours.keys(), key=str)
    if more or less:
        found = [f"{some_of(more)} that {name} lacks"] if more else []
        found += [f"no {some_of(less)}"] if less else []
        problems.append(f"it has {' and '.join(found)}; reduce models of the same columns only")
    kinds = [field for field in ours.keys() & theirs.keys() if ours[field] != theirs[field]]
    if kinds:
        field = min(kinds, key=str)
        problems.append(
            f"{field!s} is a {ours[field]} here and a {theirs[field]} in {name}; say which in the arguments"
        )
    if not other.targets.are_labels and set(other.targets.names) != set(first.targets.names):
        problems.append(f"its outputs are {other.targets.names!r} and those of {name} are {first.targets.names!r}")
    for option in ("degree", "gate_degree"):
        here, there = getattr(other.context.options, option), getattr(first.context.options, option)
        if here != there:
            problems.append(f"{option} is {here} here and {there} in {name}; reduce models of the same features only")
    if other.context.family is not first.context.family and other.context.family != first.context.family:
        problems.append(f"its experts are not those of {name}; reduce models of the same family and noise only")
    lags, others = _lags(other), _lags(first)
    if lags != others:
        problems.append(f"its lags are {lags} and those of {name} {others}")
    return problems


def _lags(learner: Learner) -> list[str]:
    columns = learner.encoder.columns
    return list(columns.lagged[: columns.n_lags])


# -- Common coordinates ------------------------------------------------------------------------------------------------


def prepare(new: Learner, learners: Sequence[Learner], weights: FloatArray) -> None:
    """Give a new learner the columns, levels, outputs, scales and ranges of others together; it needs a start then."""
    context, first = new.context, learners[0]
    targets = context.targets
    if targets.are_labels:
        for label in _agreed([learner.targets.names for learner in learners]):
            if label not in targets.names:
                targets.add(label)
    elif not targets.is_fixed:
        targets.fix(_agreed([learner.targets.names for learner in learners]))
    kinds = first.encoder.columns.own_kinds
    fields = _agreed([learner.encoder.own_fields for learner in learners])
    context.level_means = _pooled_means(new, learners, fields)
    encoder = context.encoder = context.new_encoder(fields, [kinds[field] for field in fields])
    levels: list[tuple[Any, str]] = []
    for field in encoder.columns.with_columns:
        texts = _agreed([list(learner.encoder.levels[field]) for learner in learners])
        if len(texts) > encoder.columns.max_levels:
            known = {text: sum(text in learner.encoder.levels[field] for learner in learners) for text in texts}
            kept = set(sorted(texts, key=lambda text: (-known[text], text))[: encoder.columns.max_levels])
            texts = [text for text in texts if text in kept]
        levels += [(field, text) for text in texts]
    for field in encoder.columns.identifiers:
        each = [learner.encoder for learner in learners if field in learner.encoder.columns.identifiers]
        levels += [(field, text) for text in each[0].levels[field] if all(text in one.levels[field] for one in each)]
    encoder.append_levels(levels)
    _know_levels_with_columns(new, learners)
    outputs = [np.zeros(1, dtype=np.int64) if targets.are_labels else outputs_of(new, each) for each in learners]
    encoder.scaler = _pooled_scaler(encoder, learners, outputs, weights)
    context.mean_weight = np.average([learner.context.mean_weight for learner in learners], axis=0, weights=weights)
    for learner, output in zip(learners, outputs, strict=True):
        join_ranges(encoder, learner.encoder, output)


def _pooled_means(new: Learner, learners: Sequence[Learner], fields: Sequence[Any]) -> LevelMeans | None:
    """Return what all learners know of the levels of the identifiers of any; None if there are none."""
    known = [learner.context.level_means for learner in learners]
    identifiers = _agreed([[] if means is None else means.identifiers for means in known])[:MOST_IDENTIFIERS]
    tables = [means for means in known if means is not None]
    values = [each for each in new.context.level_values if all(each in table.values for table in tables)]
    if not identifiers or not values:
        return None
    found = new.context.new_level_means(identifiers, [*fields, *_lags(learners[0])], values)
    for table in tables:
        found.pool(table)
    return found


def _know_levels_with_columns(new: Learner, learners: Sequence[Learner]) -> None:
    """Let a new learner know the levels that have columns in others, by the samples of their events."""
    found, columns = new.context.level_means, new.encoder.columns
    for learner in learners:
        known = learner.encoder.columns.with_columns
        missing = [] if found is None else [name for name in found.identifiers if name in known]
        sample = events_of(new, learner)
        if found is None or not missing or not len(sample.X):
            continue
        table = new.context.new_level_means(missing, (), found.values)
        table.taken(sample.X, sample.Y, columns)
        table.counts *= max(learner.n / len(sample.X), 1.0)
        np.minimum(table.counts, LONGEST, out=table.counts)
        table.overall[0] = 0.0  # its events count already where other fields have means
        found.pool(table)


def _agreed(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the order that all lists have, or all that is in any of them in the order of types and texts."""
    if all(list(each) == list(lists[0]) for each in lists):
        return list(lists[0])
    return sorted({each for given in lists for each in given}, key=lambda each: (type(each).__name__, str(each)))


def _pooled_scaler(
    encoder: Encoder, learners: Sequence[Learner], outputs: Sequence[IntArray], weights: FloatArray
) -> Scaler:
    """Return the scaler of the events of all learners together, of which each has the targets in its own order."""
    n_outputs = encoder.n_outputs
    scaler = identity_scaler(len(encoder.feature_names), n_outputs)
    places = [{name: at for at, name in enumerate(learner.encoder.feature_names)} for learner in learners]
    given = [learner.encoder.scaler for learner in learners]
    for at, name in enumerate(encoder.feature_names):
        found = [
            (weight, *(part[place[name]] for part in each[:3]))
            for weight, each, place in zip(weights, given, places, strict=True)
            if name in place
        ]
        parts, fills, centers, scales = np.array(found).T
        scaler.fill[at] = np.average(fills, weights=parts)
        scaler.center[at], scaler.scale[at] = _pooled(parts, centers, scales)
    for q in range(n_outputs):
        centers = np.array([each.target_center[at[q]] for each, at in zip(given, outputs, strict=True)])
        scales = np.array([each.target_scale[at[q]] for each, at in zip(given, outputs, strict=True)])
        scaler.target_center[q], scaler.target_scale[q] = _pooled(weights, centers, scales)
    return scaler


def _pooled(weights: FloatArray, centers: FloatArray, scales: FloatArray) -> tuple[float, float]:
    """Return mean and standard deviation of parts of these sizes, means and deviations together."""
    if (centers == centers[0]).all() and (scales == scales[0]).all():
        return float(centers[0]), float(scales[0])
    center = float(np.average(centers, weights=weights))
    return center, float(np.sqrt(np.average(scales**2 + (centers - center) ** 2, weights=weights)))


# -- Local experts -----------------------------------------------------------------------------------------------------


def local_experts(new: Learner, learners: Sequence[Learner], weights: FloatArray, X: FloatArray) -> Local:
    """Return what the mixtures of learners say at raw rows of the new one."""
    parts = np.empty((len(X), len(learners)))
    said: list[tuple[FloatArray, FloatArray, FloatArray]] = []
    for m, learner in enumerate(learners):
        theta = mixture_parameters(learner)
        assert theta is not None  # noqa: S101 - models in a warm-up are not reduced
        rows = learner.encoder.columns.translated(X, new.encoder.columns)
        parts[:, m] = weights[m] * _is_known(learner, rows)
        logs, means, spread = _said(new, learner, theta, rows)
        # The order of experts within a model means nothing, so that the result must not depend on it.
        order = np.argsort(-np.exp(logs).sum(axis=0), kind="stable")
        said.append((logs[:, order], means[:, order], spread[order]))
    parts[parts.sum(axis=1) == 0.0] = weights
    all_logs, all_means, spreads = zip(*said, strict=True)
    owners = np.repeat(np.arange(len(said)), [len(each) for each in spreads])
    parts /= parts.sum(axis=1, keepdims=True)
    return Local(
        np.concatenate(all_logs, axis=1), parts, np.concatenate(all_means, axis=1), np.concatenate(spreads), owners
    )


def _is_known(learner: Learner, X: FloatArray) -> BoolArray:
    """Return at which raw rows of a learner, (n,), it has seen each of the levels before."""
    encoder = learner.encoder
    known = np.ones(len(X), dtype=np.bool_)
    for at in encoder.columns.with_columns.values():
        known &= ~(X[:, at] < 0.0)
    return known


def _said(
    new: Learner, learner: Learner, theta: Parameters, X: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the log gate (S, K), means (S, K, Q) and covariances (K, Q, Q) of a mixture, in units of the targets."""
    W, R = features_at(learner, X)
    scaler, n_outputs = learner.encoder.scaler, learner.targets.n_outputs
    scores, _ = mixture.score(learner.context.family, theta, W, R, n_outputs=n_outputs, traced=True)
    logs = log_softmax(np.column_stack([W @ theta.gate.T, np.zeros(len(W))]))
    output = outputs_of(new, learner)
    K = len(theta.experts)
    if not learner.context.family.is_metric:
        means = np.zeros((len(X), K, new.targets.n_outputs))
        means[:, :, output] = scores.trace.means
        return logs, means, np.empty((K, 0, 0))
    means = scores.trace.means * scaler.target_scale + scaler.target_center
    spread = theta.variances if theta.variances.ndim == 3 else np.stack([np.diag(each) for each in theta.variances])
    spread = spread * np.outer(scaler.target_scale, scaler.target_scale)
    return logs, means[:, :, output], spread[:, output][:, :, output]


def features_at(learner: Learner, X: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return gate features and expert features of raw rows, as they are predicted."""
    encoder = learner.encoder
    return encoder.design(encoder.hold(encoder.bounded(X))[0])


# -- Reduction ---------------------------------------------------------------------------------------------------------


def reduce_learners(
    new: Learner,
    learners: Sequence[Learner],
    weights: FloatArray,
    X: FloatArray,
    n_experts: int,
    n: int | None = None,
    *,
    refine: bool = True,
) -> FloatArray:
    """Start a new learner, which `prepare` has prepared, at the reduction of others over raw rows X.

    It counts n events as learned, by default as many as all others together.

    Args:
        new, learners, weights, X, n_experts, n: see above.
        refine: see `streammoe.reduction.reduce`.

    Returns:
        (M,) mean divergence of each model's experts and gate from the reduced ones, in nats per event.
    """
    total = sum(learner.n for learner in learners)
    n = total if n is None else n
    features = features_at(new, X)
    W, R = features[0][:, : new.encoder.n_gate_features], features[1][:, : new.encoder.n_expert_features]
    problem = _problem(new, local_experts(new, learners, weights, X), R)
    found = reduce(problem, W, n_experts, new.context.options.seed)
    found = found.in_order(np.argsort(-np.exp(found.log_shares(W)).sum(axis=0), kind="stable"))
    iterates = sum(int(learner.state.n_average[0]) for learner in learners if learner.state is not None)
    options, one = new.context.learning_options(n_experts), problem.one_expert()

    def start(theta: Parameters) -> None:
        state = statistics_of(new.context.family, options, theta, *features, one=one, n=n)
        new.start(state._replace(n_average=np.array([max(iterates * n // max(total, 1), 1)], dtype=np.int64)))

    theta = _parameters(new, found)
    start(theta)
    if refine and (better := refined(new, learners, weights, theta)) is not theta:
        start(better)
        if have_forgotten(learners, new):
            start(theta)
    fill_reservoir(new, learners, weights, n)
    return divergence_between(problem, found, W)


def _problem(new: Learner, local: Local, R: FloatArray) -> Problem:
    """Return local experts in the scale of a new learner, at support points with these expert features."""
    if not new.context.family.is_metric:
        return Classes(local, R)
    scaler = new.encoder.scaler  # where sizes of outputs are alike, so are sums of their squares
    means = (local.means - scaler.target_center) / scaler.target_scale
    variances = local.variances / np.outer(scaler.target_scale, scaler.target_scale)
    return Normal(local._replace(means=means, variances=variances, is_full=_is_full(new)), R)


def _parameters(new: Learner, found: Reduction) -> Parameters:
    """Return a reduced mixture as parameters of the new learner."""
    encoder, experts = new.encoder, found.experts
    variances = experts.variances if _is_full(new) else np.einsum("kqq->kq", experts.variances)
    return Parameters(
        _padded(found.gate[:-1], encoder.gate_width),
        _padded(experts.coefficients, encoder.expert_width),
        np.ascontiguousarray(variances),
    )


def _is_full(learner: Learner) -> bool:
    """Return whether its experts have full covariances."""
    family = learner.context.family
    return family.variances_of(np.ones(family.n_variances(learner.targets.n_outputs)), 1).ndim == 3


def _padded(array: FloatArray, width: int) -> FloatArray:
    more = width - array.shape[-1]
    return np.ascontiguousarray(np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, more)]))
