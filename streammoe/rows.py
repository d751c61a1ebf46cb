"""Predictions as JSON, one object per event."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import msgspec
import numpy as np

from streammoe.ports import Predictions
from streammoe.types import FloatArray

_UNKNOWN: Any = repeat(msgspec.UNSET)


class Row(msgspec.Struct):
    """The prediction of an event; what is not known of any event is left out."""

    place: Any = msgspec.UNSET
    model_version: int | msgspec.UnsetType = msgspec.UNSET
    global_version: int | msgspec.UnsetType = msgspec.UNSET
    prediction: float | str | dict[str, float | None] | None = None
    interval: list[float | None] | dict[str, list[float | None]] | msgspec.UnsetType = msgspec.UNSET
    target: Any = msgspec.UNSET
    loss: float | msgspec.UnsetType | None = msgspec.UNSET
    probabilities: dict[str, float | None] | msgspec.UnsetType = msgspec.UNSET
    gate: list[float | None] | msgspec.UnsetType = msgspec.UNSET


_encoder = msgspec.json.Encoder()


def json_lines(rows: Predictions) -> bytes:
    """Encode one object per event, see `rows_of`; each line has its line end."""
    lines = rows_of(rows)
    try:
        return _encoder.encode_lines(lines)
    except UnicodeEncodeError:  # the path of a file whose name is not UTF-8, of which JSON can write the escapes
        for line in lines:
            line.place = msgspec.Raw(json.dumps(line.place, separators=(",", ":")).encode("ascii"))
        return _encoder.encode_lines(lines)


def rows_of(rows: Predictions) -> list[Row]:
    """Return an object for each event: place, model_version, prediction, and whatever else is known.

    With several outputs, ``prediction``, ``interval`` and ``target`` are objects by output. ``loss`` is the -log s(y|x)
    of a learned event. ``global_version``, where there is a global model, is 0 if the daemon's own model predicted.
    What is unknown or not finite is null.
    """
    predictions, intervals, targets = rows.predictions, _UNKNOWN, _UNKNOWN if rows.targets is None else rows.targets
    if isinstance(predictions, np.ndarray):
        predictions = _by_output(predictions, rows.outputs)
        if rows.intervals is not None:
            intervals = _by_output(rows.intervals(), rows.outputs)
    if isinstance(targets, np.ndarray):
        unknown = np.flatnonzero(np.isnan(targets).any(axis=1)).tolist() if len(rows.outputs) > 1 else []
        targets = _by_output(targets, rows.outputs)
        for i in unknown:
            targets[i] = None
    found = map(
        Row,
        rows.locations or _UNKNOWN,
        rows.versions.tolist(),
        _UNKNOWN if rows.global_versions is None else rows.global_versions.tolist(),
        predictions,
        intervals,
        targets,
        _UNKNOWN if rows.losses is None else rows.losses.tolist(),
        _UNKNOWN if rows.probabilities is None else _mappings(rows.probabilities, rows.classes),
        _UNKNOWN if rows.gate is None else rows.gate.tolist(),
    )
    return list(found)


def _by_output(values: FloatArray, outputs: Sequence[str]) -> list[Any]:
    """Return the rows of (n, Q, …): the values of the only output, or objects by output."""
    return values[:, 0].tolist() if len(outputs) == 1 else _mappings(values, outputs)


def _mappings(values: FloatArray, names: Sequence[str]) -> list[Any]:
    # The last one counts where two labels read alike, such as 1 and "1".
    return [dict(zip(names, row, strict=True)) for row in values.tolist()]
