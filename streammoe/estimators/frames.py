"""Conversion of data frames of any kind that narwhals knows, and to the kind that came; none is imported here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import narwhals.stable.v2 as nw
import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import READERS_IN_PYTHON, check_name, is_missing, seconds_of, type_in_words
from streammoe.errors import InvalidEvent
from streammoe.model.checks import by_rows
from streammoe.model.tables import Table, table_of_array
from streammoe.model.targets import NumericTarget, Targets
from streammoe.text import shown, some_of
from streammoe.types import AnyArray, FloatArray

Frame: TypeAlias = nw.DataFrame[Any]


def frame_of(values: Any, what: str) -> Frame | None:
    """Return the frame that some values are; None if their columns have no names.

    Raises:
        InvalidEvent: columns have names, but their rows are not in memory, narwhals does not know it, or a name occurs
            more than once.
    """
    try:
        found = nw.from_native(values, pass_through=True)
    except nw.exceptions.DuplicateError:
        names = list(getattr(values, "column_names", None) or values.columns)
        twice = sorted({name for name in names if names.count(name) > 1}, key=str)
        msg = f"{what}: the columns {twice!r} occur more than once; give each column a unique name"
        raise InvalidEvent(msg, reason="wrong_shape") from None
    if isinstance(found, nw.DataFrame):
        return found
    if isinstance(found, nw.LazyFrame):
        rule = "has not read its rows; read them first, such as by collect()"
    elif not (hasattr(values, "columns") or hasattr(values, "column_names")):
        return None
    elif hasattr(values, "__arrow_c_stream__"):  # such as a batch of records
        return nw.from_arrow(values, backend="pyarrow")
    else:
        rule = "narwhals does not know; give a frame of pandas, polars or Arrow, or an array with feature_names"
    raise InvalidEvent(f"{what}: got {type_in_words(values)}, which {rule}", reason="wrong_type", feature=what)


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
    _, table = table_of(encoder, frame, warns=False)
    if problem := _lacking(encoder, table.names):
        raise InvalidEvent(f"{problem}; rename them, or give an array and feature_names", reason="wrong_shape")
    return table


def targets_by_names(targets: Targets, y: Any) -> tuple[Any, list[Any] | None]:
    """Return targets in the order of the outputs, and the names of those, if it is a frame of several outputs."""
    frame = frame_of(y, "y")
    if frame is None:
        return _in_numpy(y) if hasattr(y, "to_pylist") else y, None
    names = frame.columns
    ordered = targets.names_in(names) if isinstance(targets, NumericTarget) and not targets.is_number else None
    values = frame[:, [names.index(name) for name in ordered or names]]
    is_arrow = frame.implementation.is_pyarrow()
    found = np.array(values.rows(), dtype=object).reshape(values.shape) if is_arrow else values.to_numpy()
    return found, ordered


def table_of(encoder: Encoder, X: Any, *, warns: bool = True) -> tuple[Frame, Table]:
    """Return a frame, and it as a table: times as seconds since 1970, categories as levels, missing as NaN or None.

    A type of categories makes a column one of these; in other new ones the first value decides, as in `learn_one`. A
    column of the model that the frame lacks is missing in all rows, and warned of if `warns`.

    Raises:
        InvalidEvent: a name or a value is of the wrong type, or a number is not finite, first in ``row``.
    """
    frame = frame_of(X, "X")
    if frame is None:
        msg = f"X: got {shown(X)}, {type_in_words(X)}; it must be a data frame"
        raise InvalidEvent(msg, reason="wrong_type", feature="X")
    names = frame.columns
    for name in names:
        check_name(name, "column name", "X")
    if warns and (problem := _lacking(encoder, names)):
        advice = "each counts as missing in all rows: rename the columns if they have other names"
        warnings.warn(f"{problem}; {advice}", stacklevel=3)
    rows = np.full((len(frame), len(names)), np.nan)
    texts: dict[Any, list[str | None]] = {}
    kinds: dict[Any, ColumnKind] = {}
    stated: list[Any] = []
    errors: list[InvalidEvent] = []
    for dtype, at in _by_type(frame):
        is_truth, is_stated = dtype == nw.Boolean, isinstance(dtype, nw.Categorical | nw.Enum)
        stated += [names[j] for j in at if is_stated]
        has_numbers = is_truth or dtype.is_float() or (dtype.is_integer() and dtype not in (nw.Int128, nw.UInt128))
        if has_numbers:
            _fill(rows, at, frame[:, at], is_truth=is_truth)
            block = rows[:, at]
            has_value, is_finite = (~np.isnan(block)).any(axis=0).tolist(), (~np.isinf(block)).all(axis=0).tolist()
        for k, j in enumerate(at):
            name, values = names[j], None
            if has_numbers:
                first = (is_truth or 0.0) if has_value[k] else None
            else:
                values = _values(frame[:, j])
                first = next((value for value in values if not is_missing(value)), None)
            kind = _kind(encoder, name, first, is_stated=is_stated)
            if kind is None:  # there is no value
                continue
            kinds[name] = kind
            if has_numbers and is_finite[k] and kind in {"number", "boolean" if is_truth else "time"}:
                continue
            try:
                # Whole numbers are categories as such, however large.
                found = _read(_values(frame[:, j]) if values is None else values, kind, name)
            except InvalidEvent as error:
                errors.append(encoder.columns.given.explained(error))
                continue
            rows[:, j] = np.nan if kind == "category" else found
            if kind == "category":
                texts[name] = found
    if errors:
        raise min(errors, key=lambda error: error.row or 0)
    return frame, Table(rows, names, texts, kinds, stated)


def _by_type(frame: Frame) -> Iterable[tuple[Any, list[int]]]:
    """Return the types of columns, and which have it: columns one by one, and a schema, would take too long."""
    native, found = frame.to_native(), dict[Any, list[int]]()
    for j, dtype in enumerate(native.schema.types if frame.implementation.is_pyarrow() else native.dtypes):
        found.setdefault(dtype, []).append(j)
    return [(frame[:, at[0]].dtype, at) for at in found.values()]


def _fill(rows: FloatArray, at: list[int], part: Frame, *, is_truth: bool) -> None:
    """Write columns of numbers, or of truth values, of one type into rows."""
    if part.implementation.is_pandas_like():
        rows[:, at] = part.to_native().to_numpy(dtype=np.float64, na_value=np.nan)
        return
    if is_truth:
        part = part.select(nw.all().cast(nw.Int8))
    if not part.implementation.is_pyarrow():
        rows[:, at] = part.to_numpy()
        return
    start = 0
    for batch in part.to_native().to_batches():
        rows[start : start + len(batch), at] = batch.to_tensor(null_to_nan=True).to_numpy()
        start += len(batch)


def _values(series: nw.Series[Any]) -> AnyArray | list[Any]:
    """Return times and durations as an array of NumPy's, and other values as they are in dicts."""
    dtype: Any = series.dtype
    is_time = dtype in (nw.Date, nw.Datetime, nw.Duration)
    if not series.implementation.is_pyarrow():
        return series.to_numpy() if is_time else series.to_list()
    # Arrow's own conversion to NumPy imports pandas, as does that of any value of Python's to Arrow's.
    native = series.to_native()
    if is_time:
        days, pieces = dtype == nw.Date, [np.empty(0, np.int64)]
        for chunk in (native.cast("int32") if days else native).cast("int64").chunks:
            ticks = chunk.from_buffers(chunk.type, len(chunk), [None, chunk.buffers()[1]], offset=chunk.offset)
            is_valid = np.from_dlpack(chunk.is_valid().cast("uint8"))
            pieces.append(np.where(is_valid, np.from_dlpack(ticks), np.iinfo(np.int64).min))  # NaT
        unit = f"{'m' if dtype == nw.Duration else 'M'}8[{'D' if days else dtype.time_unit}]"
        return np.concatenate(pieces).view(unit)
    if dtype not in (nw.String, nw.Categorical):
        return series.to_list()
    found, plain = [], native.cast(native.type.value_type) if dtype == nw.Categorical else native
    if str(plain.type) == "string_view":  # of which Arrow would encode null as an empty text
        plain = plain.cast("large_string")
    for chunk in plain.dictionary_encode(null_encoding="encode").chunks:  # makes each distinct text once
        found += np.array(chunk.dictionary.to_pylist(), dtype=object)[np.from_dlpack(chunk.indices)].tolist()
    return found


def _kind(encoder: Encoder, name: Any, first: Any, *, is_stated: bool) -> ColumnKind | None:
    """Return what a column holds whose first value is this one; None if it has no value."""
    kind = encoder.columns.kind_of(name, first)
    if kind in {None, "category"} or not is_stated or encoder.columns.given.kind(name) is not None:
        return kind
    if name in encoder.columns.index:
        msg = f"{name!s}: its type is category, but the model has a column of {kind}s; convert it, or start over"
        raise InvalidEvent(msg, reason="wrong_type", feature=name)
    return "category"


def _read(values: AnyArray | list[Any], kind: ColumnKind, name: Any) -> Any:
    """Return the values of a column: texts, None where missing, or numbers, NaN where missing."""
    if kind != "category" and isinstance(values, np.ndarray) and values.dtype.kind == "M":
        seconds = seconds_of(values.astype(np.int64), np.datetime_data(values.dtype)[0])
        return np.where(np.isnat(values), math.nan, seconds)
    if kind == "category" and {type(value) for value in values} <= {str, type(None)}:
        return values
    read, missing = READERS_IN_PYTHON["number" if kind == "boolean" else kind], None if kind == "category" else math.nan
    return by_rows(lambda value: missing if is_missing(value) else read(value, name), values)


def _lacking(encoder: Encoder, names: Sequence[Any]) -> str:
    """Say which columns of the model are not among these names; nothing if all are."""
    given = set(names)
    absent, columns = [name for name in encoder.own_fields if name not in given], some_of(names) if names else "none"
    return f"X: lacks {some_of(absent)}, which the model has, among its columns ({columns})" if absent else ""


def _in_numpy(values: Any) -> AnyArray:
    """Return targets or weights as an array; Arrow's own conversion imports pandas."""
    return np.array(values.to_pylist()) if hasattr(values, "to_pylist") else np.asarray(values)


def beside(X: Any, values: Any, what: str) -> Any:
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
    return _in_numpy(values)


def like(frame: Frame, values: AnyArray, columns: Sequence[Any] | None = None) -> Any:
    """Return values for each row of a frame as a series, or a frame with columns, of its kind and with its index.

    Only pandas has series of several types and columns whose names are no texts: elsewhere both become texts.
    """
    backend, is_pandas = frame.implementation, frame.implementation.is_pandas_like()
    if columns is None:
        given: Any = values.tolist() if values.dtype == object and not is_pandas else values
        if given is not values and len(set(map(type, given))) > 1:
            given = list(map(str, given))
        native: Any = nw.new_series(None, given, backend=backend).to_native()  # type: ignore[arg-type] # as River does
    else:
        names = [str(j if is_pandas else column) for j, column in enumerate(columns)]
        native = nw.from_numpy(np.ascontiguousarray(values), schema=names, backend=backend).to_native()
        if is_pandas:
            native.columns = list(columns)
    if (index := nw.maybe_get_index(frame)) is not None:
        native.index = index
    return native
