"""What it costs to find the exact end of what a damaged gzip file still holds."""

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammoe_connectors.files import gzipped

RNG = random.Random(3)
CONTENT = b"".join(b"%d,%d\n" % (RNG.randrange(1000), i) for i in range(9_000))


class Counting:
    """A decoder that counts how many pieces it and its copies are given."""

    def __init__(self, decoder, fed):
        self.decoder = decoder
        self.fed = fed

    def copy(self):
        return Counting(self.decoder.copy(), self.fed)

    def decompress(self, data):
        self.fed.append(len(data))
        return self.decoder.decompress(data)


def byte_by_byte(data):
    decoder, pieces = zlib.decompressobj(31), []
    try:
        for i in range(len(data)):
            pieces.append(decoder.decompress(data[i : i + 1]))  # noqa: PERF401 - `extend` would lose them all
    except zlib.error:
        return b"".join(pieces)
    return None


@given(
    level=st.sampled_from([0, 1, 9]),
    at=st.floats(0, 1),
    damage=st.binary(min_size=1, max_size=40),
)
def test_a_few_pieces_give_what_single_bytes_would(level, at, damage):
    data = bytearray(gzip.compress(CONTENT, level)[: 1 << 16])
    at = int(at * (len(data) - len(damage)))
    data[at : at + len(damage)] = damage
    expected = byte_by_byte(data)
    if expected is None:  # it still decompresses
        return
    fed = []
    assert gzipped._salvage(Counting(zlib.decompressobj(31), fed), bytes(data)) == expected
    assert len(fed) <= 17
    assert sum(fed) <= len(data)


@pytest.mark.parametrize("data", [b"\0", b"\x1f\x8b\0"])
def test_damage_in_the_first_bytes_leaves_nothing(data):
    assert gzipped._salvage(zlib.decompressobj(31), data) == b""
