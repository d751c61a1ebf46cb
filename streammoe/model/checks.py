"""Validation of arrays and weights that users pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

LARGEST_WEIGHT = 1e6
"""Only the ratios of weights matter, so a larger one is a mistake."""


def is_whole(value: object, least: int) -> bool:
    """Return whether `value` is an integer of at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_amount(value: object) -> bool:
    """Return whether `value` is a finite number of at least 0."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0.0 <= value < math.inf)


def event_weight(w: object) -> float:
    """Validate the weight of an event, which must be in [0, 1e6].

    Raises:
        InvalidEvent: it is out of range or not a number.
    """
    if not isinstance(w, float | int | np.floating | np.integer):
        reason = "wrong_type"
    elif 0.0 <= w <= LARGEST_WEIGHT:
        return float(w)
    else:
        reason = "out_of_range" if isinstance(w, int | np.integer) or math.isfinite(w) else "not_finite"
    msg = f"w: got {shown(w)}; the weight of an event must be a number in [0, {LARGEST_WEIGHT:g}]; 1 is the default"
    raise InvalidEvent(msg, reason=reason, feature="w")


def event_weights(weights: AnyArray | None, n: int) -> FloatArray:
    """Validate the weights of n events; by default they are 1.

    Raises:
        InvalidEvent: one of them is out of range; ``row`` is its index.
    """
    if weights is None:
        return np.ones(n)
    found = finite_array(weights, "w")
    if found.shape != (n,):
        msg = f"w: got shape {found.shape} for {n} rows; it must hold one number for each row of X"
        raise InvalidEvent(msg, reason="wrong_shape", feature="w")
    bad = np.flatnonzero((found < 0.0) | (found > LARGEST_WEIGHT))
    if bad.size:
        row = int(bad[0])
        msg = f"row {row}: the weight {found[row]:g} is not in [0, {LARGEST_WEIGHT:g}]; 1 is the default"
        raise InvalidEvent(msg, reason="out_of_range", feature="w", row=row)
    return found


def by_rows(read: Callable[[Any], Any], rows: Iterable[Any]) -> list[Any]:
    """Return what a function makes of each row; the first that it rejects with `InvalidEvent` has its index there."""
    found = []
    for row, value in enumerate(rows):
        try:
            found.append(read(value))
        except InvalidEvent as error:
            raise error.at_row(row) from None
    return found


def names_in(names: object, what: str) -> list[Any]:
    """Convert a collection of names to a list, with NumPy strings and integers as Python's.

    Raises:
        ConfigError: it is not a collection of names.
    """
    if isinstance(names, np.ndarray):
        names = names.tolist()
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ConfigError(f"{what}: got {shown(names)}; it must be a list of names")
    return list(names)


def rectangle(values: AnyArray, what: str) -> AnyArray:
    """Convert values to an array of any type.

    Raises:
        InvalidEvent: the rows differ in length.
    """
    try:
        return np.asanyarray(values)
    except ValueError:
        msg = f"{what}: the rows differ in length; give a rectangular array of numbers"
        raise InvalidEvent(msg, reason="wrong_shape", feature=what) from None


def finite_array(values: AnyArray, what: str, names: Sequence[Any] | None = None) -> FloatArray:
    """Copy values as float64 in C order; raise `InvalidEvent` for the first row with anything but finite numbers."""
    if isinstance(values, np.ma.MaskedArray):
        msg = f"{what}: got a masked array; remove or fill masked rows"
        raise InvalidEvent(msg, reason="wrong_type", feature=what)
    found = np.asarray(rectangle(values, what))
    if found.dtype.kind not in "fiub":
        msg = f"{what}: got values of type {found.dtype}; they must be numbers"
        raise InvalidEvent(msg, reason="wrong_type", feature=what)
    numbers = np.array(found, dtype=np.float64, order="C")
    finite = np.isfinite(numbers)
    if not finite.all():
        if numbers.ndim == 0:
            msg = f"{what}: got {shown(values)}; it must be an array with finite numbers for each row of X"
            raise InvalidEvent(msg, reason="wrong_shape", feature=what)
        place = np.argwhere(~finite)[0]
        row = int(place[0])
        feature = names[int(place[1])] if names is not None else what
        msg = f"row {row}: {feature!s} is {numbers[tuple(place)]}, not a finite number; drop or correct the row"
        raise InvalidEvent(msg, reason="not_finite", feature=feature, row=row)
    return numbers
