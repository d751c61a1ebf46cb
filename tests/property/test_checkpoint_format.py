"""Any state survives its bytes, and any damage to them is noticed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from streammoe.errors import CheckpointError
from streammoe.persistence import decode, encode, state_digest

SMALL = encode(
    {"experts": np.array([[1.0, -0.0], [np.nan, 2.5]]), "n": np.array(3), "rows": np.zeros((0, 5))},
    {"positions": {"path": "a.csv", "offset": 12}, "version": "0.1.0"},
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
any_array = arrays.arrays(
    st.sampled_from([np.float64, np.int64, np.uint8, np.bool_]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@settings(max_examples=20)
@given(
    named=st.dictionaries(st.text(max_size=8).filter(lambda name: name != "__metadata__"), any_array, max_size=4),
    metadata=st.dictionaries(st.text(max_size=8).filter(lambda key: key != "format"), json_values, max_size=4),
)
def test_what_is_written_is_read(named, metadata):
    data = encode(named, metadata)
    read = decode(data, "here")
    assert read.metadata == metadata
    assert state_digest(read.arrays) == state_digest(named)
    assert encode(*read) == data


def assert_damage_is_noticed(data):
    with pytest.raises(CheckpointError):
        decode(data, "here")


def test_every_truncation_and_every_changed_byte_is_noticed():
    for i, byte in enumerate(SMALL):
        assert_damage_is_noticed(SMALL[:i])
        assert_damage_is_noticed(SMALL[i + 1 :])
        for other in {byte ^ 1, byte ^ 32, byte ^ 128, *b' 09"\\\0'} - {byte}:
            assert_damage_is_noticed(SMALL[:i] + bytes([other]) + SMALL[i + 1 :])


@given(st.binary(max_size=200))
def test_garbage_is_rejected(data):
    assert_damage_is_noticed(data)
    assert_damage_is_noticed(len(data).to_bytes(8, "little") + data)
