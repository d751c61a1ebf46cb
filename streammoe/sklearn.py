"""The estimators as scikit-learn's: each holds one of River's in `model_`, and can be exchanged for it."""

from __future__ import annotations

import copy
import os
from abc import abstractmethod
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ClassVar, Concatenate, ParamSpec, Self

import numpy as np

from streammoe import batch, estimators
from streammoe.errors import ConfigError, not_installed
from streammoe.estimators.arguments import complete
from streammoe.estimators.frames import frame_of
from streammoe.options import ClassifierOptions, RegressorOptions
from streammoe.text import some_of
from streammoe.types import AnyArray, FloatArray

try:
    import pandas as pd
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import assert_all_finite, check_array, check_consistent_length, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    package = "pandas" if error.name == "pandas" else "scikit-learn"
    raise not_installed("streammoe.sklearn", package, "sklearn") from error

__all__ = ["MoEClassifier", "MoERegressor", "from_stream", "load"]

P = ParamSpec("P")


def load(path: str | os.PathLike[str]) -> MoERegressor | MoEClassifier:
    """Load what `save` wrote, of these or of River's estimators, or the newest checkpoint of a daemon's folder.

    Raises:
        CheckpointError: there is none, it is damaged, or it needs a newer version.
    """
    return from_stream(estimators.load(path))


def from_stream(model: estimators.MixtureOfExperts) -> MoERegressor | MoEClassifier:
    """Return an estimator that holds a copy of River's; it is fitted unless that has learned nothing.

    It expects the columns of frames in the order of its `feature_names_in_`, which is the model's own.

    Raises:
        ConfigError: it is no model of this package, or its labels are of several types.
    """
    if problem := estimators.problem_of(model):
        raise ConfigError(f"from_stream: {problem}")
    kind = MoEClassifier if model.is_classifier else MoERegressor
    if model.is_classifier and len({type(label) for label in model.output_names}) > 1:
        labels = some_of(model.output_names)
        raise ConfigError(f"from_stream: the labels {labels} are of several types, which scikit-learn cannot take")
    river: type[Any] = type(model)
    usual, arguments = river(), kind().get_params(deep=False)
    for name in arguments:  # a checkpoint has written defaults out
        mine, default = (getattr(each.options, name, getattr(each, name)) for each in (model, usual))
        if mine != default:
            arguments[name] = getattr(model, name)
    made = kind(**arguments)
    if model.n:
        made.model_, made.n_features_in_ = copy.copy(model), len(model.fields)
        if {*model.fields} != {f"x{j}" for j in range(len(model.fields))}:  # the names of columns of arrays
            made.feature_names_in_ = np.array(model.fields, dtype=object)
    return made


def _arguments_of(kind: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the arguments of another class, which `clone` and type checkers read; it gets all by name."""

    def decorated(construct: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(vars(kind)["__init__"])
        def init(self: Any, /, *values: P.args, **named: P.kwargs) -> None:
            given = signature(kind).bind(*values, **named)
            given.apply_defaults()
            construct(self, **given.arguments)

        return init

    return decorated


class _Estimator(BaseEstimator):
    """What both estimators do: check as scikit-learn asks, and leave everything else to `model_`."""

    model_: Any
    n_features_in_: int
    feature_names_in_: AnyArray

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit all rows at once, as `streammoe.batch.fit` does; what was learned before is forgotten.

        Args:
            X: (n, P) array or frame.
            y: (n,) numbers or labels, or (n, Q) numbers.
            sample_weight: (n,) in [0, 1e6].

        Raises:
            ValueError: an argument, a column or a value is invalid.
        """
        rows, targets, w = self._read(X, y, sample_weight, is_first=True)
        self.model_ = batch.fit(self._blank(y, targets), rows, targets, w=w).model
        return self

    def to_stream(self) -> Any:
        """Return a copy of the River estimator, which continues event by event."""
        check_is_fitted(self, "model_")
        return copy.copy(self.model_)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model durably to one file, for `load`, `streammoe.load` and the daemon's `--from-model`.

        Raises:
            OSError: the file cannot be written.
        """
        self.to_stream().save(path)

    @abstractmethod
    def _targets(self, y: Any) -> AnyArray:
        """Check targets, and return them as an array."""

    @abstractmethod
    def _blank(self, y: Any, targets: AnyArray, **arguments: Any) -> estimators.MixtureOfExperts:
        """Return a River estimator for such targets, with arguments that precede its own."""

    def _learn(self, X: Any, y: Any, sample_weight: Any, **arguments: Any) -> None:
        """Learn rows in their order, by a new River estimator with these arguments if there is none."""
        is_first = not hasattr(self, "model_")
        rows, targets, w = self._read(X, y, sample_weight, is_first=is_first)
        model = self._blank(y, targets, **arguments) if is_first else self.model_
        model.learn_many(rows, targets, w)
        self.model_ = model

    def _read(self, X: Any, y: Any, weights: Any, *, is_first: bool) -> tuple[Any, AnyArray, FloatArray | None]:
        rows = self._rows(X, y, is_first=is_first)
        targets, w = self._targets(y), None
        if weights is not None:
            w = check_array(weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight", estimator=self)
        check_consistent_length(rows, targets, w)
        return rows, targets, w

    def _rows(self, X: Any, y: Any = "no_validation", *, is_first: bool = False) -> Any:
        """Return rows as a frame: one that is given, whose columns the model itself reads, or of an array.

        If `is_first`, the columns are remembered, and else compared.
        """
        if not is_first:
            check_is_fitted(self, "model_")
        if frame_of(X, "X") is None:
            is_open = getattr(getattr(X, "dtype", None), "kind", "O") in "OU"
            has_text = is_open and any(isinstance(value, str) for value in np.asarray(X, dtype=object).flat)
            dtype = object if has_text else "numeric"
            X = check_array(X, dtype=dtype, ensure_all_finite="allow-nan", input_name="X", estimator=self)
        validate_data(self, X, y, reset=is_first, skip_check_array=True)
        names = getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)])
        if isinstance(X, np.ndarray):
            return pd.DataFrame(X, columns=names)
        return X.set_axis(names, axis=1) if isinstance(X, pd.DataFrame) else X


@complete
class MoERegressor(RegressorMixin, _Estimator):
    """Mixture of linear experts with a learned softmax gate, for one output or several, fitted by EM.

    With a `y` of two dimensions there are several outputs, and `model_` is a `streammoe.MoEMultiTargetRegressor`.
    Frames may hold categories, times and missing values, arrays texts and missing values; `n_features_in_` is the
    number of columns, `feature_names_in_` their names if all are texts.

    Examples:
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> model = MoERegressor(n_experts=2).fit(X, np.where(X[:, 0] > 0, X[:, 1], -X[:, 1]))
    >>> model.predict([[1.0, 0.5]]).round(1)
    array([0.5])
    """

    options_type: ClassVar = RegressorOptions

    @_arguments_of(estimators.MoERegressor)
    def __init__(self, **arguments: Any) -> None:
        self.__dict__.update(arguments)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Continue with these rows, in their order, as River's estimators learn.

        Raises:
            ValueError: the columns are other ones than before, or a value is invalid; nothing was learned.
        """
        self._learn(X, y, sample_weight)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict each row by the regression function, (n,), or (n, Q) for several outputs.

        With `return_std` also the standard deviations of the predicted distributions, of the same shape.
        """
        rows = self._rows(X)
        found = self.model_.predict_array(rows)
        return (found, self.model_.predict_std_array(rows)) if return_std else found

    def predict_interval(self, X: Any, level: float = 0.9) -> FloatArray:
        """Predict for each row an interval that holds the target with probability `level`, (n, 2) or (n, Q, 2).

        Raises:
            ConfigError: a level outside (0, 1).
        """
        found: FloatArray = self.model_.predict_interval_array(self._rows(X), level)
        return found if self.model_.several_outputs else found[:, 0]

    def _targets(self, y: Any) -> FloatArray:
        found: FloatArray = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        return found

    def _blank(self, y: Any, targets: AnyArray, **arguments: Any) -> estimators.MixtureOfExperts:
        if targets.ndim == 1:
            return estimators.MoERegressor(**self.get_params(deep=False))
        model = estimators.MoEMultiTargetRegressor(**self.get_params(deep=False))
        names = [name for name in getattr(y, "columns", ()) if isinstance(name, str)]
        if len(names) == targets.shape[1]:
            model.set_targets(names)  # in this order, which is that of predictions
        return model


@complete
class MoEClassifier(ClassifierMixin, _Estimator):
    """Mixture of multinomial logistic experts with a learned softmax gate, fitted by EM.

    Frames may hold categories, times and missing values, arrays texts and missing values; `n_features_in_` is the
    number of columns, `feature_names_in_` their names if all are texts.

    Examples:
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> model = MoEClassifier(n_experts=2).fit(X, np.where(X[:, 0] > X[:, 1], "high", "low"))
    >>> model.predict([[1.0, -1.0]]).tolist()
    ['high']
    """

    options_type: ClassVar = ClassifierOptions
    classes: Any

    @_arguments_of(estimators.MoEClassifier)
    def __init__(self, **arguments: Any) -> None:
        self.__dict__.update(arguments)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Continue with these rows, in their order, as River's estimators learn.

        The first call needs all labels that there will be, in `classes` unless the constructor has them.

        Raises:
            ValueError: the columns are other ones than before, or a label or a value is invalid; nothing was learned.
        """
        if hasattr(self, "model_"):
            for name, labels in (("y", y), ("classes", classes)):
                if labels is not None and len(unknown := np.setdiff1d(labels, self.classes_)):
                    rule = f"the labels are {some_of(self.classes_)}; name all of them in the first call of partial_fit"
                    raise ConfigError(f"{name}: got {some_of(unknown)}; {rule}")
        elif self.classes is None and classes is None:
            raise ConfigError("classes: missing in the first call of partial_fit; give all labels that there will be")
        self._learn(X, y, sample_weight, **({} if classes is None else {"classes": classes}))
        return self

    @property
    def classes_(self) -> AnyArray:
        """All labels, sorted."""
        return np.unique(self.model_.output_names)

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict the probability of each of `classes_`, (n, M)."""
        rows = self._rows(X)
        found: FloatArray = self.model_.predict_proba_array(rows)
        return found[:, [self.model_.output_names.index(label) for label in self.classes_.tolist()]]

    def predict(self, X: Any) -> AnyArray:
        """Predict the likeliest label of each row, (n,)."""
        likeliest, labels = self.predict_proba(X).argmax(axis=1), self.classes_
        return labels[likeliest]  # type: ignore[no-any-return]

    def _targets(self, y: Any) -> AnyArray:
        found: AnyArray = column_or_1d(y, warn=True)
        assert_all_finite(found, input_name="y")
        check_classification_targets(found)
        return found

    def _blank(self, y: Any, targets: AnyArray, **arguments: Any) -> estimators.MixtureOfExperts:
        return estimators.MoEClassifier(**{**self.get_params(deep=False), **arguments})
