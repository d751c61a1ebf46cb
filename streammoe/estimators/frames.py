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
from streammoe.values import check_name, level, seconds, type_in_words

if TYPE_CHECKING:
    import pandas as pd


def table_of(encoder: Encoder, X: pd.DataFrame) -> Table:
    """Convert a frame to a table; times become seconds since 1970, categories their levels.

    The first value of a column that the encoder does not know decides what it holds, as in `learn_one`.

    Raises:
        InvalidEvent: a column or a value is of the wrong type, or a number is missing or not finite.
    """
    check_frame(X, "X")
    names = list(X.columns)
    for name in names:
        check_name(name, "column name", "X")
    twice = sorted((name for name, count in Counter(names).items() if count > 1), key=str)
    if twice:
        msg = f"X: the columns {twice!r} occur more than once; give each column a unique name"
        raise InvalidEvent(msg, reason="wrong_shape")
    rows = np.zeros((len(X), len(names)))
    texts: dict[Any, list[str]] = {}
    kinds: dict[Any, ColumnKind] = {}
    for j, name in enumerate(names):
        column = X[name]
        dtype = column.dtype
        holds_numbers = isinstance(dtype, np.dtype) and dtype.kind in "fiub"
        first = column.iloc[0] if len(column) else None
        kind = encoder.kind_of(name, first)
        if kind is not None:
            kinds[name] = kind
        if kind == "category":
            texts[name] = [level(value, name) for value in column.tolist()]
        elif kind == "time":
            rows[:, j] = [seconds(value, name) for value in column.tolist()]
        elif holds_numbers:
            rows[:, j] = column.to_numpy(dtype=np.float64)
        elif len(column):
            msg = f"X: the column {name!r} is of type {dtype}; it must hold numbers; convert it, or omit it"
            raise InvalidEvent(msg, reason="wrong_type", feature=name)
    bad = np.argwhere(~np.isfinite(rows))
    if bad.size:
        row, j = map(int, bad[0])
        msg = f"row {row}: {names[j]!s} is {rows[row, j]}, not a finite number; drop or fill the row"
        raise InvalidEvent(msg, reason="not_finite", feature=names[j], row=row)
    return Table(rows, names, texts, kinds)


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
