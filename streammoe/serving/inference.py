"""The Open Inference Protocol, version 2: one tensor for each column, and one for each part of a prediction.

Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

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
    parts = {each: part for each, part in _parts(snapshot).items() if getattr(rows[0], each) is not msgspec.UNSET}
    wanted = [each.name for each in request.outputs] or list(parts)
    if unknown := [each for each in wanted if each not in parts]:
        there = listed(list(parts), "and")
        raise RequestError(400, f"outputs: there is no {shown(unknown[0])}; there are {there}")
    if len({*wanted}) < len(wanted):  # each could be as large as the whole answer
        raise RequestError(400, "outputs: one is asked for twice; name each once")
    outputs = []
    for each in wanted:
        (datatype, widths), data = parts[each], _flat([getattr(row, each) for row in rows])
        shape = [n, *(len(data) // n if width < 0 else width for width in widths)]
        outputs.append(OutputTensor(each, shape, datatype, data))
    return InferenceResponse(name, str(snapshot.version), outputs, _identity(snapshot), request.id)


def metadata(snapshot: Snapshot, name: str, *, has_interval: bool) -> ModelMetadata:
    """Return the metadata of the model: its inputs, which are its columns, and its outputs."""
    kinds = snapshot.model.column_kinds
    inputs = [
        TensorMetadata(str(column), "FP64" if kind == "number" else "BYTES", [-1]) for column, kind in kinds.items()
    ]
    outputs = [
        TensorMetadata(each, datatype, [-1, *widths])
        for each, (datatype, widths) in _parts(snapshot).items()
        if has_interval or each != "interval"
    ]
    return ModelMetadata(name, [str(snapshot.version)], PLATFORM, inputs, outputs, _identity(snapshot))


def _identity(snapshot: Snapshot) -> Parameters:
    """Return positions and digest, as parameters may hold them."""
    positions: Parameters = {"positions": snapshot.positions_in_ascii}
    return positions if snapshot.digest is None else {**positions, "digest": snapshot.digest}


def _parts(snapshot: Snapshot) -> dict[str, tuple[DataType, list[int]]]:
    """Return datatype and widths of the parts of a prediction, by their names; -1 stands for any width."""
    if snapshot.model.is_classifier:
        labels = {*map(str, snapshot.model.output_names)}
        return {"prediction": ("BYTES", []), "probabilities": ("FP64", [len(labels) or -1]), "gate": ("FP64", [-1])}
    n = len(snapshot.schema.targets)
    several = [n] if n > 1 else []
    return {"prediction": ("FP64", several), "interval": ("FP64", [*several, 2]), "gate": ("FP64", [-1])}


def _flat(value: Any) -> list[Any]:
    """Return nested lists and values of objects as one list, in row-major order."""
    if isinstance(value, dict):
        value = [*value.values()]
    return [each for part in value for each in _flat(part)] if isinstance(value, list | tuple) else [value]
