"""What users hand over, checked: arguments of constructors, arrays, frames."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.features import quoted
from streammoe.types import AnyArray, FloatArray

LARGEST_WEIGHT = 1e6
"""Only the ratios of weights matter, so a larger one is a mistake."""


def event_weight(w: object) -> float:
    """The weight of an event, in [0, 1e6].

    Raises:
        InvalidEvent: it is not.
    """
    if not isinstance(w, float | int | np.floating | np.integer):
        reason = "wrong_type"
    elif 0.0 <= w <= LARGEST_WEIGHT:
        return float(w)
    else:
        reason = "out_of_range" if isinstance(w, int | np.integer) or math.isfinite(w) else "not_finite"
    msg = f"w: got {quoted(w)}; the weight of an event must be a number in [0, {LARGEST_WEIGHT:g}], only ratios matter"
    raise InvalidEvent(msg, reason=reason, feature="w")


def event_weights(weights: AnyArray | None, n: int) -> FloatArray:
    """Weights of n events; ones without any.

    Raises:
        InvalidEvent: one of them is out of range; ``row`` is its index.
    """
    if weights is None:
        return np.ones(n)
    found = finite_array(weights, "weights")
    if found.shape != (n,):
        msg = f"weights: got shape {found.shape} for {n} rows; it must hold one number for each row of X"
        raise InvalidEvent(msg, reason="wrong_shape", feature="w")
    bad = np.flatnonzero((found < 0.0) | (found > LARGEST_WEIGHT))
    if bad.size:
        row = int(bad[0])
        msg = f"row {row}: the weight {found[row]:g} is not in [0, {LARGEST_WEIGHT:g}]; only ratios of weights matter"
        raise InvalidEvent(msg, reason="out_of_range", feature="w", row=row)
    return found


def is_whole(value: object, least: int) -> bool:
    """Whether it is an integer, at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def is_amount(value: object) -> bool:
    """Whether it is a finite number, at least 0."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0.0 <= value < math.inf)


def are_names(value: object) -> bool:
    """Whether it is a list of names of features, or None."""
    return value is None or (isinstance(value, tuple | list) and all(isinstance(name, str | int) for name in value))


def rectangle(values: AnyArray, what: str) -> AnyArray:
    """Values as an array, of whatever class and type.

    Raises:
        InvalidEvent: the rows differ in length.
    """
    try:
        return np.asanyarray(values)
    except ValueError:
        msg = f"{what}: the rows are not all of one length; give a rectangle of numbers"
        raise InvalidEvent(msg, reason="wrong_shape", feature=what) from None


def finite_array(values: AnyArray, what: str, names: Sequence[Any] | None = None) -> FloatArray:
    """A float64 copy in C order, or `InvalidEvent` with the first row that holds something else."""
    if isinstance(values, np.ma.MaskedArray):
        msg = f"{what}: got a masked array; leave masked rows out, or fill them"
        raise InvalidEvent(msg, reason="wrong_type", feature=what)
    found = np.asarray(rectangle(values, what))
    if found.dtype.kind not in "fiub":
        msg = f"{what}: got values of type {found.dtype}; they must be numbers"
        raise InvalidEvent(msg, reason="wrong_type", feature=what)
    numbers = np.array(found, dtype=np.float64, order="C")
    finite = np.isfinite(numbers)
    if not finite.all():
        place = np.argwhere(~finite)[0]
        row = int(place[0])
        feature = names[int(place[1])] if names is not None else what
        msg = f"row {row}: {feature!s} is {numbers[tuple(place)]}, not a finite number; drop or mend the row"
        raise InvalidEvent(msg, reason="not_finite", feature=feature, row=row)
    return numbers


def reordered(rows: FloatArray, names: Sequence[Any], columns: Sequence[Any]) -> FloatArray:
    """Rows in the order of `columns`; NaN (missing) where a column has no name, other names are left out."""
    if list(names) == list(columns):
        return rows
    at = {name: j for j, name in enumerate(names)}
    ordered = np.full((len(rows), len(columns)), np.nan)
    for j, column in enumerate(columns):
        if column in at:
            ordered[:, j] = rows[:, at[column]]
    return ordered


def shaped(values: Mapping[str, Any], name: str, shape: tuple[int, ...], padded: tuple[int, ...]) -> FloatArray:
    """An entry of the right shape, padded with zeros."""
    if name not in values:
        msg = f"parameters: {name!r} is missing; it must have shape {shape}"
        raise ConfigError(msg)
    array = np.array(values[name], dtype=np.float64)
    if array.shape != shape:
        msg = f"parameters: {name!r} has shape {array.shape}; with these feature names it must have {shape}"
        raise ConfigError(msg)
    if not np.isfinite(array).all():
        msg = f"parameters: {name!r} holds NaN or infinity; every entry must be finite"
        raise ConfigError(msg)
    return np.pad(array, [(0, wide - size) for size, wide in zip(shape, padded, strict=True)])
