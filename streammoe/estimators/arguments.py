"""Constructors of the estimators: every hyper-parameter with its type and default.

River clones an estimator by the signature of its constructor, and editors complete it, so each argument is spelled out.
`streammoe.options` has the ranges and the documentation.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from streammoe.distributions import ExpertNoise
from streammoe.estimators.base import MixtureOfExperts
from streammoe.experts import family_of
from streammoe.model import predicting
from streammoe.model.targets import NumericTarget
from streammoe.options import (
    MODELS,
    Auto,
    AutoLags,
    Averaging,
    Bound,
    ClassifierOptions,
    Curved,
    Lags,
    PageHinkley,
    RegressorOptions,
    Serve,
    document,
)
from streammoe.schedules import Schedule
from streammoe.types import AnyArray, FloatArray, as_python

AnyClass = TypeVar("AnyClass", bound=type)


class RegressorArguments(MixtureOfExperts):
    """Constructor of the regressors, and what they share."""

    options_type: ClassVar = RegressorOptions

    def __init__(
        self,
        n_experts: int | str | Auto = 4,
        *,
        degree: int = 1,
        gate_degree: int = 1,
        expert: str | ExpertNoise = "gaussian",
        calibrate: bool = True,
        schedule: str | Schedule | None = None,
        bound: Bound = "adaptive",
        events_per_coefficient: float = 0.0,
        prior_strength: float = 0.1,
        warmup: int | None = None,
        averaging: str | Averaging | None = "polyak",
        serve: Serve = "portfolio",
        curved: Curved = "auto",
        drift: str | PageHinkley | None = "page_hinkley",
        seed: int = 0,
        standardize: bool = True,
        range_factor: float = 1e6,
        hold: bool = True,
        categorical: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        numeric: Sequence[Any] | None = None,
        max_levels: int = 64,
        top_k: int | None = None,
        reservoir: int = 0,
        lags: int | str | Lags | AutoLags | None = "auto",
    ) -> None:
        super().__init__(locals())

    def _new_targets(self) -> NumericTarget:
        return NumericTarget(
            family_of(cast("RegressorOptions", self.options).expert), is_number=not self.several_outputs
        )

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """Predict each row of X (n, P) by the regression function, shape (n,), or (n, Q) for several outputs."""
        return predicting.predict(self.learner, self._table(X, feature_names))

    def predict_std_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """Predict the standard deviation of each row's target, of the shape of `predict_array`.

        It is that of the predicted distribution; NaN before anything was learned.
        """
        return predicting.std_array(self.learner, self._table(X, feature_names))

    def predict_interval_array(
        self, X: AnyArray, level: float = 0.9, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Predict for each row of X (n, P) and each output an interval that holds the target with probability `level`.

        Returns:
            (n, Q, 2) lower and upper ends; NaN before anything was learned.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        return predicting.interval_array(self.learner, self._table(X, feature_names), level)


class ClassifierArguments(MixtureOfExperts):
    """Constructor of the classifier."""

    options_type: ClassVar = ClassifierOptions

    def __init__(
        self,
        n_experts: int | str | Auto = 4,
        *,
        degree: int = 1,
        gate_degree: int = 1,
        classes: Sequence[Any] | None = None,
        max_classes: int = 100,
        schedule: str | Schedule | None = None,
        bound: Bound = "adaptive",
        events_per_coefficient: float = 0.0,
        prior_strength: float = 0.04,
        warmup: int | None = None,
        averaging: str | Averaging | None = "polyak",
        serve: Serve = "portfolio",
        curved: Curved = "auto",
        drift: str | PageHinkley | None = "page_hinkley",
        seed: int = 0,
        standardize: bool = True,
        range_factor: float = 1e6,
        hold: bool = True,
        categorical: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        numeric: Sequence[Any] | None = None,
        max_levels: int = 64,
        top_k: int | None = None,
        reservoir: int = 0,
        lags: str | AutoLags | None = "auto",
    ) -> None:
        super().__init__({**locals(), "classes": plain_labels(classes)})


def complete(estimator: AnyClass) -> AnyClass:
    """Document the arguments of an estimator, and let errors about them name it, and not the base that takes them."""
    document(estimator)
    made: Any = estimator
    construct = made.__init__
    own = signature(construct)

    @wraps(construct)
    def init(self: Any, *values: Any, **named: Any) -> None:
        try:
            own.bind(self, *values, **named)
        except TypeError as error:
            hints = [_hint(name, own.parameters) for name in named if name not in own.parameters]
            hints += ["; give all but the first by name"] * (len(values) > 1)
            raise TypeError(f"{estimator.__name__}: {error}{hints[0] if hints else ''}") from None
        construct(self, *values, **named)

    made.__init__ = init
    return estimator


def _hint(name: str, known: Iterable[str]) -> str:
    """Return what a user may have meant by the name of an argument that there is not."""
    owners = [kind for kind, options in MODELS.items() if name in options.model_fields]
    if len(owners) == 1:
        return f", which only a {owners[0]} has"
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def plain_labels(labels: Any) -> Any:
    """Return labels in a list or an array as a tuple of Python's own values, and anything else as it is."""
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    return tuple(map(as_python, labels)) if isinstance(labels, list | tuple) else labels
