"""Every damage to a checkpoint is noticed, and the store goes back to the generation before."""

import random
from pathlib import Path

import pytest

from streammoe.persistence import CheckpointStore

GOLDEN = Path(__file__).parents[2] / "golden" / "format-1" / "regressor-learned.safetensors"
FLIPS = 10_000
"""Changes of one bit, at random."""
ONE_IN = 97
"""Of the cases of the exhaustive form, those for every run; with a prime no offset is always passed over."""


@pytest.fixture
def newest_of(tmp_path, monkeypatch):
    """Return which of two generations is the newest sound one once the second one holds these bytes."""
    monkeypatch.setattr("streammoe.persistence.store.logger.disabled", True)
    store = CheckpointStore(tmp_path)
    store.path(1).write_bytes(GOLDEN.read_bytes())

    def newest_of(content):
        store.path(2).write_bytes(content)
        return store.latest()[0]

    assert newest_of(GOLDEN.read_bytes()) == 2
    return newest_of


@pytest.mark.parametrize("one_in", [ONE_IN, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_cut_off_at_any_length_the_one_before_is_taken(newest_of, one_in):
    data = GOLDEN.read_bytes()
    assert {newest_of(data[:length]) for length in range(0, len(data), one_in)} == {1}


@pytest.mark.parametrize("one_in", [ONE_IN, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_whatever_bit_is_changed_the_one_before_is_taken(newest_of, one_in):
    data = GOLDEN.read_bytes()
    chance = random.Random(2)
    for bit in (chance.randrange(8 * len(data)) for _ in range(FLIPS // one_in)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert newest_of(bytes(damaged)) == 1, bit
