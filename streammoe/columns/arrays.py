"""Named tuples of arrays whose first axis is the columns."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np

from streammoe.types import AnyArray, IntArray

Arrays = TypeVar("Arrays", bound=tuple[AnyArray, ...])


def joined(*parts: Arrays) -> Arrays:
    """Return the columns of several tuples, one after the other, in new arrays; those of one are a copy."""
    made = cast("Any", type(parts[0]))
    return cast("Arrays", made(*map(np.concatenate, zip(*parts, strict=True))))


def part(columns: Arrays, chosen: IntArray) -> Arrays:
    """Return some columns, in this order, in new arrays."""
    made = cast("Any", type(columns))
    return cast("Arrays", made(*(array[chosen] for array in columns)))
