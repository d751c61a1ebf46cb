"""Targets of a model: one number, several numbers, or a label."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from streammoe.checked import as_json, names_of
from streammoe.columns.values import NO_TARGET, check_name, number, type_in_words
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.experts import Family
from streammoe.model.checks import by_rows, finite_array, names_in, rectangle
from streammoe.options import is_label
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray

Label: TypeAlias = str | int | bool
PLAIN_LABELS = frozenset({str, int, bool})
"""Types of labels of which nothing has to be checked once they are known."""
CLASSES = 'for classes use MoEClassifier (model.kind = "classifier")'
"""What to do with a target that is text."""


class Targets(ABC):
    """The format of targets, for users and within the model.

    Attributes:
        family: family of the experts.
        names: names of several outputs, or the labels encountered so far, in the order of the parameters.
    """

    are_labels: ClassVar[bool] = False
    """Whether targets are labels of classes."""
    is_number: bool = False
    """Whether a target is one number, which has no name."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.set_names(())

    def set_names(self, names: Iterable[Any]) -> None:
        """Set the names of the outputs, or the labels."""
        self.names = list(names)

    @property
    def lagged_names(self) -> list[Any]:
        """Names of the outputs in those of lags."""
        return ["y"] if self.is_number else self.names

    @property
    def n_outputs(self) -> int:
        """Q, or the number of classes encountered."""
        return 1 if self.is_number else len(self.names)

    @property
    def most_outputs(self) -> int:
        """Maximum of `n_outputs`."""
        return self.n_outputs

    @property
    def is_fixed(self) -> bool:
        """Whether the outputs that an event must have are known."""
        return self.are_labels or self.n_outputs > 0

    def copy(self, n_outputs: int | None = None) -> Self:
        """Return an independent copy, with only the first so many outputs."""
        other = copy.copy(self)
        other.set_names(self.names[:n_outputs])
        return other

    # -- One event -------------------------------------------------------------------------------------------------

    @abstractmethod
    def read_one(self, y: Any) -> tuple[FloatArray, Label | None]:
        """Read the target of an event as a row of numbers; return it with its label, if that is a new one.

        Raises:
            InvalidEvent: it is not a target, or a label that cannot be added.
        """

    def plain(self, y: Any) -> tuple[float, ...] | None:
        """Return the target of an event, if it is no float, as floats where that takes no time, or None."""
        return None

    @abstractmethod
    def one(self, predictions: FloatArray) -> Any:
        """Convert the prediction for one event, (1, n_outputs), to the user's format."""

    # -- Many events -----------------------------------------------------------------------------------------------

    @abstractmethod
    def check_array(self, y: AnyArray, n: int) -> Any:
        """Check the targets of n rows as users pass them, and return them in the form that `read` takes."""

    @abstractmethod
    def read(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        """Return the targets of n rows as numbers; which rows hold a new label; and why some are rejected."""

    @abstractmethod
    def many(self, predictions: FloatArray) -> AnyArray:
        """Convert predictions (n, n_outputs) to the user's format."""

    def blank(self, n: int) -> FloatArray:
        """Return predictions (n, n_outputs) of a model that has learned nothing."""
        return np.zeros((n, self.n_outputs))

    # -- Outputs that come with events -----------------------------------------------------------------------------

    def add(self, label: Any) -> int:
        """Add a new label and return its index."""
        raise NotImplementedError

    def fix(self, names: Sequence[Any]) -> None:
        """Fix the names of the outputs, in the given order."""
        raise ConfigError(f"set_targets: got {list(names)!r}; the outputs of this model have no names")

    # -- In a checkpoint -------------------------------------------------------------------------------------------

    @abstractmethod
    def arrays(self) -> dict[str, AnyArray]:
        """Return what is known about the outputs as named arrays, for a checkpoint."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore what `arrays` returned."""


class NumericTarget(Targets):
    """Targets that are one number, or several named ones: their names are those of the first event unless fixed before.

    Args:
        family: family of the experts.
        is_number: whether they are one number, which has no name.
    """

    def __init__(self, family: Family, *, is_number: bool) -> None:
        super().__init__(family)
        self.is_number = is_number

    def fix(self, names: Sequence[Any]) -> None:
        """Fix the names of the outputs, in the given order.

        Raises:
            ConfigError: they are fixed already, or a name occurs twice.
            InvalidEvent: a name is neither a string nor an integer.
        """
        names = names_in(names, "set_targets")
        if self.is_number:
            super().fix(names)
        for name in names:
            check_name(name, "output name", "y")
        if self.names:
            raise ConfigError(f"set_targets: the model already has outputs: {self.names!r}")
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"set_targets: got {list(names)!r}; name at least one output, and each once")
        self.set_names(names)

    def names_in(self, given: Iterable[Any]) -> list[Any]:
        """Return the names of the outputs in the order of the parameters; `given` must be all of them, in any order."""
        found = sorted(given, key=str)
        names = self.names or found
        if not names or len(found) != len(names) or set(found) != set(names):
            got = f"the outputs {found!r}" if found else "no outputs"
            rule = f"every event must bring exactly {names!r}" if names else "the first event must bring all outputs"
            msg = f"target: got {got}; {rule}, each once"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        return names

    def read_one(self, y: Any) -> tuple[FloatArray, Label | None]:
        if self.is_number:
            # The first test succeeds for nearly every value.
            return np.array([[y if type(y) is float and y - y == 0.0 else _number(y, "target")]]), None
        if not isinstance(y, Mapping):
            got = type_in_words(y) if y is None else f"{shown(y)}, {type_in_words(y)}"
            msg = f"target: got {got}; it must be a mapping of outputs to numbers"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        return np.array([[_number(y[name], name) for name in self.names_in(y)]]), None

    def one(self, predictions: FloatArray) -> Any:
        values = predictions[0].tolist()
        return values[0] if self.is_number else dict(zip(self.names, values, strict=True))

    def check_array(self, y: AnyArray, n: int) -> FloatArray:
        found = finite_array(_numbers(y), "target")
        if self.is_number and found.shape in {(n,), (n, 1)}:
            return found.reshape(n, 1)
        width = found.shape[1] if found.ndim == 2 else 0
        if self.is_number or not width or len(found) != n or (self.names and width != len(self.names)):
            rule = "hold one number for each row of X"
            if not self.is_number:
                rule = f"be ({n}, {len(self.names) or 'Q'}), one column for each output"
            msg = f"y: got shape {found.shape} for {n} rows; it must {rule}"
            raise InvalidEvent(msg, reason="wrong_shape", feature="target")
        return found

    def read(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        found = np.array(targets, dtype=np.float64)
        return found.reshape(n, self.n_outputs or found.size // max(n, 1)), np.zeros(n, np.bool_), {}

    def many(self, predictions: FloatArray) -> FloatArray:
        return predictions[:, 0].copy() if self.is_number else predictions

    def arrays(self) -> dict[str, AnyArray]:
        return {} if self.is_number else {"encoder.targets": as_json(self.names)}

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        if not self.is_number:
            self.set_names(names_of(arrays, "encoder.targets", (str, int, float, bool)))


class ClassTarget(Targets):
    """Targets that are labels: strings, booleans or numbers; new ones are added as they appear, unless all are given.

    Args:
        family: family of the experts.
        classes: all labels, if they are known in advance.
        max_classes: maximum number of labels.
    """

    are_labels = True

    def __init__(self, family: Family, classes: tuple[Label, ...] | None, max_classes: int) -> None:
        super().__init__(family)
        self.classes = classes
        self.max_classes = max_classes
        self.set_names(map(_plain, classes or ()))

    def set_names(self, names: Iterable[Any]) -> None:
        super().set_names(names)
        self._index: dict[Label, int] = {label: index for index, label in enumerate(self.names)}

    @property
    def most_outputs(self) -> int:
        return self.max_classes if self.classes is None else len(self.classes)

    def read_one(self, y: Any) -> tuple[FloatArray, Label | None]:
        label = _plain(y)
        index = self._index.get(label)
        if index is not None:
            return np.array([[float(index)]]), None
        self._require_room(label)
        return np.zeros((1, 1)), label

    def plain(self, y: Any) -> tuple[float, ...] | None:
        # A known label has been checked. What is equal to one need not be a label, such as a Decimal.
        index = self._index.get(y) if type(y) in PLAIN_LABELS else None
        return None if index is None else (float(index),)

    def one(self, predictions: FloatArray) -> dict[Label, float]:
        return dict(zip(self.names, self.many(predictions)[0].tolist(), strict=True))

    def check_array(self, y: Any, n: int) -> list[Label]:
        # Labels of several types in a list would all become strings.
        found = np.fromiter(y, dtype=object, count=len(y)) if isinstance(y, list | tuple) else np.asarray(y)
        if found.dtype.kind not in "OUSbiuf" or isinstance(y, np.ma.MaskedArray):
            msg = f"y: got values of type {found.dtype}; a label must be a string, a finite number or a boolean"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        if found.shape != (n,):
            msg = f"y: got shape {found.shape} for {n} rows; it must hold one label for each row of X"
            raise InvalidEvent(msg, reason="wrong_shape", feature="target")
        labels: list[Label] = found.tolist()
        return by_rows(_plain, labels) if found.dtype == object else labels

    def read(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        Y = np.zeros((n, 1))
        novel = np.zeros(n, np.bool_)
        rejected: dict[int, InvalidEvent] = {}
        index = self._index
        for at, label in enumerate(targets):
            if label is None:
                Y[at, 0] = np.nan
                continue
            try:
                Y[at, 0] = index[label]
            except (KeyError, TypeError):  # TypeError: not hashable, so not a label
                try:
                    self._require_room(_plain(label))
                except InvalidEvent as error:
                    Y[at, 0] = np.nan
                    rejected[at] = error
                else:
                    novel[at] = True
        return Y, novel, rejected

    def many(self, predictions: FloatArray) -> FloatArray:
        """Return the probability of each label."""
        return np.minimum(predictions, 1.0)  # sums of shares may exceed it by rounding

    def blank(self, n: int) -> FloatArray:
        """Return equal probabilities of all labels that were given."""
        M = self.n_outputs
        return np.full((n, M), 1.0 / M) if M else np.empty((n, 0))

    def add(self, label: Any) -> int:
        plain = _plain(label)
        self._index[plain] = len(self.names)
        self.names.append(plain)
        return self._index[plain]

    def _require_room(self, label: Label) -> None:
        if self.classes is not None:
            msg = f"target: the label {label!r} is not among the classes {self.classes!r}; correct either of them"
            raise InvalidEvent(msg, reason="unknown_class", feature="target")
        if len(self.names) >= self.max_classes:
            msg = (
                f"target: the label {label!r} is new, but max_classes = {self.max_classes} labels are known already; "
                "raise max_classes or, if the target is a number and no class, use MoERegressor "
                '(model.kind = "regressor")'
            )
            raise InvalidEvent(msg, reason="unknown_class", feature="target")

    def arrays(self) -> dict[str, AnyArray]:
        return {"encoder.classes": as_json(self.names)}

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        self.set_names(names_of(arrays, "encoder.classes", (str, int, float, bool)))


def _number(value: object, name: object) -> float:
    """Convert a target to a float; raise `InvalidEvent` if a model cannot learn it."""
    return number(value, name, CLASSES if isinstance(value, str) else NO_TARGET)


def _numbers(y: AnyArray) -> AnyArray:
    """Return targets as they are, but those of any Python objects as floats, as `learn_one` would take them.

    Raises:
        InvalidEvent: one of them is no number; ``row`` is its index.
    """
    found = rectangle(y, "target")
    if found.dtype.kind not in "OUS" or not found.ndim or isinstance(found, np.ma.MaskedArray):
        return found
    rows = found.reshape(len(found), math.prod(found.shape[1:])).tolist()
    numbers = by_rows(lambda row: [_number(value, "target") for value in row], rows)
    return np.array(numbers, dtype=np.float64).reshape(found.shape)


def likeliest(labels: Sequence[Label], probabilities: FloatArray) -> AnyArray:
    """Return the likeliest label of each row, given (n, M) probabilities; None before a label is known."""
    if not labels:
        return np.full(len(probabilities), None, dtype=object)
    known = np.empty(len(labels) + 1, dtype=object)  # one more, so that labels of one length are no second axis
    known[:-1] = labels
    found: AnyArray = known[probabilities.argmax(axis=1)]
    kind = {type(label) for label in labels}
    return found.astype(kind.pop()) if len(kind) == 1 and not kind & {str} else found


def _plain(label: Any) -> Label:
    """Return a label as a plain Python value.

    Raises:
        InvalidEvent: it is not a label.
    """
    if isinstance(label, np.generic) and not isinstance(label, np.timedelta64 | np.datetime64):
        label = label.item()
    if isinstance(label, int):
        number(label, "target", "give it as text")  # one of too many digits could be neither written nor read
    if not is_label(label):
        problem = "is not finite" if isinstance(label, float) else f"is {type_in_words(label)}"
        subject = "the label" if label is None else shown(label)
        remedy = " (convert a Decimal with float() or str())" if isinstance(label, Decimal) else ""
        msg = f"target: {subject} {problem}; a label must be a string, a finite number or a boolean{remedy}"
        raise InvalidEvent(msg, reason="wrong_type" if not isinstance(label, float) else "not_finite", feature="target")
    plain: Label = label
    return plain
