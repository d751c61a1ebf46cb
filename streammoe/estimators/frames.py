"""Conversion from and to pandas, which is imported only when a frame is created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from streammoe.columns import ColumnKind
from streammoe.errors import InvalidEvent
from streammoe.features import Encoder
from streammoe.model.tables import Table
from streammoe.text import shown
from streammoe.types import AnyArray
from streammoe.values import check_name, is_missing, level, seconds, type_in_words

if TYPE_CHECKING:
    import pandas as pd


def table_of(encoder: Encoder, X: pd.DataFrame) -> Table:
    """Convert a frame to a table; times become seconds since 1970, categories their levels, missing values NaN or None.

    The first value of a column that the encoder does not know decides what it holds, as in `learn_one`.

    Raises:
        InvalidEvent: a name or a value is of the wrong type, or a number is not finite; ``row`` is the index of the
            first such row.
    """
    check_frame(X, "X")
    names = list(X.columns)
    for name in names:
        check_name(name, "column name", "X")
    twice = sorted((name for name, count in Counter(names).items() if count > 1), key=str)
    if twice:
        msg = f"X: the columns {twice!r} occur more than once; give each column a unique name"
        raise InvalidEvent(msg, reason="wrong_shape")
    rows = np.full((len(X), len(names)), np.nan)
    texts: dict[Any, list[str | None]] = {}
    kinds: dict[Any, ColumnKind] = {}
    errors: list[InvalidEvent] = []
    for j, name in enumerate(names):
        values = _values(X[name])
        kind = encoder.kind_of(name, next((value for value in values if not is_missing(value)), None))
        if kind is None:  # there is no value
            continue
        kinds[name] = kind
        if kind == "category":
            values = X[name].tolist()  # whole numbers as such, however large
            texts[name] = [None] * len(X)
        column: Any = texts[name] if kind == "category" else rows[:, j]
        if kind != "category" and isinstance(values, np.ndarray) and not np.isinf(values).any():
            column[:] = values
            continue
        read = level if kind == "category" else seconds if kind == "time" else encoder.quantity
        try:
            for i, value in enumerate(values):
                if not is_missing(value):
                    column[i] = read(value, name)
        except InvalidEvent as error:
            errors.append(InvalidEvent(f"row {i}: {error}", reason=error.reason, feature=name, row=i))
    if errors:
        raise min(errors, key=lambda error: error.row or 0)
    return Table(rows, names, texts, kinds)


def _values(column: pd.Series) -> AnyArray | list[Any]:
    """Return the values of a column: an array of float64 if its type allows only numbers, else as they are in dicts."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "fiu":
        return column.to_numpy(dtype=np.float64)
    return column.tolist()


def check_frame(frame: object, what: str) -> None:
    """Check that an argument is a data frame.

    Raises:
        InvalidEvent: it is not.
    """
    if not (hasattr(frame, "columns") and hasattr(frame, "index")):
        msg = f"{what}: got {shown(frame)}, {type_in_words(frame)}; it must be a data frame"
        raise InvalidEvent(msg, reason="wrong_type", feature=what)


def series_like(X: pd.DataFrame, values: AnyArray) -> pd.Series:
    """Return a series of one value for each row of a frame, with its index."""
    import pandas as pd

    return pd.Series(values, index=X.index)


def frame_like(X: pd.DataFrame, values: AnyArray, columns: Sequence[Any]) -> pd.DataFrame:
    """Return a frame of values for each row of a frame, with its index."""
    import pandas as pd

    return pd.DataFrame(values, index=X.index, columns=list(columns))
