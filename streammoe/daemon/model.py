"""Construction of the model that settings describe, and compilation of its kernels."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from streammoe import batch
from streammoe.distributions import Gaussian, noises
from streammoe.engine.intervals import mixture_intervals
from streammoe.estimators import MixtureOfExperts, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.kernels.batch import NEWTON_LIMIT, fit_softmax
from streammoe.kernels.compile import compile_seconds
from streammoe.model.level_means import LevelMeans
from streammoe.options import RegressorOptions
from streammoe.pipeline.decoders import FieldRoles, decoder
from streammoe.pipeline.schema import Schema
from streammoe.ports import Batch
from streammoe.reduction import reduce
from streammoe.settings import Settings
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.assembly")


def compile_kernels(settings: Settings | None = None) -> None:
    """Run the kernels once, so that compilation (cached after the first time) never interrupts events.

    Args:
        settings: settings of the daemon whose family of experts is compiled; by default all.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 2))
    y = np.where(X[:, 0] > 0.0, X[:, 1], -X[:, 1]) + 0.1 * rng.normal(size=64)
    before = compile_seconds()
    logger = logging.getLogger("streammoe.estimators")
    was_disabled, logger.disabled = logger.disabled, True  # messages about these models would confuse users
    arguments: dict[str, Any] = {"warmup": 48, "standardize": True}
    targets: dict[type, Any] = {
        MoERegressor: y,
        MoEMultiTargetRegressor: np.column_stack([y, X[:, 0]]),
        MoEClassifier: np.digitize(y, [-0.5, 0.5]),
    }
    kinds: list[tuple[Any, dict[str, Any]]] = [
        *((MoERegressor, {"expert": name}) for name in noises()),
        *((MoEMultiTargetRegressor, {"expert": Gaussian(covariance)}) for covariance in ("diagonal", "full")),
        (MoEClassifier, {}),
    ]
    if settings is not None:
        options = settings.model
        kinds = [(_estimator(settings), {"expert": options.expert} if isinstance(options, RegressorOptions) else {})]
    try:
        for estimator, more in kinds:
            target = targets[estimator]
            for K in (1, 2):
                model = estimator(n_experts=K, **arguments, **more)
                model.learn_array(X, target)
                model.log_likelihood_array(X, target)
                if settings is None:  # daemons learn rows
                    _learn_single_events(model, X, target)
                model.experts()
                LevelMeans((), (), is_metric=True).taken(X, X, model.learner.encoder.columns)
                if settings is None:  # daemons fit no batch, and reduce nothing
                    batch.fit(model, X, target, start="model", rounds=1)
                    reduce([model, model], support=X)
        if settings is None:
            _fit_many_features()
        if settings is None or isinstance(settings.model, RegressorOptions):
            one = np.ones((1, 1, 1))
            mixture_intervals(one[0], one, one, one, one[:0], 0.9, Gaussian())
        record = Batch(b'{"y": 0}', np.array([8]), "jsonl", None, "", [{}], {})
        decoder(record.format).decode(record, FieldRoles({}, Schema(("y",))))
    finally:
        logger.disabled = was_disabled
    if spent := compile_seconds() - before:
        LOGGER.info("compiled the kernels in %.1f seconds", spent)


def _learn_single_events(model: MixtureOfExperts, X: FloatArray, Y: AnyArray) -> None:
    """Predict and learn events one at a time, until one call of a kernel does it."""
    names = model.fields
    for row, y in zip(X.tolist(), Y.tolist(), strict=True):
        x = dict(zip(names, row, strict=True))
        model.predict_one(x)
        model.learn_one(x, dict(zip(model.output_names, y, strict=True)) if isinstance(y, list) else y)


def _fit_many_features() -> None:
    """Fit a softmax regression with so many features that another kernel does it."""
    p = NEWTON_LIMIT
    rows = np.zeros((3, p))
    fit_softmax(rows.copy(), 1.0, np.ones(p), rows, (2.0, 1.0), np.ones((4, 4)), np.ones((4, p)), 3, 1)


def _estimator(settings: Settings) -> type[MixtureOfExperts]:
    if settings.model.kind == "classifier":
        return MoEClassifier
    return MoEMultiTargetRegressor if len(settings.schema.targets) > 1 else MoERegressor


def schema_of(settings: Settings) -> Schema:
    """Return the meaning of the fields of a record."""
    lags = settings.model.given_lags
    return Schema.of(settings.schema, () if lags is None else lags.inputs, settings.labels.key)


def n_lags(settings: Settings) -> int:
    """Return the number of lags that are features of a model."""
    lags = settings.model.given_lags
    return 0 if lags is None else lags.size * (len(settings.schema.targets) + len(lags.inputs))


def model_from(settings: Settings) -> MixtureOfExperts:
    """Create the model that the settings describe."""
    options: dict[str, Any] = {
        name: getattr(settings.model, name) for name in type(settings.model).model_fields if name != "kind"
    }
    if settings.labels.key is not None and settings.model.has_series:
        options["lags"] = None  # the last targets are not known in time
    lists: dict[str, Any] = {
        name: tuple(getattr(settings.schema, name)) for name in ("categorical", "timestamps", "numeric")
    }
    model = _estimator(settings)(**options, **lists)
    if isinstance(model, MoEMultiTargetRegressor):
        model.set_targets(settings.schema.targets)
    return model
