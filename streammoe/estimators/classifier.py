"""Classification: any number of classes, known ahead or met on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

import numpy as np
from river import base

from streammoe.checked import as_json, names_of
from streammoe.engine.state import with_class
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators.base import MixtureOfExperts
from streammoe.estimators.frames import frame_like, series_like, table_of
from streammoe.estimators.parameters import experts_in
from streammoe.experts import Family, families
from streammoe.options import (
    Auto,
    Averaging,
    ClassifierOptions,
    FeatureOptions,
    PageHinkley,
    WarmUp,
    documented,
    is_label,
)
from streammoe.schedules import Schedule
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray
from streammoe.values import a_kind, number

if TYPE_CHECKING:
    import pandas as pd

Label: TypeAlias = str | int | bool


@documented(ClassifierOptions, FeatureOptions)
class MoEClassifier(MixtureOfExperts, base.MiniBatchClassifier):
    """Mixture of multinomial logistic experts with a learned softmax gate, trained one event at a time.

    Learns P(y = m | x) as Σ_k g_k(x) softmax_m(C_k φ(x)) by incremental stochastic majorization-minimization. A bounded
    warm-up buffer is fitted in batch from several starts first; one recursive expert predicts meanwhile, or in a
    long warm-up a mixture fitted quickly to its first part. Labels are strings, booleans or numbers; without `classes`
    they are added as they appear.

    Examples:
    --------
    >>> from river import datasets, metrics, preprocessing
    >>> from streammoe import MoEClassifier
    >>> model = preprocessing.StandardScaler() | MoEClassifier(n_experts=2, warmup=300)
    >>> metric = metrics.Accuracy()
    >>> for x, y in datasets.Phishing():
    ...     metric.update(y, model.predict_one(x))
    ...     model.learn_one(x, y)
    >>> metric.get() > 0.88
    True

    References:
    ----------
    Tran, Nguyen, Fort et al., "Revisiting Incremental Stochastic Majorization-Minimization Algorithms with
    Applications to Mixture of Experts", arXiv 2601.19811, Algorithms 1 and 3.
    """

    options_type: ClassVar = ClassifierOptions
    growing: ClassVar[tuple[str, ...]] = ("_labels", "_index")

    def __init__(
        self,
        n_experts: int | str | Auto = 4,
        *,
        degree: int = 1,
        gate_degree: int = 1,
        classes: Sequence[Any] | None = None,
        max_classes: int = 100,
        schedule: str | Schedule | None = None,
        bound: str = "adaptive",
        prior_strength: float = 0.04,
        warmup: int | WarmUp | None = None,
        averaging: str | Averaging | None = "polyak",
        drift: str | PageHinkley | None = None,
        seed: int = 0,
        standardize: bool = False,
        range_factor: float = 1e6,
        categorical: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        max_levels: int = 64,
        top_k: int | None = None,
        batch_size: int = 1,
        reseed: str = "off",
    ) -> None:
        self._labels: list[Label] = []
        self._index: dict[Label, int] = {}
        super().__init__(
            n_experts=n_experts,
            degree=degree,
            gate_degree=gate_degree,
            classes=tuple(classes) if isinstance(classes, list) else classes,
            max_classes=max_classes,
            schedule=schedule,
            bound=bound,
            prior_strength=prior_strength,
            warmup=warmup,
            averaging=averaging,
            drift=drift,
            seed=seed,
            standardize=standardize,
            range_factor=range_factor,
            categorical=categorical,
            timestamps=timestamps,
            max_levels=max_levels,
            top_k=top_k,
            batch_size=batch_size,
            reseed=reseed,
        )
        for label in self.classes or ():
            self._add(label)
        self._options = self._new_options()

    classes: tuple[Label, ...] | None
    max_classes: int

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"n_experts": 2, "warmup": WarmUp(60, restarts=1)}
        yield {"n_experts": 3, "warmup": 0}

    def set_max_classes(self, max_classes: int) -> None:
        """Take in so many labels from now on.

        Raises:
            ConfigError: the constructor would not take it.
        """
        self._change("max_classes", max_classes)

    @property
    def _multiclass(self) -> bool:
        return True

    @property
    def _family(self) -> Family:
        return families()["categorical"]

    @property
    def _n_outputs(self) -> int:
        return len(self._labels)

    @property
    def _most_outputs(self) -> int:
        return self.max_classes if self.classes is None else len(self.classes)

    @property
    def output_names(self) -> list[Any]:
        return list(self._labels)

    @property
    def class_labels(self) -> list[Label]:
        """The labels met so far, or all that were given, in the order of the parameters."""
        return list(self._labels)

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Label, w: float = 1.0) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value that would poison the model, or a label that cannot be taken in; nothing was changed.
        """
        label = _plain(y)
        index = self._index.get(label)
        if index is None:
            self._refuse_unless_room(label)
            self._learn_event(x, np.zeros((1, 1)), w, new_label=label)
        else:
            self._learn_event(x, np.array([[float(index)]]), w)

    def predict_proba_one(self, x: Mapping[Any, Any], **kwargs: Any) -> dict[Label, float]:
        """The probability of each label at `x`; empty before a label is known."""
        scores, _ = self._score(self._encoder.row(x), None)
        return dict(zip(self._labels, self._or_even(scores.predictions)[0].tolist(), strict=True))

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Label | None:
        """The likeliest label at `x`; None before a label is known."""
        probabilities = self.predict_proba_one(x)
        return max(probabilities, key=probabilities.__getitem__) if probabilities else None

    def responsibilities_one(self, x: Mapping[Any, Any], y: Label) -> FloatArray:
        """(K,) how much each expert answers for an event, τ_k ([MM] eq. 15); NaN during warm-up.

        Raises:
            InvalidEvent: the label is not known.
        """
        label = _plain(y)
        if label not in self._index:
            msg = f"target: the label {label!r} is not known; the model knows {self._labels!r}"
            raise InvalidEvent(msg, reason="unknown_class", feature="target")
        return self._responsibilities(x, np.array([[float(self._index[label])]]))

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_proba_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """The probability of each of `class_labels` at each row of X (n, P), shape (n, M); learns nothing."""
        return self._or_even(self._predict_rows(X, feature_names))

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> AnyArray:
        """The likeliest label at each row of X (n, P), shape (n,), None before a label is known; learns nothing."""
        return self._likeliest(self.predict_proba_array(X, feature_names=feature_names))

    def learn_many(self, X: pd.DataFrame, y: pd.Series, w: AnyArray | None = None) -> None:
        """Learn the rows of a frame in order; equals a loop over `learn_one`, bit for bit.

        Raises:
            InvalidEvent: a row that would poison the model; its index is in ``row``.
        """
        self._learn_table(table_of(self, X), np.asarray(y), None if w is None else np.asarray(w))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The probability of each label at each row of a frame, one column for each, under the frame's index."""
        return frame_like(X, self._or_even(self._predict_table(table_of(self, X))), self._labels)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The likeliest label at each row of a frame, under the frame's index."""
        return series_like(X, self._likeliest(self._or_even(self._predict_table(table_of(self, X)))))

    def _or_even(self, probabilities: FloatArray) -> FloatArray:
        """Before anything was learned, every label that was given is as likely."""
        if self._state is None and self._warm_up is None and self._labels:
            return np.full((len(probabilities), len(self._labels)), 1.0 / len(self._labels))
        return np.minimum(probabilities, 1.0)  # sums of shares may be a rounding above it

    def _likeliest(self, probabilities: FloatArray) -> AnyArray:
        labels = np.empty(len(self._labels) + 1, dtype=object)
        labels[:-1] = self._labels
        if not self._labels:
            return np.full(len(probabilities), None, dtype=object)
        found: AnyArray = labels[probabilities.argmax(axis=1)]
        kind = {type(label) for label in self._labels}
        return found.astype(kind.pop()) if len(kind) == 1 and not kind & {str} else found

    # -- Labels ----------------------------------------------------------------------------------------------------

    def _array_targets(self, y: Any, n: int) -> list[Label]:
        # Labels of several types in a list would all become strings.
        found = np.fromiter(y, dtype=object, count=len(y)) if isinstance(y, list | tuple) else np.asarray(y)
        if found.dtype.kind not in "OUSbiuf" or isinstance(y, np.ma.MaskedArray):
            msg = f"y: got values of type {found.dtype}; a label must be a string, a finite number or a boolean"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        if found.shape != (n,):
            msg = f"y: got shape {found.shape} for {n} rows; it must hold one label for each row of X"
            raise InvalidEvent(msg, reason="wrong_shape", feature="target")
        labels: list[Label] = found.tolist()
        if found.dtype == object:
            for row, label in enumerate(labels):
                try:
                    labels[row] = _plain(label)
                except InvalidEvent as error:
                    msg = f"row {row}: {error}"
                    raise InvalidEvent(msg, reason=error.reason, feature=error.feature, row=row) from None
        return labels

    def _read_targets(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        Y = np.zeros((n, 1))
        novel = np.zeros(n, np.bool_)
        refused: dict[int, InvalidEvent] = {}
        index = self._index
        for at, label in enumerate(targets):
            if label is None:
                Y[at, 0] = np.nan
                continue
            try:
                Y[at, 0] = index[label]
            except (KeyError, TypeError):  # TypeError: not hashable, so no label
                try:
                    self._refuse_unless_room(_plain(label))
                except InvalidEvent as error:
                    Y[at, 0] = np.nan
                    refused[at] = error
                else:
                    novel[at] = True
        return Y, novel, refused

    def _check_labels(self, targets: Any, novel: BoolArray) -> None:
        new: set[Label] = set()
        for at in np.flatnonzero(novel):
            new.add(targets[at])
            if len(self._labels) + len(new) > self.max_classes:
                error = self._no_room(targets[at])
                error.row = int(at)
                raise error

    def _refuse_unless_room(self, label: Label) -> None:
        if self.classes is not None:
            msg = f"target: the label {label!r} is not among the classes {self.classes!r}; mend the record or classes"
            raise InvalidEvent(msg, reason="unknown_class", feature="target")
        if len(self._labels) >= self.max_classes:
            raise self._no_room(label)

    def _no_room(self, label: Label) -> InvalidEvent:
        msg = (
            f"target: the label {label!r} is new, and max_classes = {self.max_classes} labels are known already; raise "
            "max_classes, or check that the target really is a class"
        )
        return InvalidEvent(msg, reason="unknown_class", feature="target")

    def _add(self, label: Label) -> int:
        index = len(self._labels)
        self._labels.append(label)
        self._index[label] = index
        return index

    def _admit(self, targets: Any, at: int) -> float:
        index = self._add(_plain(targets[at]))
        n_features = self._encoder.n_expert_features
        rng = np.random.default_rng((self.seed, index))
        if self._warm_up is not None:
            self._warm_up.add_class(rng, n_features)
        gamma = self.step_size
        self._grow(lambda state: with_class(state, rng, n_features, gamma))
        return float(index)

    # -- Keeping it, and going on from given statistics ------------------------------------------------------------

    def _output_arrays(self) -> dict[str, AnyArray]:
        return {"encoder.classes": as_json(self._labels)}

    def _restore_outputs(self, arrays: Mapping[str, AnyArray]) -> None:
        self._labels = names_of(arrays, "encoder.classes", (str, int, float, bool))
        self._index = {label: index for index, label in enumerate(self._labels)}

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        feature_names: Sequence[Any],
        classes: Sequence[Label] | None = None,
        average: Mapping[str, AnyArray] | None = None,
        n_average: int | None = None,
        **arguments: Any,
    ) -> Self:
        """A model that goes on from exactly these statistics, without warm-up.

        Args:
            parameters: as `parameters` returns them; ``decay``, ``prior_weight``, ``prior`` and ``scale`` may be
                left out.
            feature_names: names of the columns, in the order of the parameters.
            classes: labels in the order of the parameters, the reference first; 0, 1, … without it.
            average: ``gate`` and ``experts`` that serve; without it the average begins anew.
            n_average: iterates in `average`.
            **arguments: of the constructor; `n_experts` follows from the parameters.

        Raises:
            ConfigError: an entry is missing or has a shape that does not fit the others.
        """
        experts = experts_in(parameters)
        n_classes = experts.shape[1] + 1
        labels = tuple(range(n_classes)) if classes is None else tuple(classes)
        if len(labels) != n_classes:
            raise ConfigError(f"classes: got {len(labels)} labels for parameters of {n_classes} classes")
        model = cls(**{"n_experts": len(experts), "classes": labels, **arguments})
        model._continue_from(parameters, feature_names, average, n_average)
        return model


def _plain(label: Any) -> Label:
    """A label as a plain Python value.

    Raises:
        InvalidEvent: it is no label.
    """
    if isinstance(label, np.generic) and not isinstance(label, np.timedelta64 | np.datetime64):
        label = label.item()
    if not is_label(label):
        problem = "is not finite" if isinstance(label, float) else f"is {a_kind(label)}"
        subject = "the label" if label is None else shown(label)
        msg = f"target: {subject} {problem}; a label must be a string, a finite number or a boolean"
        raise InvalidEvent(msg, reason="wrong_type" if not isinstance(label, float) else "not_finite", feature="target")
    if isinstance(label, int):
        number(label, "target")  # one of too many digits could be neither written nor read
    plain: Label = label
    return plain
