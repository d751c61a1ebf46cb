"""The latest events: how many are kept, which of them came after a change, and what a checkpoint may claim."""

import copy

import numpy as np
import pytest

from streammoe.engine.drift import Drift
from streammoe.engine.recent import CAPACITY, RecentEvents
from streammoe.errors import CheckpointError

N = 3 * CAPACITY
RNG = np.random.default_rng(0)
X, Y, WEIGHTS = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 1)), RNG.random(N) + 0.5
CHANGE = N - 150
LOSSES = RNG.chisquare(1, size=N) + 3.0 * (np.arange(N) >= CHANGE)


def filled(n, pieces=(), losses=LOSSES):
    recent = RecentEvents()
    for rows in np.split(np.arange(n), pieces):
        recent.add(X[rows], Y[rows], WEIGHTS[rows], losses[rows])
    return recent


def same(one, other):
    mine, its = one.arrays(), other.arrays()
    return all(mine[name].tobytes() == its[name].tobytes() for name in mine)


@pytest.mark.parametrize("n", [0, 3, CAPACITY, N])
def test_the_last_events_are_kept_however_they_came(n):
    whole = filled(n)
    assert whole.count == min(n, CAPACITY)
    assert (whole.rows(2)[0] == X[max(n - CAPACITY, 0) : n]).all()
    assert same(whole, filled(n, np.flatnonzero(RNG.random(n) < 0.2)))
    assert same(whole, filled(n, range(1, n)))
    assert same(whole, copy.deepcopy(whole))
    assert same(whole, RecentEvents.from_arrays(whole.arrays(), n_fields=2, n_targets=1))


def test_late_columns_are_missing_in_earlier_rows():
    recent = filled(10)
    wide = np.column_stack([X[:5], np.ones(5)])
    recent.add(wide, Y[:5], WEIGHTS[:5], LOSSES[:5])
    found, _ = recent.rows(4)
    assert np.isnan(found[:, 3]).all()
    assert np.isnan(found[:10, 2]).all()
    assert (found[10:, :3] == wide).all()


@pytest.mark.parametrize("later", [0, 90])
def test_the_change_is_found_among_the_events_before_the_drift(later):
    """Losses after the drift may be low again."""
    losses = np.where(np.arange(N) < N - later, LOSSES, 0.5)
    drift = Drift(N - later, 1.0, 4.0)
    rows, _, _ = filled(N, losses=losses).since_change(drift, N, 2)
    assert abs(len(rows) - (N - CHANGE)) <= 3
    assert (rows == X[N - len(rows) :]).all()


@pytest.mark.parametrize("name", filled(5).arrays())
def test_a_checkpoint_has_all_of_it_or_nothing(name):
    arrays = {key: array for key, array in filled(5).arrays().items() if key != name}
    with pytest.raises(CheckpointError):
        RecentEvents.from_arrays(arrays, n_fields=2, n_targets=1)


@pytest.mark.parametrize(
    "damage",
    [
        {"recent.X": np.zeros((5, 3))},
        {"recent.X": np.full((5, 2), np.inf)},
        {"recent.X": np.zeros((4, 2))},
        {"recent.Y": np.zeros((5, 2))},
        {"recent.Y": np.full((5, 1), np.nan)},
        {"recent.weights": np.full(5, -1.0)},
        {"recent.losses": np.zeros(CAPACITY + 1)},
    ],
)
def test_a_checkpoint_that_cannot_be_is_rejected(damage):
    with pytest.raises(CheckpointError):
        RecentEvents.from_arrays({**filled(5).arrays(), **damage}, n_fields=2, n_targets=1)
