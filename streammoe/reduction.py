"""One model from many: what several workers learned from parts of the data, as one model that goes on learning.

>>> import numpy as np
>>> import streammoe
>>> rng = np.random.default_rng(0)
>>> X = rng.normal(size=(3000, 2))
>>> y = np.where(X[:, 0] > 0, 1 + X[:, 1], -X[:, 1]) + 0.1 * rng.normal(size=3000)
>>> workers = [streammoe.MoERegressor(n_experts=2, reservoir=500) for _ in range(3)]
>>> for worker, part in zip(workers, np.array_split(np.arange(3000), 3)):
...     _ = worker.learn_array(X[part], y[part])
>>> model = streammoe.reduce(workers)
>>> model.n, bool(abs(model.predict_one({"x0": 1.0, "x1": 2.0}) - 3.0) < 0.1)
(3000, True)
>>> model.learn_one({"x0": 0.5, "x1": 2.0}, 3.0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators import MixtureOfExperts, problem_of
from streammoe.estimators.frames import frame_of, table_of
from streammoe.model import reduction
from streammoe.model.checks import is_amount, is_whole
from streammoe.model.common_rows import support_of
from streammoe.model.learner import Learner
from streammoe.model.tables import raw_rows, table_of_array
from streammoe.options import as_arguments
from streammoe.text import shown, some_of
from streammoe.types import AnyArray, FloatArray

__all__ = ["Reduced", "reduce", "reduce_with_details"]

Model = TypeVar("Model", bound=MixtureOfExperts)
MOST_MODELS = 4_096
LEAST_WEIGHT = 1e-100
"""Smallest weight, and the reciprocal of the largest, such that sums and quotients of weights are finite."""


@dataclass(frozen=True)
class Reduced:
    """A reduced model, and how far the models that it was made from are from it."""

    model: MixtureOfExperts
    divergences: FloatArray
    """(M,) divergence of each model from the reduced one, a bound in nats per event: of the gates, and of each expert
    from the reduced one that stands for it."""


def reduce(
    models: Sequence[Model],
    *,
    n_experts: int | None = None,
    weights: Sequence[float] | AnyArray | None = None,
    support: Any = None,
    refine: bool = True,
) -> Model:
    """Return one model from several that have learned different parts of the data: it predicts, saves and learns on.

    The reduced experts have the least expected divergence from those of all models ([DMoE] §3), each compared at inputs
    of the support sample, where all that counts is what a model predicts: scales, numbers of experts and orders of
    experts, classes and columns may differ. Heavier-tailed experts are compared as if they were Gaussian with their
    location and scale. Models that predict by a portfolio are represented by their mixture: its average, latest or
    refitted parameters, whichever is trusted most.

    Args:
        models: of one class, with experts of one family, whose warm-up is over.
        n_experts: K of the result, at most as many as the models have together; by default what most events were
            learned by.
        weights: how much each model counts; by default the number of events that it has learned.
        support: inputs from where predictions will be made: an array (S, P), a data frame, or dicts. By default rows
            from the models' own `reservoir`.
        refine: whether a fit to the events in the reservoirs takes the place of the result if it gains more than
            chance: gates that are nearly hard, and experts with few events, are hard to tell from what models of few
            events say. It does not where models have forgotten what their reservoirs hold, which is of all times.

    Raises:
        ConfigError: the models do not fit together, or there are too few inputs to compare them at.
        InvalidEvent: a row of `support` is invalid.
    """
    found: Any = reduce_with_details(models, n_experts=n_experts, weights=weights, support=support, refine=refine).model
    return found  # type: ignore[no-any-return]


def reduce_with_details(
    models: Sequence[MixtureOfExperts],
    *,
    n_experts: int | None = None,
    weights: Sequence[float] | AnyArray | None = None,
    support: Any = None,
    refine: bool = True,
    names: Sequence[str] | None = None,
    n: int | None = None,
) -> Reduced:
    """Reduce models as `reduce` does, with the same arguments, and say how far each is from the result.

    Args:
        names: of the models in messages; by default models[0], models[1], …
        n: number of events that the result has learned, which determines its next steps; by default the sum of the
            models' own numbers, in which events count twice that several models contain.

    Raises:
        ConfigError, InvalidEvent: see `reduce`.
    """
    models = list(models)
    names = [f"models[{m}]" for m in range(len(models))] if names is None else list(names)
    _check(models, n_experts, names)
    reduction.check_alike([model.learner for model in models], names)
    counts = _weights(models, weights, names)
    # The result must not depend on the order of the models, nor on that of a model's experts.
    order = sorted(range(len(models)), key=lambda m: (counts[m], *reduction.signature(models[m].learner)))
    learners, parts = [models[m].learner for m in order], counts[order]
    K = _n_experts(learners, parts) if n_experts is None else n_experts
    most = sum(learner.n_experts for learner in learners)
    if most < K:
        raise ConfigError(f"n_experts: got {K}; the models have only {most} experts together")
    first = models[order[0]]
    new = type(first)(**as_arguments(first.options_type, {**first.arguments(), "n_experts": K}))
    reduction.prepare(new.learner, learners, parts)
    rows = _support(new.learner, learners, parts, support)
    divergences = reduction.reduce_learners(new.learner, learners, parts, rows, K, n, refine=refine)
    return Reduced(new, divergences[np.argsort(order)])


def _check(models: Sequence[Any], n_experts: object, names: Sequence[str]) -> None:
    if not 1 <= len(models) <= MOST_MODELS:
        raise ConfigError(f"models: got {len(models)}; give 1 to {MOST_MODELS}")
    found = [(name, problem_of(model)) for name, model in zip(names, models, strict=True)]
    problems = [f"{name}: {problem}" for name, problem in found if problem]
    if not problems:
        kinds = Counter(type(model).__name__ for model in models)
        if len(kinds) > 1:
            problems.append(f"models: got {', '.join(sorted(kinds))}; all must be of one class")
    if n_experts is not None and not is_whole(n_experts, 1):
        problems.append(f"n_experts: got {shown(n_experts)}; it must be a whole number ≥ 1")
    if problems:
        raise ConfigError(*problems)


def _weights(
    models: Sequence[MixtureOfExperts], weights: Sequence[float] | AnyArray | None, names: Sequence[str]
) -> FloatArray:
    if weights is not None and not isinstance(weights, Sequence | np.ndarray):
        raise ConfigError(f"weights: got {shown(weights)}; give a list of numbers, one for each model")
    given = [model.n for model in models] if weights is None else list(weights)
    if len(given) != len(models):
        raise ConfigError(f"weights: got {len(given)} for {len(models)} models; give one for each")
    for name, weight in zip(names, given, strict=True):
        if not is_amount(weight) or weight <= 0.0:
            raise ConfigError(f"weights: got {shown(weight)} for {name}; it must be a finite number above 0")
    found = np.array(given, dtype=np.float64)
    if not LEAST_WEIGHT <= found.min() <= found.max() <= 1.0 / LEAST_WEIGHT:
        wanted = f"weights are from {LEAST_WEIGHT:g} to {1.0 / LEAST_WEIGHT:g}"
        raise ConfigError(f"weights: got {found.min():g} to {found.max():g}; {wanted}")
    return found


def _n_experts(learners: Sequence[Learner], weights: FloatArray) -> int:
    """Return the number of experts by which most events were learned; of two, the larger one."""
    counts = np.bincount([learner.n_experts for learner in learners], weights)
    return len(counts) - 1 - int(counts[::-1].argmax())


def _support(new: Learner, learners: Sequence[Learner], weights: FloatArray, given: Any) -> FloatArray:
    if given is None:
        rows = support_of(new, learners, weights)
        hint = "give inputs as support, or let the models keep a reservoir (reservoir=2000)"
    else:
        rows = _rows(new, given)
        hint = "give more"
    encoder = new.encoder
    least = max(encoder.n_expert_features, encoder.n_gate_features)
    if len(rows) < least:
        raise ConfigError(
            f"support: there are {len(rows)} inputs to compare the models at, and their {least} features need as many "
            f"at least; {hint}"
        )
    if given is not None:
        # Nothing tells what the result should say about a column that is missing throughout: it would ignore it.
        missing = [field for field, column in zip(encoder.fields, rows.T, strict=True) if np.isnan(column).all()]
        missing = [field for field in missing if field in encoder.own_fields]
        if missing:
            raise ConfigError(f"support: no row has a value of {some_of(missing)}; give inputs with all columns")
    return rows


def _rows(new: Learner, given: Any) -> FloatArray:
    encoder = new.encoder
    if isinstance(given, Sequence) and given and isinstance(given[0], Mapping):
        rows = []
        for at, event in enumerate(given):
            try:
                rows.append(encoder.row(event))
            except InvalidEvent as error:
                message = f"support[{at}]: {error}"
                raise InvalidEvent(message, reason=error.reason, feature=error.feature, row=at) from None
        return new.context.with_last(np.concatenate(rows))
    frame = frame_of(given, "support")
    own = encoder.own_fields
    table = table_of_array(given, None, own, known=True) if frame is None else table_of(encoder, frame)[1]
    return new.context.with_last(raw_rows(table, encoder))
