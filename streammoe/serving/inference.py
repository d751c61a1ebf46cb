"""The Open Inference Protocol, version 2: one tensor for each column, and one for each part of a prediction.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from streammoe.rows import Row
from streammoe.serving.answers import RequestError, without_nan
from streammoe.serving.snapshot import Snapshot
from streammoe.text import counted, listed, shown

Parameters = dict[str, str | float | bool]
DataType = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES"
]

PLATFORM = "streammoe"
DATATYPES = {"number": "FP64", "boolean": "BOOL"}
"""Types of columns, by their kind; others are text."""
_VALUES: Mapping[str, set[type]] = {"BOOL": {bool}, "BYTES": {str}, "FP": {int, float}, "INT": {int}, "UINT": {int}}
"""What JSON has for the values of a datatype, by its name without the number of bits."""


class InputTensor(msgspec.Struct):
    """The values of a column, one for each row; null is a missing value."""

    name: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1, max_length=2)]
    datatype: DataType
    data: list[Any]
    parameters: Parameters = {}


class RequestedOutput(msgspec.Struct):
    """A part of the predictions that is asked for."""

    name: str
    parameters: Parameters = {}


class InferenceRequest(msgspec.Struct):
    """Rows to predict, as tensors; without `outputs` all parts of the predictions are returned."""

    inputs: Annotated[list[InputTensor], msgspec.Meta(min_length=1)]
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


class TensorMetadata(msgspec.Struct):
    """A column, or a part of the predictions; -1 stands for any number of rows."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """The columns of the model and the parts of its predictions; its version is the number of events it has learned."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: Parameters


class ServerMetadata(msgspec.Struct):
    """What answers."""

    name: str
    version: str
    extensions: list[str]


def request_in(body: bytes) -> InferenceRequest:
    """Read a request.

    Raises:
        RequestError: it is none.
    """
    try:
        return msgspec.json.decode(without_nan(body), type=InferenceRequest)
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise RequestError(400, f"the body is not a request for inference: {error}") from None


def records_of(request: InferenceRequest) -> list[bytes]:
    """Return the rows of the tensors as JSON objects.

    Raises:
        RequestError: shapes, types and data differ, or tensors have another number of rows, or the same name.
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
        if wrong := {*map(type, data)} - _VALUES[tensor.datatype.rstrip("0123456789")] - {type(None)}:
            value = next(each for each in data if type(each) in wrong)
            rule = f"which is no {tensor.datatype}; its datatype must fit all values but null"
            raise RequestError(400, f"inputs: tensor {shown(name)} has the value {shown(value)}, {rule}")
        if len(data) != rows:
            raise RequestError(
                400, f"inputs: tensor {shown(name)} has {counted(len(data), 'value')}, and its shape says {rows}"
            )
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
        RequestError: one of them does not exist, or is asked for twice.
    """
    n = len(rows)
    parts = dict(_parts(snapshot, rows))
    wanted = [each.name for each in request.outputs] or list(parts)
    if unknown := [each for each in wanted if each not in parts]:
        there = listed(list(parts), "and")
        raise RequestError(400, f"outputs: there is no {shown(unknown[0])}; there are {there}")
    if len({*wanted}) < len(wanted):  # each could be as large as the whole answer
        raise RequestError(400, "outputs: one is asked for twice; name each once")
    outputs = []
    for each in wanted:
        widths, datatype, data = parts[each]
        outputs.append(OutputTensor(each, [n, *widths], datatype, _flat(data)))
    return InferenceResponse(name, str(snapshot.version), outputs, _identity(snapshot), request.id)


def _identity(snapshot: Snapshot) -> Parameters:
    """Return positions and digest, as parameters may hold them."""
    positions: Parameters = {"positions": snapshot.positions_in_ascii}
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
        probabilities: list[Any] = [row.probabilities for row in rows]
        found["probabilities"] = _Part([len(names)], "FP64", [[each[name] for name in names] for each in probabilities])
    else:
        found["prediction"] = _Part(several, "FP64", by_output(predictions))
        if all(row.interval is not msgspec.UNSET for row in rows):
            found["interval"] = _Part([*several, 2], "FP64", by_output([row.interval for row in rows]))
    gates: list[Any] = [row.gate for row in rows]
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


def metadata(snapshot: Snapshot, name: str, *, has_interval: bool) -> ModelMetadata:
    """Return the metadata of the model: its inputs, which are its columns, and its outputs."""
    kinds, parts = snapshot.model.column_kinds, _parts(snapshot, [])
    inputs = [TensorMetadata(str(column), DATATYPES.get(kind, "BYTES"), [-1]) for column, kind in kinds.items()]
    outputs = [
        TensorMetadata(each, part.datatype, [-1, *(width or -1 for width in part.widths)])
        for each, part in parts.items()
        if has_interval or each != "interval"
    ]
    return ModelMetadata(name, [str(snapshot.version)], PLATFORM, inputs, outputs, _identity(snapshot))
