"""What a checkpoint file holds; `tests/property/test_checkpoint_format.py` damages and generates them at random."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from streammoe.errors import CheckpointError
from streammoe.persistence import FORMAT, NewerCheckpointError, decode, encode, state_digest
from streammoe.persistence.format import _pack

ARRAYS = {
    "experts": np.arange(12.0).reshape(2, 2, 3),
    "n": np.array(7),
    "columns": np.zeros((5, 0), bool),
    "flags": np.array([True, False]),
    "text": np.frombuffer(b"bytes", np.uint8),
    "edges": np.array([np.nan, -np.inf, -0.0, 5e-324]),
}
METADATA = {"version": "1.0", "positions": [{"path": "a\udcff.csv", "offset": 2**62}], "nothing": None, "rate": 0.1}


def test_arrays_and_metadata_come_back_as_the_readers_own():
    arrays, metadata = decode(encode(ARRAYS, METADATA), "here")
    assert metadata == METADATA
    assert arrays.keys() == ARRAYS.keys()
    for name, array in arrays.items():
        wanted = ARRAYS[name]
        assert (array.dtype, array.shape, array.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
        assert array.flags.owndata
        assert array.flags.carray
        array[...] = 1


def test_equal_content_gives_equal_bytes_whatever_its_order_and_layout():
    assert encode(dict(reversed(ARRAYS.items())), dict(reversed(METADATA.items()))) == encode(ARRAYS, METADATA)
    array = ARRAYS["experts"]
    for variant in (np.asfortranarray(array), array.astype(">f8"), np.repeat(array, 2, axis=0)[::2]):
        assert encode({"a": variant}, {}) == encode({"a": array}, {})
        assert state_digest({"a": variant}) == state_digest({"a": array})


def test_any_safetensors_reader_opens_it_and_finds_the_metadata():
    data = encode(ARRAYS, {"n": 7})
    arrays = load_safetensors(data)
    assert arrays.keys() == ARRAYS.keys()
    assert np.array_equal(arrays["experts"], ARRAYS["experts"])
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert json.loads(header["__metadata__"]["streammoe"]) == {"format": FORMAT, "n": 7}


def with_shape(shape):
    """A checkpoint of one array that says that it has this shape."""
    data = encode({"a": np.zeros(2)}, {})
    header = data[8 : 8 + int.from_bytes(data[:8], "little")].replace(b'"shape":[2]', f'"shape":{shape}'.encode())
    return len(header).to_bytes(8, "little") + header + data[-16:]


NO_CHECKPOINTS = {
    "no metadata": b"\2\0\0\0\0\0\0\0{}",
    "a list for a header": b"\2\0\0\0\0\0\0\0[]",
    "a deep header": (2**17).to_bytes(8, "little") + b"[" * 2**17,
    # The digest fits whatever JSON there is, as a forger would write it.
    "a list for metadata": _pack({}, "[]"),
    "no format": _pack({}, "{}"),
    "no JSON": _pack({}, "not JSON"),
    "deep metadata": _pack({}, '{"format":' + "[" * 2**17),
    "a byte after the end": encode({}, {}) + b" ",
    **{
        shape: with_shape(shape)
        for shape in ("[-1]", "[2,-1]", "[1e9]", f"[{2**63 - 1}]", '["2"]', "[[1]]", "2", "[0]")
    },
}


def test_what_is_not_a_checkpoint_is_rejected():
    assert decode(with_shape("[2]"), "here").arrays["a"].shape == (2,)
    for name, data in NO_CHECKPOINTS.items():
        try:
            decode(data, "here")
        except CheckpointError:
            continue
        pytest.fail(name)


def test_another_format_is_told_from_damage():
    for number in (FORMAT + 1, 0, "1", None):
        with pytest.raises(NewerCheckpointError):
            decode(_pack({}, json.dumps({"format": number})), "here")


def test_element_types_and_metadata_that_the_format_has_not_are_not_written():
    for dtype in ("f4", "i4", "O", "U3", "M8[s]"):
        with pytest.raises(TypeError):
            encode({"a": np.zeros(2, dtype)}, {})
    for metadata in ({"loss": float("nan")}, {"format": 3}):
        with pytest.raises(ValueError):
            encode({}, metadata)


def test_the_digest_is_what_the_documentation_says_and_distinguishes_states():
    expected = hashlib.sha256(b'["a","bool",1]\1["b","float64",2,1]' + np.array([1.5, -0.0], "<f8").tobytes())
    assert state_digest({"b": np.array([[1.5], [-0.0]]), "a": np.array([True])}) == expected.hexdigest()
    states = [{"a": np.zeros(2)}, {"a": np.zeros(3)}, {"b": np.zeros(2)}, {"a": np.zeros((2, 1))}, {}]
    states += [{"a": np.zeros(2, np.int64)}, {"a": np.array([0.0, -0.0])}, {"a": np.zeros(2), "b": np.zeros(0)}]
    assert len({state_digest(state) for state in states}) == len(states)
