"""Conversion of data frames, and to pandas, which is imported only when a frame is created."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import READERS_IN_PYTHON, check_name, is_missing, type_in_words
from streammoe.errors import InvalidEvent
from streammoe.model.checks import by_rows
from streammoe.model.tables import Table, table_of_array
from streammoe.model.targets import NumericTarget, Targets
from streammoe.text import shown, some_of
from streammoe.types import AnyArray

if TYPE_CHECKING:
    import pandas as pd


def frame_of(values: Any, what: str) -> pd.DataFrame | None:
    """Return the frame that some values are, or can be converted to, as pandas has it; None if columns have no names.

    Raises:
        InvalidEvent: columns have names, but it cannot be converted.
    """
    if _is_frame(values):
        return cast("pd.DataFrame", values)
    if not (hasattr(values, "columns") or hasattr(values, "column_names")):
        return None
    try:
        return cast("pd.DataFrame", values.to_pandas())
    except (AttributeError, ImportError) as error:
        why = f" ({error})" if isinstance(error, ImportError) else ""
        rule = f"cannot be converted to a frame of pandas{why}; give such a frame, or an array with feature_names"
        message = f"{what}: got {type_in_words(values)}, which {rule}"
        raise InvalidEvent(message, reason="wrong_type", feature=what) from None


def table_by_names(encoder: Encoder, X: Any, feature_names: Sequence[Any] | None, *, known: bool = False) -> Table:
    """Convert an array, see `table_of_array`, or a frame, which must have all columns of the model in any order.

    Raises:
        InvalidEvent: see `table_of` and `table_of_array`; or a column is missing.
    """
    frame = frame_of(X, "X")
    if frame is None:
        return table_of_array(X, feature_names, encoder.own_fields, known=known)
    if feature_names is not None:
        msg = "feature_names: a data frame has its own column names; omit feature_names"
        raise InvalidEvent(msg, reason="wrong_shape")
    table = table_of(encoder, frame, warns=False)
    if absent := _absent(encoder, table.names):
        msg = (
            f"X: lacks {some_of(absent)}, which the model has, among its columns ({some_of(table.names)}); rename "
            "them, or give X.to_numpy() and feature_names"
        )
        raise InvalidEvent(msg, reason="wrong_shape")
    return table


def targets_by_names(targets: Targets, y: Any) -> tuple[Any, list[Any] | None]:
    """Return targets in the order of the outputs, and the names of those, if it is a frame of several outputs."""
    if not isinstance(targets, NumericTarget) or targets.is_number or (frame := frame_of(y, "y")) is None:
        return y, None
    names = targets.names_in(frame.columns)
    return frame[names].to_numpy(), names


def table_of(encoder: Encoder, X: pd.DataFrame, *, warns: bool = True) -> Table:
    """Convert a frame to a table; times become seconds since 1970, categories their levels, missing values NaN or None.

    A type of categories makes a column one of these; in other new ones the first value decides, as in `learn_one`. A
    column of the model that the frame lacks is missing in all rows, and warned of if `warns`.

    Raises:
        InvalidEvent: a name or a value is of the wrong type, or a number is not finite, first in ``row``.
    """
    if not _is_frame(X):
        msg = f"X: got {shown(X)}, {type_in_words(X)}; it must be a data frame"
        raise InvalidEvent(msg, reason="wrong_type", feature="X")
    names = list(X.columns)
    for name in names:
        check_name(name, "column name", "X")
    twice = sorted((name for name, count in Counter(names).items() if count > 1), key=str)
    if twice:
        msg = f"X: the columns {twice!r} occur more than once; give each column a unique name"
        raise InvalidEvent(msg, reason="wrong_shape")
    if warns and (absent := _absent(encoder, names)):
        warnings.warn(
            f"X: lacks {some_of(absent)}, which the model has, among its columns ({some_of(names)}); each counts as "
            "missing in all rows: rename the columns if they have other names",
            stacklevel=3,
        )
    rows = np.full((len(X), len(names)), np.nan)
    texts: dict[Any, list[str | None]] = {}
    kinds: dict[Any, ColumnKind] = {}
    stated = [name for name in names if X[name].dtype == "category"]
    errors: list[InvalidEvent] = []
    for j, name in enumerate(names):
        # An array if its type allows only numbers, else values as they are in dicts.
        is_array = isinstance(X[name].dtype, np.dtype) and X[name].dtype.kind in "fiu"
        values = X[name].to_numpy(dtype=np.float64) if is_array else X[name].tolist()
        kind = _kind(encoder, name, values, is_stated=name in stated)
        if kind is None:  # there is no value
            continue
        kinds[name] = kind
        try:
            if kind == "category":
                texts[name] = _read(X[name].tolist(), kind, name)  # whole numbers as such, however large
            else:
                rows[:, j] = _read(values, kind, name)
        except InvalidEvent as error:
            errors.append(encoder.columns.given.explained(error))
    if errors:
        raise min(errors, key=lambda error: error.row or 0)
    return Table(rows, names, texts, kinds, stated)


def _kind(encoder: Encoder, name: Any, values: Iterable[Any], *, is_stated: bool) -> ColumnKind | None:
    """Return what a column holds; None if it has no value."""
    kind = encoder.columns.kind_of(name, next((value for value in values if not is_missing(value)), None))
    if kind in {None, "category"} or not is_stated or encoder.columns.given.kind(name) is not None:
        return kind
    if name in encoder.columns.index:
        msg = f"{name!s}: its type is category, but the model has a column of {kind}s; convert it, or start over"
        raise InvalidEvent(msg, reason="wrong_type", feature=name)
    return "category"


def _read(values: AnyArray | list[Any], kind: ColumnKind, name: Any) -> Any:
    """Return the values of a column: texts, None where missing, or numbers, NaN where missing."""
    if kind != "category" and isinstance(values, np.ndarray) and not np.isinf(values).any():
        return values
    read, missing = READERS_IN_PYTHON["number" if kind == "boolean" else kind], None if kind == "category" else math.nan
    return by_rows(lambda value: missing if is_missing(value) else read(value, name), values)


def _absent(encoder: Encoder, names: Sequence[Any]) -> list[Any]:
    """Return the columns of the model that are not among these names."""
    return [name for name in encoder.own_fields if name not in names]


def _is_frame(values: object) -> bool:
    return hasattr(values, "columns") and hasattr(values, "index")


def beside(X: pd.DataFrame, values: Any, what: str) -> Any:
    """Return targets or weights of the rows of a frame as an array; None stays None.

    Raises:
        InvalidEvent: they have the index of the frame, but in another order.
    """
    if values is None:
        return None
    index: Any = getattr(values, "index", None)
    is_index = hasattr(index, "equals") and hasattr(X, "index")
    if is_index and len(index) == len(X.index) and not index.equals(X.index) and index.isin(X.index).all():
        msg = (
            f"{what}: has the rows of X in another order; give {what}.loc[X.index], or {what}.to_numpy() if the order "
            "is meant"
        )
        raise InvalidEvent(msg, reason="wrong_shape", feature=what)
    return np.asarray(values)


def series_like(X: pd.DataFrame, values: AnyArray) -> pd.Series:
    """Return a series of one value for each row of a frame, with its index."""
    import pandas as pd

    return pd.Series(values, index=X.index)


def frame_like(X: pd.DataFrame, values: AnyArray, columns: Sequence[Any]) -> pd.DataFrame:
    """Return a frame of values for each row of a frame, with its index."""
    import pandas as pd

    return pd.DataFrame(values, index=X.index, columns=list(columns))
