"""The Open Inference Protocol, version 2: one tensor for each column, and one for each part of a prediction.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from streammoe.rows import Row
from streammoe.serving.answers import RequestError
from streammoe.serving.snapshot import Snapshot
from streammoe.text import listed, shown

Parameters = dict[str, str | float | bool]
DataType = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]

PLATFORM = "streammoe"
DATATYPES = {"number": "FP64", "boolean": "BOOL"}
"""Types of columns, by their kind; others are text."""


class InputTensor(msgspec.Struct):
    """The values of a column, one for each row; null is a missing value."""

    name: str
    shape: list[int]
    datatype: DataType
    data: list[Any]
    parameters: Parameters = {}


class RequestedOutput(msgspec.Struct):
    """A part of the predictions that is asked for."""

    name: str
    parameters: Parameters = {}


class InferenceRequest(msgspec.Struct):
    """Rows to predict, as tensors; without `outputs` all parts of the predictions are returned."""

    inputs: list[InputTensor]
    id: str | None = None
    parameters: Parameters = {}
    outputs: list[RequestedOutput] = []


class OutputTensor(msgspec.Struct):
    """A part of the predictions, row by row."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class InferenceResponse(msgspec.Struct, omit_defaults=True):
    """The parts of the predictions, and which model made them."""

    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    parameters: Parameters
    id: str | None = None


def records_of(request: InferenceRequest) -> list[bytes]:
    """Return the rows of the tensors as JSON objects.

    Raises:
        RequestError: shapes and data differ, or tensors have another number of rows, or the same name.
    """
    columns: dict[str, list[Any]] = {}
    n = None
    for tensor in request.inputs:
        name, shape = tensor.name, tensor.shape
        rows = shape[0] if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1) else -1
        if rows < 0:
            raise RequestError(400, f"inputs: tensor {shown(name)} has the shape {shape}; it must be [n] or [n, 1]")
        nested = len(shape) == 2 and all(isinstance(value, list) and len(value) == 1 for value in tensor.data)
        data = [value[0] for value in tensor.data] if nested else tensor.data
        if len(data) != rows:
            raise RequestError(400, f"inputs: tensor {shown(name)} has {len(data)} values, and its shape says {rows}")
        if n is not None and rows != n:
            raise RequestError(400, f"inputs: tensor {shown(name)} has {rows} rows, and those before it have {n}")
        if name in columns:
            raise RequestError(400, f"inputs: there are two tensors {shown(name)}")
        n, columns[name] = rows, data
    encode = msgspec.json.Encoder().encode
    return [encode(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def response(snapshot: Snapshot, name: str, request: InferenceRequest, rows: Sequence[Row]) -> InferenceResponse:
    """Return the parts of predictions that were asked for.

    Raises:
        RequestError: one of them does not exist.
    """
    n = len(rows)
    parts = dict(_parts(snapshot, rows))
    wanted = [each.name for each in request.outputs] or list(parts)
    if unknown := [each for each in wanted if each not in parts]:
        there = listed(list(parts), "and")
        raise RequestError(400, f"outputs: there is no {shown(unknown[0])}; there are {there}")
    outputs = []
    for each in wanted:
        widths, datatype, data = parts[each]
        outputs.append(OutputTensor(each, [n, *widths], datatype, _flat(data)))
    return InferenceResponse(name, str(snapshot.version), outputs, _identity(snapshot), request.id)


def _identity(snapshot: Snapshot) -> Parameters:
    """Return positions and digest, as parameters may hold them."""
    positions: Parameters = {"positions": msgspec.json.encode(snapshot.positions).decode()}
    return positions if snapshot.digest is None else {**positions, "digest": snapshot.digest}


class _Part(NamedTuple):
    widths: list[int]
    datatype: str
    data: list[Any]


def _parts(snapshot: Snapshot, rows: Sequence[Row]) -> dict[str, _Part]:
    """Return the parts of predictions by their names, with the widths of a row."""
    model, targets = snapshot.model, snapshot.schema.targets
    several = [len(targets)] if len(targets) > 1 else []

    def by_output(values: list[Any]) -> list[Any]:
        return [[value[target] for target in targets] for value in values] if several else values

    predictions, found = [row.prediction for row in rows], dict[str, _Part]()
    if model.is_classifier:
        names = list(map(str, model.output_names))
        found["prediction"] = _Part([], "BYTES", predictions)
        probabilities = [[row.probabilities[name] for name in names] for row in rows]
        found["probabilities"] = _Part([len(names)], "FP64", probabilities)
    else:
        found["prediction"] = _Part(several, "FP64", by_output(predictions))
        if all(row.interval is not msgspec.UNSET for row in rows):
            found["interval"] = _Part([*several, 2], "FP64", by_output([row.interval for row in rows]))
    gates = [row.gate for row in rows]
    found["gate"] = _Part([len(gates[0]) if gates else 0], "FP64", gates)
    return found


def _flat(values: list[Any]) -> list[Any]:
    """Return nested lists as one, in row-major order; what is not finite is null."""
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            flat += _flat(list(value))
        else:
            flat.append(None if isinstance(value, float) and not math.isfinite(value) else value)
    return flat


def metadata(snapshot: Snapshot | None, name: str) -> dict[str, Any]:
    """Return the metadata of the model: its inputs, which are its columns, and its outputs."""
    if snapshot is None:
        return {"name": name, "versions": [], "platform": PLATFORM, "inputs": [], "outputs": [], "parameters": {}}
    return {
        "name": name,
        "versions": [str(snapshot.version)],
        "platform": PLATFORM,
        "inputs": [
            {"name": column, "datatype": DATATYPES.get(kind, "BYTES"), "shape": [-1]}
            for column, kind in snapshot.model.column_kinds.items()
        ],
        "outputs": [
            {"name": each, "datatype": part.datatype, "shape": [-1, *(width or -1 for width in part.widths)]}
            for each, part in _parts(snapshot, []).items()
        ],
        "parameters": _identity(snapshot),
    }
