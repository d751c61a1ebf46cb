"""What a checkpoint file holds; `tests/property/test_checkpoint_format.py` damages and generates them at random."""

import hashlib
import json

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import FORMAT, NewerCheckpointError, decode, encode, state_digest
from streammoe.persistence.format import _pack

ARRAYS = {
    "experts": np.arange(12.0).reshape(2, 2, 3),
    "n": np.array(7),
    "edges": np.array([np.nan, -np.inf, -0.0, 5e-324]),
}
METADATA = {"positions": [{"path": "a\udcff.csv", "offset": 2**62}], "nothing": None}


def test_equal_content_gives_equal_bytes_whatever_its_order_and_layout():
    assert encode(dict(reversed(ARRAYS.items())), dict(reversed(METADATA.items()))) == encode(ARRAYS, METADATA)
    array = ARRAYS["experts"]
    for variant in (np.asfortranarray(array), array.astype(">f8"), np.repeat(array, 2, axis=0)[::2]):
        assert encode({"a": variant}, {}) == encode({"a": array}, {})
        assert state_digest({"a": variant}) == state_digest({"a": array})


def with_shape(shape):
    """A checkpoint of one array that says that it has this shape."""
    data = encode({"a": np.zeros(2)}, {})
    header = data[8 : 8 + int.from_bytes(data[:8], "little")].replace(b'"shape":[2]', f'"shape":{shape}'.encode())
    return len(header).to_bytes(8, "little") + header + data[-16:]


def test_what_is_not_a_checkpoint_is_rejected():
    for data in [
        encode({}, {}) + b" ",
        b"\2\0\0\0\0\0\0\0[]",
        (2**17).to_bytes(8, "little") + b"[" * 2**17,
        # The digest fits whatever JSON there is, as a forger would write it.
        _pack({}, "[]"),
        _pack({}, "not JSON"),
        _pack({}, '{"format":' + "[" * 2**17),
        *map(with_shape, ("[2,-1]", "[1e9]", f"[{2**63 - 1}]", "[[1]]", "2", "[0]")),
    ]:
        with pytest.raises(CheckpointError):
            decode(data, "here")


def test_another_format_is_distinguished_from_damage():
    for number in (FORMAT + 1, "1"):
        with pytest.raises(NewerCheckpointError):
            decode(_pack({}, json.dumps({"format": number})), "here")


def test_the_digest_is_what_the_documentation_says_and_distinguishes_states():
    expected = hashlib.sha256(b'["a","bool",1]\1["b","float64",2,1]' + np.array([1.5, -0.0], "<f8").tobytes())
    assert state_digest({"b": np.array([[1.5], [-0.0]]), "a": np.array([True])}) == expected.hexdigest()
    states = [{"a": np.zeros(2)}, {"a": np.zeros(3)}, {"b": np.zeros(2)}, {"a": np.zeros((2, 1))}, {}]
    states += [{"a": np.zeros(2, np.int64)}, {"a": np.array([0.0, -0.0])}, {"a": np.zeros(2), "b": np.zeros(0)}]
    assert len({state_digest(state) for state in states}) == len(states)
