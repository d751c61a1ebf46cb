"""Validation of checkpoint content before anything trusts it.

A digest detects damage, but says nothing about who wrote a file. So each part of a checkpoint is validated where it is
restored: compiled loops check no bounds, and a shape is only a claim. Nothing here allocates what a claim asks for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streammoe.errors import CheckpointError
from streammoe.text import cut, printable, shown
from streammoe.types import AnyArray

LARGEST_COUNT = 2**53
"""Largest valid count: beyond it floats, such as those of metrics, cannot represent every whole number."""

Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
"""A valid count, for `CheckedTable`."""


class CheckedTable(BaseModel):
    """A table of metadata, declared by its entries; others may be there, too."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions that reading malformed content may raise."""
DEEPEST = 32
"""Levels of nesting allowed in metadata; positions have three."""


@contextmanager
def restoring(origin: object) -> Iterator[None]:
    """Turn any exception raised while restoring a checkpoint into a `CheckpointError` that names its origin.

    As in `streammoe.persistence.decode`: a value of an unexpected type raises one of `MALFORMED` wherever it is used
    first.
    """
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{origin}: {error}; {_ADVICE}") from error
    except MALFORMED as error:
        raise CheckpointError(
            f"{origin}: holds what no version of streammoe writes ({in_words(error)}); {_ADVICE}"
        ) from error


_ADVICE = "its digest is valid, so it was written like this: restore a copy that you trust, or start over with --fresh"


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
    """Return an array of a checkpoint once it is validated.

    Args:
        arrays: all arrays of the checkpoint.
        name: of the array.
        dtype: name of the element type.
        shape: ``None`` where an axis may have any length.
        least: smallest value allowed; does not apply to NaN.
        most: largest value allowed.
        finite: whether NaN and infinities are rejected.

    Raises:
        CheckpointError: it is missing or invalid.
    """
    array = arrays.get(name)
    if array is None:
        raise CheckpointError(f"array {name} is missing")
    fits = len(shape) == array.ndim and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if array.dtype.name != dtype or not fits:
        have, wanted = (
            ", ".join("any" if axis is None else str(axis) for axis in given) for given in (array.shape, shape)
        )
        raise CheckpointError(
            f"array {name} is {array.dtype.name} of shape ({have}); here it must be {dtype} of shape ({wanted})"
        )
    if finite and dtype == "float64" and not np.isfinite(array).all():
        raise CheckpointError(f"array {name} holds NaN or infinity; every entry must be finite")
    if dtype != "bool" and ((array < least) | (array > most)).any():
        raise CheckpointError(f"array {name} holds values outside {least:.16g} to {most:.16g}")
    return array


def is_shallow(value: object) -> bool:
    """Whether lists and tables are nested at most `DEEPEST` levels, so that recursion over them is safe."""
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
    """Reject a checkpoint with a `CheckpointError` unless `holds`."""
    if not holds:
        raise CheckpointError(problem)


def is_count(value: object) -> bool:
    """Whether `value` is a whole number from 0 to `LARGEST_COUNT`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def is_finite_number(value: object) -> bool:
    """Whether `value` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def table_of(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of the metadata, or an empty one; raise `CheckpointError` for anything else under this name."""
    table = found.get(name, {})
    require(isinstance(table, dict), f"{name} is {shown(table)}, and must be a table")
    return dict(table)


def in_words(error: Exception) -> str:
    """Explain why content cannot be read; Python's own messages about types mean nothing to a user."""
    if isinstance(error, KeyError):
        return f"{shown(error.args[0])} is missing" if error.args else "something is missing"
    if isinstance(error, UnicodeError):
        return "its text is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        got = "" if first["type"] == "missing" else f", got {shown(first['input'])}"
        return printable(f"{place}: {first['msg']}{got}")
    if not isinstance(error, ValueError):
        return "a value has another type or shape than it must have"
    return cut(printable(str(error)))


def as_json(values: Sequence[Any]) -> AnyArray:
    """Encode a list as JSON in an array of bytes."""
    return np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)


def names_of(arrays: Mapping[str, AnyArray], name: str, kinds: tuple[type, ...]) -> list[Any]:
    """Decode a JSON list of distinct names, each of a type in `kinds`; raise `CheckpointError` for anything else."""
    names = list_of(arrays, name)
    for each in names:
        require(type(each) in kinds, f"{name} holds {shown(each)}, which is not a name")
    require(len(set(names)) == len(names), f"{name} holds a name twice")
    return names


def list_of(arrays: Mapping[str, AnyArray], name: str) -> list[Any]:
    """Decode a JSON list from an array of bytes; raise `CheckpointError` for anything else."""
    found: Any = json.loads(array_of(arrays, name, "uint8", (None,)).tobytes(), parse_constant=_reject_constant)
    require(isinstance(found, list), f"{name} is {shown(found)}, and must be a JSON list")
    return list(found)


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text} is not a name")
