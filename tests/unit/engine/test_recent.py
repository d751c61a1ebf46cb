"""The latest events: how many are kept, which of them came after a change, and what a checkpoint may claim."""

import copy

import numpy as np
import pytest

from streammoe.engine.cost import Shape
from streammoe.engine.drift import Drift
from streammoe.engine.recent import RecentEvents
from streammoe.experts import Parameters, families

CAPACITY = 300
N = 3 * CAPACITY
RNG = np.random.default_rng(0)
X, Y, WEIGHTS = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 1)), RNG.random(N) + 0.5
CHANGE = N - 150
LOSSES = RNG.chisquare(1, size=N) + 3.0 * (np.arange(N) >= CHANGE)


THETA = Parameters(np.ones((1, 4)), np.ones((2, 1, 4)), np.ones((2, 1)))


def restored(arrays, n_fields=2):
    return RecentEvents.from_arrays(arrays, families()["gaussian"], Shape(4, 1, 4, 4), n=N, n_fields=n_fields)


def filled(n, scale=1.0, losses=LOSSES):
    rows = slice(max(n - CAPACITY, 0), n)
    arrays = {"X": X[rows], "Y": scale * Y[rows], "weights": WEIGHTS[rows], "losses": losses[rows]}
    return restored(
        {f"recent.{name}": array for name, array in arrays.items()} | {"recent.capacity": np.array([CAPACITY])}
    )


@pytest.mark.parametrize("later", [0, 90])
def test_the_change_is_found_among_the_events_before_the_drift(later):
    """Losses after the drift may be low again."""
    losses = np.where(np.arange(N) < N - later, LOSSES, 0.5)
    drift = Drift(N - later, 1.0, 4.0)
    rows, _, _ = filled(N, losses=losses).since_change(drift, N, 2, CAPACITY)
    assert abs(len(rows) - (N - CHANGE)) <= 3
    assert (rows == X[N - len(rows) :]).all()


def kept(*counts):
    recent = filled(5)
    for n in counts:
        recent.keep(n, THETA._replace(gate=np.full((1, 4), float(n))))
    return recent


def test_of_the_parameters_kept_the_latest_from_before_an_event_are_found():
    recent = kept(100, 200, 300)
    assert [recent.parameters_at(n) is None for n in (199, 200)] == [True, False]  # two are kept
    for again in (recent, copy.deepcopy(recent), restored(recent.arrays())):
        assert [again.parameters_at(n).gate[0, 0] for n in (200, 299, 300, 999)] == [200.0, 200.0, 300.0, 300.0]
        again.forget_parameters(250)
        assert again.parameters_at(299) is None
        assert again.parameters_at(300) is not None
        again.forget_parameters()
        assert again.parameters_at(999) is None


def test_targets_whose_squares_vanish_are_no_reason_to_begin_again():
    assert filled(CAPACITY, 1e-170).needless_loss(100, np.ones(1)) is None
    assert filled(CAPACITY, 1e-3).needless_loss(100, np.ones(1))[1] < 0.0
