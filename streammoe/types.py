"""Array aliases shared by every layer, and plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
AnyArray = NDArray[Any]


def as_python(value: object) -> object:
    """Return a number of numpy's as one of Python's."""
    return value.item() if isinstance(value, np.generic) else value
