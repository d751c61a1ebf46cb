"""A sample of events: uniform, however they come."""

import itertools
import math

import numpy as np

from streammoe.engine.reservoir import AHEAD, Reservoir

N = 3 * AHEAD
SIZE = 133
RNG = np.random.default_rng(0)
X, Y, WEIGHTS = RNG.normal(size=(N, 2)), np.arange(N, dtype=np.float64)[:, None], RNG.random(N) + 0.5


def filled(n, pieces=(), size=SIZE, seed=3):
    reservoir = Reservoir(size, seed)
    for rows in np.split(np.arange(n), pieces):
        reservoir.add(X[rows], Y[rows], WEIGHTS[rows])
    return reservoir


def numbers(reservoir):
    """Which events are in the sample: each has its number as its target."""
    return reservoir.rows(2).Y.ravel().astype(int)


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
