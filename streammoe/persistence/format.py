"""The checkpoint format: safetensors bytes with one block of JSON and a digest over all of it.

Layout: header length (8 bytes, little-endian), header (JSON, padded with blanks to a multiple of 8), array bytes in
name order. The header's ``__metadata__`` holds two texts: ``streammoe``, canonical JSON whose ``format`` is the
format number, and ``digest``. Nothing in a checkpoint can execute, any safetensors reader opens it, and equal content
gives equal bytes. It is not written by the safetensors library because that orders the metadata at random.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streammoe.checked import MALFORMED, in_words, is_shallow
from streammoe.errors import CheckpointError
from streammoe.text import shown
from streammoe.types import AnyArray

FORMAT = 1
"""Number of the current format. It rises when older versions could not read a new checkpoint."""

DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Element types by their safetensors names."""

_CODES = {dtype.name: code for code, dtype in DTYPES.items()}

Bytes = bytes | memoryview


class Checkpoint(NamedTuple):
    """Everything that a restart needs as one unit: state, positions, counters and encoder."""

    arrays: dict[str, AnyArray]
    """Writable C-contiguous copies that share no memory."""
    metadata: dict[str, Any]
    """JSON values, without the format number."""


class NewerCheckpointError(CheckpointError):
    """A sound checkpoint from a later version; going back to an older one would undo what was learned since."""


def encode(arrays: Mapping[str, AnyArray], metadata: Mapping[str, Any]) -> bytes:
    """Encode a checkpoint as bytes; see `pieces`.

    >>> decode(encode({"theta": np.zeros((0, 5))}, {"n": 3}), "here")
    Checkpoint(arrays={'theta': array([], shape=(0, 5), dtype=float64)}, metadata={'n': 3})
    """
    return b"".join(pieces(arrays, metadata))


def pieces(arrays: Mapping[str, AnyArray], metadata: Mapping[str, Any]) -> list[Bytes]:
    """Encode a checkpoint as consecutive pieces of bytes; equal content gives equal bytes.

    Pieces share the memory of the arrays, except for those that must be converted to C order or little-endian; so
    nothing else is copied, writing or hashing large pieces lets other threads run, and the arrays must not change until
    the last piece is written.

    Args:
        arrays: of float64, int64, uint8 or bool, of any shape.
        metadata: JSON values with string keys and finite numbers; tuples come back as lists. ``format`` is reserved.

    Raises:
        TypeError: a value of another type.
        ValueError: NaN or infinity in the metadata, or a reserved name.
    """
    if "format" in metadata or "__metadata__" in arrays:
        raise ValueError("'format' in the metadata and '__metadata__' among the arrays are reserved by the format")
    if unknown := {array.dtype.name for array in arrays.values()} - set(_CODES):
        raise TypeError(f"a checkpoint holds arrays of {', '.join(_CODES)} only, got {', '.join(sorted(unknown))}")
    return _pieces(arrays, _canonical({"format": FORMAT, **metadata}))


def decode(data: bytes, origin: str) -> Checkpoint:
    """Decode a checkpoint and verify every byte of it.

    Args:
        data: the result of `encode`.
        origin: where the bytes come from, for messages.

    Raises:
        CheckpointError: the bytes are truncated, changed, not a checkpoint, or of an unknown format
            (`NewerCheckpointError`). Nothing else is raised, whatever the bytes are.
    """
    try:
        arrays, text = _unpack(data)
        # Packing again and comparing covers what the digest does not: blanks, key order, offsets, bytes after the end.
        sound = _pack(arrays, text) == data
        header = json.loads(text, parse_constant=_reject_constant)
        number = header.pop("format")
        if not is_shallow(header):
            raise ValueError("its metadata is nested too deeply")
    except MALFORMED as error:
        raise CheckpointError(f"{origin}: not a checkpoint, or truncated or damaged ({in_words(error)})") from error
    if not sound:
        raise CheckpointError(f"{origin}: damaged; its content does not match its digest")
    if number != FORMAT:
        raise NewerCheckpointError(
            f"{origin}: has checkpoint format {shown(number)}, but this version of streammoe reads format {FORMAT}; "
            "run the version that wrote it, or a later one"
        )
    return Checkpoint(arrays, header)


def state_digest(arrays: Mapping[str, AnyArray]) -> str:
    """Hash a state: sha256 over name, dtype, shape and little-endian C-order bytes, in name order.

    Models with the same digest continue bit for bit alike; 0.0 and -0.0 differ.

    >>> state_digest({"a": np.zeros(2)}) == state_digest({"a": np.zeros((2, 1))})
    False
    """
    return _digest(arrays, b"")


def _digest(arrays: Mapping[str, AnyArray], start: bytes) -> str:
    digest = hashlib.sha256(start)
    for name in sorted(arrays):
        array = arrays[name]
        # As JSON, which separates a name from the dtype that follows it.
        digest.update(_canonical([name, array.dtype.name, *array.shape]).encode())
        digest.update(_bytes(array))
    return digest.hexdigest()


def _pack(arrays: Mapping[str, AnyArray], text: str) -> bytes:
    return b"".join(_pieces(arrays, text))


def _pieces(arrays: Mapping[str, AnyArray], text: str) -> list[Bytes]:
    header: dict[str, Any] = {"__metadata__": {"digest": _digest(arrays, text.encode()), "streammoe": text}}
    body: list[Bytes] = []
    end = 0
    for name in sorted(arrays):
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _CODES[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, end]}
        body.append(_bytes(array))
    written = _canonical(header).encode()
    written += b" " * (-len(written) % 8)  # so that arrays are aligned
    return [len(written).to_bytes(8, "little"), written, *body]


def _unpack(data: bytes) -> tuple[dict[str, AnyArray], str]:
    """Split a checkpoint into arrays and metadata without verifying it."""
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data):
        raise ValueError(f"its {len(data)} bytes are fewer than its header requires")
    header = json.loads(data[8:start].decode())
    text = header.pop("__metadata__")["streammoe"]
    arrays = {name: _array(data, start, **entry) for name, entry in header.items()}
    return arrays, text


def _array(data: bytes, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> AnyArray:
    stored: AnyArray = np.frombuffer(data, DTYPES[dtype], math.prod(shape), start + data_offsets[0])
    return stored.reshape(shape).astype(stored.dtype.newbyteorder("="))


def _reject_constant(text: str) -> None:
    raise ValueError(f"its metadata holds {text}")


def _bytes(array: AnyArray) -> memoryview:
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8).data


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
