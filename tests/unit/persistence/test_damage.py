"""Damage to real checkpoints, in numbers: all of it is noticed, and the store goes back to the generation before."""

import logging
import random
from pathlib import Path

import pytest

from streammoe.persistence import CheckpointStore

GOLDEN = sorted((Path(__file__).parents[2] / "golden" / "format-1").glob("*.safetensors"))
FLIPS = 10_000
"""Changes of one bit, at random."""
EVERY = 97
"""The fast form looks at one case in so many; with a prime no offset is always passed over."""


@pytest.fixture
def folder(tmp_path):
    """Two generations in a store; the newer one is to be damaged."""
    logging.getLogger("streammoe.persistence").setLevel(logging.CRITICAL)
    (golden,) = [path for path in GOLDEN if path.stem == "regressor-learned"]
    store = CheckpointStore(tmp_path)
    store.path(1).write_bytes(GOLDEN[0].read_bytes())
    store.path(2).write_bytes(golden.read_bytes())
    assert store.latest()[0] == 2
    yield store, golden.read_bytes()
    logging.getLogger("streammoe.persistence").setLevel(logging.NOTSET)


def found(store, damaged):
    store.path(2).write_bytes(damaged)
    return store.latest()[0]


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.slow)])
def test_cut_off_at_any_length_the_one_before_is_taken(folder, every):
    store, data = folder
    taken = [found(store, data[:length]) for length in range(0, len(data), every)]
    assert set(taken) == {1}
    assert len(taken) >= len(data) // every


@pytest.mark.parametrize("every", [EVERY, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_bit_is_changed_the_one_before_is_taken(folder, every):
    store, data = folder
    chance = random.Random(2)
    places = [chance.randrange(8 * len(data)) for _ in range(FLIPS // every)]
    missed = []
    for place in places:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        if found(store, bytes(damaged)) != 1:
            missed.append(place)
    assert missed == []
    assert found(store, data) == 2
