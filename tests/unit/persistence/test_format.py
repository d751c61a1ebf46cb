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
    "rows": np.zeros((0, 5)),
    "columns": np.zeros((5, 0), bool),
    "flags": np.array([True, False]),
    "text": np.frombuffer(b"bytes", np.uint8),
    "edges": np.array([np.nan, -np.inf, -0.0, 5e-324]),
}
METADATA = {"version": "1.0", "positions": [{"path": "a\udcff.csv", "offset": 2**62}], "nothing": None, "rate": 0.1}


def sealed(text):
    """A checkpoint whose digest fits whatever JSON it holds, as a forger or a later version would write it."""
    return _pack({}, text)


@pytest.mark.parametrize("content", [(ARRAYS, METADATA), ({}, {})], ids=["all kinds", "nothing"])
def test_arrays_and_metadata_come_back_as_the_readers_own(content):
    data = encode(*content)
    arrays, metadata = decode(data, "here")
    assert metadata == content[1]
    assert arrays.keys() == content[0].keys()
    for name, array in arrays.items():
        wanted = content[0][name]
        assert (array.dtype, array.shape, array.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
        assert array.flags.owndata
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        array[...] = 1
    assert encode(*decode(data, "here")) == data


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


def test_with_shape_changes_nothing_but_the_shape():
    assert decode(with_shape("[2]"), "here").arrays["a"].shape == (2,)


IMPOSSIBLE_SHAPES = ("[-1]", "[2,-1]", "[1e9]", "[9223372036854775807]", '["2"]', "[2,[1]]", "2", "[0]")
NO_CHECKPOINTS = {
    "nothing": b"",
    "half a length": b"\0" * 7,
    "no header": b"\0" * 8,
    "a length beyond the end": b"\xff" * 64,
    "garbage": b"garbage" * 100,
    "no metadata": b"\2\0\0\0\0\0\0\0{}",
    "a list for a header": b"\2\0\0\0\0\0\0\0[]",
    "a deep header": (2**17).to_bytes(8, "little") + b"[" * 2**17,
    "a list for metadata": sealed("[]"),
    "no format": sealed("{}"),
    "no JSON": sealed("not JSON"),
    "deep metadata": sealed('{"format":' + "[" * 2**17),
    "a byte after the end": encode({}, {}) + b" ",
    **{f"shape {shape}": with_shape(shape) for shape in IMPOSSIBLE_SHAPES},
}


def test_what_is_not_a_checkpoint_is_rejected():
    for name, data in NO_CHECKPOINTS.items():
        try:
            decode(data, "here")
        except CheckpointError:
            continue
        pytest.fail(name)


@pytest.mark.parametrize("number", [FORMAT + 1, 0, "1", None])
def test_another_format_is_told_from_damage(number):
    with pytest.raises(NewerCheckpointError):
        decode(sealed(json.dumps({"format": number})), "here")


def test_element_types_and_metadata_that_the_format_has_not_are_not_written():
    for dtype in ("f4", "i4", "O", "U3", "M8[s]"):
        with pytest.raises(TypeError):
            encode({"a": np.zeros(2, dtype)}, {})
    for metadata in ({"loss": float("nan")}, {"format": 3}):
        with pytest.raises(ValueError):
            encode({}, metadata)


def test_the_digest_is_what_the_documentation_says_and_tells_states_apart():
    expected = hashlib.sha256(b'["a","bool",1]\1["b","float64",2,1]' + np.array([1.5, -0.0], "<f8").tobytes())
    assert state_digest({"b": np.array([[1.5], [-0.0]]), "a": np.array([True])}) == expected.hexdigest()
    states = [
        {"a": np.zeros(2)},
        {"a": np.zeros(3)},
        {"b": np.zeros(2)},
        {"a": np.zeros((2, 1))},
        {"a": np.zeros(2, np.int64)},
        {"a": np.array([0.0, -0.0])},
        {"a": np.zeros(2), "b": np.zeros(0)},
        {},
    ]
    assert len({state_digest(state) for state in states}) == len(states)
