"""Predictions as one object per event, for sinks that write JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import starmap
from typing import Any

import msgspec
import numpy as np

from streammoe.ports import Predictions
from streammoe.types import FloatArray


def json_rows(rows: Predictions) -> list[msgspec.Struct]:
    """Return one object per event, for msgspec to encode: place, model_version, prediction, and whatever else is known.

    With several outputs, ``prediction``, ``interval`` and ``target`` are objects by output. ``loss`` is the -log s(y|x)
    of a learned event. ``global_version``, where there is a global model, is 0 if the daemon's own model predicted.
    Unknown values are ``None`` or NaN; JSON has to write them, and infinities, as null.
    """
    columns: dict[str, Any] = {"place": rows.locations, "model_version": rows.versions.tolist()}
    if rows.global_versions is not None:
        columns["global_version"] = rows.global_versions.tolist()
    columns |= _columns(rows)
    return list(starmap(_row_type(tuple(columns)), zip(*columns.values(), strict=True)))


@cache
def _row_type(names: tuple[str, ...]) -> type[msgspec.Struct]:
    """Return the type of rows with these fields: quicker to make and to encode than dicts."""
    return msgspec.defstruct("Row", names, gc=False)


def _columns(rows: Predictions) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    outputs = rows.outputs
    predictions, targets = rows.predictions, rows.targets
    if isinstance(predictions, np.ndarray) and isinstance(targets, np.ndarray):
        columns["prediction"] = _by_output(predictions, outputs)
        if rows.intervals is not None:
            columns["interval"] = _by_output(rows.intervals, outputs)
        columns["target"] = _by_output(targets, outputs)
        for i in np.flatnonzero(np.isnan(targets).any(axis=1)) if len(outputs) > 1 else ():
            columns["target"][i] = None
    else:
        columns["prediction"], columns["target"] = predictions, targets
    if rows.losses is not None:
        columns["loss"] = rows.losses.tolist()
    if rows.probabilities is not None:
        columns["probabilities"] = [dict(zip(rows.classes, row, strict=True)) for row in rows.probabilities.tolist()]
    if rows.gate is not None:
        columns["gate"] = _arrays(rows.gate)
    return columns


def _by_output(values: FloatArray, outputs: Sequence[str]) -> list[Any]:
    """Split (n, Q, …) into n values of the only output, or n objects by output."""
    if len(outputs) == 1:
        return _arrays(values[:, 0]) if values.ndim == 3 else list(values[:, 0].tolist())
    return [dict(zip(outputs, row, strict=True)) for row in values.tolist()]


def _arrays(values: FloatArray) -> list[msgspec.Struct]:
    """Return the n rows of (n, k) numbers, to be encoded as arrays: quicker to make than lists."""
    return list(map(_array_type(values.shape[1]), *values.T.tolist()))


@cache
def _array_type(size: int) -> type[msgspec.Struct]:
    return msgspec.defstruct("Numbers", [f"at_{i}" for i in range(size)], array_like=True, gc=False)
