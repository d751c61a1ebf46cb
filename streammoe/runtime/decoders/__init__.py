"""Decoders: a batch's bytes to arrays.

Each format decodes on two paths. The fast one takes what a compiled parser accepts beyond doubt; whatever it refuses
goes record by record through the exact one, which alone decides what is refused and why. Both give the same floats,
so that what is learned does not depend on the company in which a record came.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn, Protocol

import numpy as np

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.ports import Batch
from streammoe.types import FloatArray, IntArray


class Rejected(NamedTuple):
    """A record that carries no event."""

    index: int  # type: ignore[assignment]  # nobody searches this tuple
    """Which record of the batch."""
    reason: str
    """``malformed``, ``wrong_type``, ``not_finite`` or ``out_of_range``."""
    detail: str
    """A sentence naming the field, the value and the rule."""


class Decoded(NamedTuple):
    """The events of a batch, in order."""

    rows: IntArray
    """Which record of the batch each event came from, shape (n,)."""
    X: FloatArray
    """Features, shape (n, P), C-contiguous; NaN where missing."""
    Y: FloatArray
    """Targets, shape (n, Q), C-contiguous; NaN where there is none."""
    rejected: list[Rejected]


class Decoder(Protocol):
    """One format. Holds no state that shapes a result."""

    def names(self, batch: Batch, i: int) -> dict[str, object]:
        """The i-th record as names and raw values.

        Raises:
            InvalidEvent: the record is ``malformed``.
        """
        ...

    def decode(self, batch: Batch, columns: Sequence[str], targets: Sequence[str]) -> Decoded:
        """All records of `batch`.

        Args:
            batch: the records.
            columns: names of the features, in the order of the columns of ``X``; one that a record lacks is missing.
            targets: names of the targets, in the order of the columns of ``Y``.

        Raises:
            SourceError: the header lacks a target.
        """
        ...


class TooLarge(str):
    """A number, as it was written, that no float can hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def decoder(format: str) -> Decoder:
    """The decoder for `format`.

    Raises:
        ConfigError: there is none.
    """
    if format not in _DECODERS:
        raise ConfigError(f"there is no decoder for format {format!r}; choose one of {', '.join(_DECODERS)}")
    return _DECODERS[format]()


def to_row(
    values: Mapping[str, object], columns: Sequence[str], targets: Sequence[str], *, text: bool = False
) -> tuple[list[float], list[float]]:
    """One record's features and targets: the exact path of every format.

    Args:
        values: the record, raw; other names than those asked for are ignored.
        columns: names of the features.
        targets: names of the targets.
        text: whether the format writes numbers as text, and missing values as empty text.

    Returns:
        Floats in the order of the names; NaN where the value is absent or ``None``.

    Raises:
        InvalidEvent: a value is not a finite number.

    >>> to_row({"x": 2, "y": None}, ["x", "z"], ["y"])
    ([2.0, nan], [nan])
    """
    get = values.get
    return [_number(name, get(name), text) for name in columns], [_number(name, get(name), text) for name in targets]


def collect(values: FloatArray, features: int, rejected: list[Rejected]) -> Decoded:
    """The result from all records' `values`, shape (records, features + targets), less those `rejected`."""
    rows = np.delete(np.arange(len(values)), [record.index for record in rejected])
    good = values[rows] if rejected else values
    return Decoded(rows, np.ascontiguousarray(good[:, :features]), np.ascontiguousarray(good[:, features:]), rejected)


def is_utf8(data: bytes) -> bool:
    """Whether `data` is well-formed UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def text_of(record: bytes) -> str:
    """A record's text.

    Raises:
        InvalidEvent: it is not UTF-8.
    """
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise malformed(record, f"must be UTF-8, and byte {error.start} is not") from None


def malformed(record: str | bytes, rule: str) -> InvalidEvent:
    """The error for a record that cannot be taken apart."""
    return InvalidEvent(f"record {_shortened(record)} {rule}", reason="malformed")


# What Arrow's csv reader takes for a finite number, and float() reads to the same bits.
_NUMBER = re.compile(r"[ \t]*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*")
_NOT_FINITE = re.compile(r"\s*[+-]?(?:nan(?:\(\w*\))?|inf(?:inity)?)\s*", re.IGNORECASE)


def _number(name: str, value: object, text: bool) -> float:
    if value is None or (text and value == ""):
        return math.nan
    if isinstance(value, str) and not isinstance(value, TooLarge):
        if text and _NUMBER.fullmatch(value):
            number = float(value)
            if math.isinf(number):
                _refuse(name, TooLarge(value), "out_of_range")
            return number
        _refuse(name, value, "not_finite" if _NOT_FINITE.fullmatch(value) else "wrong_type")
    if isinstance(value, TooLarge):
        _refuse(name, value, "out_of_range")
    if not isinstance(value, bool | int | float):
        _refuse(name, value, "wrong_type")
    try:
        number = float(value)
    except OverflowError:
        _refuse(name, value, "out_of_range")
    if not math.isfinite(number):
        _refuse(name, value, "not_finite")
    return number


_RULES = {
    "wrong_type": "must be a number, such as -1.5e3, or absent",
    "not_finite": "must be finite",
    "out_of_range": "must fit into a 64-bit float, that is, lie within ±1.8e308",
}


def _refuse(name: str, value: object, reason: str) -> NoReturn:
    raise InvalidEvent(f"field {name!r} is {_shortened(value)}; it {_RULES[reason]}", reason=reason, feature=name)


def _shortened(value: object, width: int = 80) -> str:
    shown = repr(value[:width] if isinstance(value, str | bytes) else value)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def _csv() -> Decoder:
    from streammoe.runtime.decoders.csv import CsvDecoder

    return CsvDecoder()


def _jsonl() -> Decoder:
    from streammoe.runtime.decoders.jsonl import JsonlDecoder

    return JsonlDecoder()


_DECODERS: dict[str, Callable[[], Decoder]] = {"csv": _csv, "jsonl": _jsonl}
