"""What a checkpoint says, held to what it must be before anything trusts it.

A digest tells damage from soundness; it tells nothing of who wrote a file. So each part of a checkpoint is looked at
where it is taken up: compiled loops check no bounds, and a shape is only a claim. Nothing here allocates what a claim
asks for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from streammoe.errors import CheckpointError
from streammoe.text import cut, printable, shown
from streammoe.types import AnyArray

LARGEST_COUNT = 2**53
"""No count is larger: beyond that floats, such as those of metrics, no longer tell it from the next one."""

UNREAD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading something that is not what it claims to be may raise."""
DEEPEST = 32
"""Levels of nesting in what a checkpoint says; positions of several sources have six."""


@contextmanager
def restoring(origin: object) -> Iterator[None]:
    """Turn whatever taking up a checkpoint raises into a sentence that names its place.

    As in `streammoe.persistence.decode`: a value of a type that nobody writes shows as one of these errors, wherever it
    is met first.

    Raises:
        CheckpointError: always that.
    """
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{origin}: {error}; {_ADVICE}") from error
    except UNREAD as error:
        raise CheckpointError(
            f"{origin}: holds what no version of streammoe writes ({unread(error)}); {_ADVICE}"
        ) from error


_ADVICE = "its digest is right, so it was written so: restore a copy that you trust, or begin anew with --fresh"


def array_of(
    arrays: Mapping[str, AnyArray],
    name: str,
    dtype: str,
    shape: tuple[int | None, ...],
    *,
    least: float = -math.inf,
    most: float = math.inf,
    finite: bool = True,
) -> AnyArray:
    """An array of a checkpoint, once it is what it must be.

    Args:
        arrays: of the checkpoint.
        name: which one.
        dtype: name of the element type.
        shape: ``None`` where an axis may have any length.
        least: smallest value allowed; NaN is not judged by it.
        most: largest.
        finite: whether NaN and infinities are refused.

    Raises:
        CheckpointError: it is missing or something else.
    """
    array = arrays.get(name)
    if array is None:
        raise CheckpointError(f"array {name} is missing")
    fits = len(shape) == array.ndim and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if array.dtype.name != dtype or not fits:
        wanted = ", ".join("any" if axis is None else str(axis) for axis in shape)
        raise CheckpointError(
            f"array {name} is {array.dtype.name} of shape {array.shape}; here it must be {dtype} of shape ({wanted})"
        )
    if finite and dtype == "float64" and not np.isfinite(array).all():
        raise CheckpointError(f"array {name} holds NaN or infinity; every entry must be finite")
    if dtype != "bool" and ((array < least) | (array > most)).any():
        raise CheckpointError(f"array {name} holds values outside of {least:g} to {most:g}")
    return array


def is_shallow(value: object) -> bool:
    """Whether lists and tables are nested no deeper than `DEEPEST`, so that whatever walks through them can."""
    level: list[object] = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return True
    return False


def require(holds: object, problem: str) -> None:
    """Refuse a checkpoint unless `holds`.

    Raises:
        CheckpointError: with `problem`.
    """
    if not holds:
        raise CheckpointError(problem)


def is_count(value: object) -> bool:
    """Whether it is a whole number that something can have been counted to."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def is_finite_number(value: object) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def table_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table of the metadata, empty where there is none.

    Raises:
        CheckpointError: there is something else under this name.
    """
    table = found.get(name, {})
    require(isinstance(table, dict), f"{name} is {shown(table)}, and must be a table")
    return dict(table)


def counts_of(found: Mapping[str, Any], name: str) -> dict[str, int]:
    """A table of counts.

    Raises:
        CheckpointError: one of them is none.
    """
    table = table_of(found, name)
    for key, value in table.items():
        require(is_count(value), f"{name} counts {shown(value)} of {shown(key)}; a count is a whole number from 0 on")
    return table


def unread(error: Exception) -> str:
    """Say in words why something cannot be read, for a message; what Python says of types tells a user nothing."""
    if isinstance(error, KeyError):
        return f"{shown(error.args[0])} is missing" if error.args else "something is missing"
    if isinstance(error, UnicodeError):
        return "its text is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if not isinstance(error, ValueError):
        return "a value has another type or shape than it must have"
    return cut(printable(str(error)))


def as_json(values: Sequence[Any]) -> AnyArray:
    """Return a JSON list as an array of bytes."""
    return np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)


def names_of(arrays: Mapping[str, AnyArray], name: str, kinds: tuple[type, ...]) -> list[Any]:
    """A JSON list of different names from an array of bytes.

    Raises:
        CheckpointError: it is something else, or one of them is of another type than `kinds`.
    """
    names = list_of(arrays, name)
    for each in names:
        require(type(each) in kinds, f"{name} holds {shown(each)}, which is no name")
    require(len(set(names)) == len(names), f"{name} holds a name twice")
    return names


def list_of(arrays: Mapping[str, AnyArray], name: str) -> list[Any]:
    """Return the JSON list that an array of bytes holds; raises `CheckpointError` for anything else."""
    found: Any = json.loads(array_of(arrays, name, "uint8", (None,)).tobytes(), parse_constant=_no_name)
    require(isinstance(found, list), f"{name} is {shown(found)}, and must be a JSON list")
    return list(found)


def _no_name(text: str) -> None:
    raise ValueError(f"{text} is no name")
