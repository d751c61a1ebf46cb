import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from streammoe.errors import CheckpointError
from streammoe.persistence import FORMAT, NewerCheckpointError, decode, encode, state_digest
from streammoe.persistence.format import _pack
from streammoe.types import AnyArray

ARRAYS: dict[str, AnyArray] = {
    "experts": np.arange(12.0).reshape(2, 2, 3),
    "n": np.array(7),
    "rows": np.zeros((0, 5)),
    "columns": np.zeros((5, 0), bool),
    "flags": np.array([True, False]),
    "text": np.frombuffer(b"bytes", np.uint8),
    "edges": np.array([np.nan, -np.inf, -0.0, 5e-324]),
}
METADATA = {"version": "1.0", "positions": [{"path": "a\udcff.csv", "offset": 2**62}], "nothing": None, "rate": 0.1}


def reseal(text: str) -> bytes:
    """A checkpoint whose digest fits whatever JSON it holds, as a forger or a later version would write it."""
    return _pack({}, text)


class TestRoundTrip:
    def test_arrays_and_metadata_come_back(self) -> None:
        arrays, metadata = decode(encode(ARRAYS, METADATA), "here")
        assert metadata == METADATA
        assert arrays.keys() == ARRAYS.keys()
        for name, array in arrays.items():
            assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
            assert array.tobytes() == ARRAYS[name].tobytes()

    def test_arrays_are_the_readers_own(self) -> None:
        data = encode(ARRAYS, METADATA)
        for array in decode(data, "here").arrays.values():
            assert array.flags.owndata
            assert array.flags.writeable
            assert array.flags.c_contiguous
            assert array.flags.aligned
            array[...] = 1
        assert decode(data, "here").arrays["n"] == 7

    def test_nothing_at_all(self) -> None:
        assert decode(encode({}, {}), "here") == ({}, {})

    def test_layout_and_byte_order_of_an_array_do_not_matter(self) -> None:
        array = ARRAYS["experts"]
        variants = [np.asfortranarray(array), array.astype(">f8"), np.repeat(array, 2, axis=0)[::2]]
        for variant in variants:
            assert encode({"a": variant}, {}) == encode({"a": array}, {})
            assert state_digest({"a": variant}) == state_digest({"a": array})

    def test_equal_content_gives_equal_bytes(self) -> None:
        turned = encode(dict(reversed(ARRAYS.items())), dict(reversed(METADATA.items())))
        assert turned == encode(ARRAYS, METADATA)

    def test_any_safetensors_reader_opens_it(self) -> None:
        arrays = load_safetensors(encode(ARRAYS, METADATA))
        assert arrays.keys() == ARRAYS.keys()
        assert np.array_equal(arrays["experts"], ARRAYS["experts"])

    def test_the_header_explains_itself(self) -> None:
        data = encode(ARRAYS, {"n": 7})
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert json.loads(header["__metadata__"]["streammoe"]) == {"format": FORMAT, "n": 7}


class TestRefused:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\0" * 7,
            b"\0" * 8,
            b"\xff" * 64,
            b"garbage" * 100,
            b"\2\0\0\0\0\0\0\0{}",
            b"\2\0\0\0\0\0\0\0[]",
            (2**17).to_bytes(8, "little") + b"[" * 2**17,
            reseal("[]"),
            reseal("{}"),
            reseal("not JSON"),
            reseal('{"format":' + "[" * 2**17),
            encode({}, {}) + b" ",
        ],
    )
    def test_what_is_not_a_checkpoint(self, data: bytes) -> None:
        with pytest.raises(CheckpointError, match=r"^here: "):
            decode(data, "here")

    @pytest.mark.parametrize(
        "shape", ["[-1]", "[2,-1]", "[1e9]", "[9223372036854775807]", '["2"]', "[2,[1]]", "2", "[0]"]
    )
    def test_impossible_shapes(self, shape: str) -> None:
        data = encode({"a": np.zeros(2)}, {})
        header = data[8 : 8 + int.from_bytes(data[:8], "little")].replace(b'"shape":[2]', f'"shape":{shape}'.encode())
        with pytest.raises(CheckpointError):
            decode(len(header).to_bytes(8, "little") + header + data[-16:], "here")

    @pytest.mark.parametrize("number", [FORMAT + 1, 0, "1", None])
    def test_another_format_is_told_from_damage(self, number: object) -> None:
        with pytest.raises(NewerCheckpointError, match=f"has checkpoint format .* reads format {FORMAT}"):
            decode(reseal(json.dumps({"format": number})), "here")

    @pytest.mark.parametrize("dtype", ["f4", "i4", "O", "U3", "M8[s]"])
    def test_other_element_types_are_not_written(self, dtype: str) -> None:
        with pytest.raises(TypeError, match="holds arrays of"):
            encode({"a": np.zeros(2, dtype)}, {})

    @pytest.mark.parametrize("metadata", [{"loss": float("nan")}, {"format": 3}])
    def test_metadata_that_json_has_not(self, metadata: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=r"JSON|taken"):
            encode({}, metadata)


class TestStateDigest:
    def test_is_what_the_documentation_says(self) -> None:
        expected = hashlib.sha256(b'["a","bool",1]\1["b","float64",2,1]' + np.array([1.5, -0.0], "<f8").tobytes())
        assert state_digest({"b": np.array([[1.5], [-0.0]]), "a": np.array([True])}) == expected.hexdigest()

    @pytest.mark.parametrize(
        "other",
        [
            {"a": np.zeros(3)},
            {"b": np.zeros(2)},
            {"a": np.zeros((2, 1))},
            {"a": np.zeros(2, np.int64)},
            {"a": np.array([0.0, -0.0])},
            {"a": np.zeros(2), "b": np.zeros(0)},
            {},
        ],
    )
    def test_tells_states_apart(self, other: dict[str, AnyArray]) -> None:
        assert state_digest(other) != state_digest({"a": np.zeros(2)})
