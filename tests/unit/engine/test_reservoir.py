"""A sample of events: uniform, the same however events come, and what a checkpoint may claim of it."""

import itertools
import math

import numpy as np

from streammoe.engine.reservoir import AHEAD, LEAST, Reservoir

N = 3 * AHEAD
SIZE = 2 * LEAST + 5
RNG = np.random.default_rng(0)
X, Y, WEIGHTS = RNG.normal(size=(N, 2)), np.arange(N, dtype=np.float64)[:, None], RNG.random(N) + 0.5


def filled(n, pieces=(), size=SIZE, seed=3, between=lambda reservoir: reservoir):
    reservoir = Reservoir(size, seed)
    for rows in np.split(np.arange(n), pieces):
        reservoir.add(X[rows], Y[rows], WEIGHTS[rows])
        reservoir = between(reservoir)
    return reservoir


def state(reservoir):
    return {name: (array.shape, array.tobytes()) for name, array in reservoir.arrays(2).items()}


def numbers(reservoir, n_fields=2):
    """Which events are in the sample: each has its number as its target."""
    return reservoir.rows(n_fields).Y.ravel().astype(int)


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


def test_each_set_of_events_is_as_likely_as_any_other():
    """Of all 220 sets of 3 among 12 events."""
    sets = {held: at for at, held in enumerate(itertools.combinations(range(12), 3))}
    for pieces in ((), range(1, 12)):
        counts = np.zeros(len(sets))
        for seed in range(2000):
            counts[sets[tuple(sorted(numbers(filled(12, pieces, size=3, seed=seed))))]] += 1
        # Variance 2 × degrees of freedom: five deviations.
        assert chi_square(counts) < len(sets) + 5.0 * math.sqrt(2.0 * len(sets))


def test_far_into_a_stream_all_ages_are_equally_frequent():
    held = np.concatenate([numbers(filled(N, size=1000, seed=seed)) for seed in range(20)])
    counts = np.bincount(held * 16 // N, minlength=16)
    assert chi_square(counts) < 16 + 5.0 * math.sqrt(2.0 * 16)
    assert len(set(numbers(filled(N)))) == SIZE


def test_a_smaller_sample_is_a_uniform_part_and_goes_on_uniformly():
    counts = np.zeros(40)
    for seed in range(2000):
        smaller = filled(30, size=20, seed=seed).resized(5)
        smaller.add(X[30:40], Y[30:40], WEIGHTS[30:40])
        assert (smaller.count, smaller.seen) == (5, 40)
        counts[numbers(smaller)] += 1
    assert chi_square(counts) < 40 + 5.0 * math.sqrt(2.0 * 40)


def test_a_larger_sample_keeps_all_events_or_begins_again():
    assert state(filled(100).resized(SIZE + 50)) == state(filled(100, size=SIZE + 50))
    again = filled(SIZE + 1).resized(SIZE + 50)
    assert (again.count, again.seen) == (0, 0)
