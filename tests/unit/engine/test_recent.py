"""The latest events: how many are kept, which of them came after a change, and what a checkpoint may claim."""

import copy

import numpy as np
import pytest

from streammoe.engine.drift import Drift
from streammoe.engine.recent import CAPACITY, RecentEvents
from streammoe.experts import Parameters, families

N = 3 * CAPACITY
RNG = np.random.default_rng(0)
X, Y, WEIGHTS = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 1)), RNG.random(N) + 0.5
CHANGE = N - 150
WIDE = 10.0
"""A scale of targets next to which these vary little."""
LOSSES = RNG.chisquare(1, size=N) + 3.0 * (np.arange(N) >= CHANGE)


THETA = Parameters(np.ones((1, 4)), np.ones((2, 1, 4)), np.ones((2, 1)))


def restored(arrays):
    sizes = {"n_fields": 2, "most_experts": 4, "n_outputs": 1, "p_w": 4, "p_v": 4}
    return RecentEvents.from_arrays(arrays, families()["gaussian"], n=N, **sizes)


def filled(n, pieces=(), losses=LOSSES):
    recent = RecentEvents()
    for rows in np.split(np.arange(n), pieces):
        recent.add(X[rows], Y[rows], WEIGHTS[rows], losses[rows])
    return recent


@pytest.mark.parametrize("later", [0, 90])
def test_the_change_is_found_among_the_events_before_the_drift(later):
    """Losses after the drift may be low again."""
    losses = np.where(np.arange(N) < N - later, LOSSES, 0.5)
    drift = Drift(N - later, 1.0, 4.0)
    rows, _, _ = filled(N, losses=losses).since_change(drift, N, 2)
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


def test_the_loss_of_a_constant_is_that_of_the_mean_and_deviation_of_the_targets_before():
    recent = filled(N)
    loss, constant = recent.needless_loss(100, np.array([WIDE]))
    before, last = Y[-200:-100, 0] / WIDE, Y[-100:, 0] / WIDE
    density = np.exp(-0.5 * (last - before.mean()) ** 2 / before.var()) / np.sqrt(2.0 * np.pi * before.var())
    assert loss == pytest.approx(np.median(LOSSES[-100:]))
    assert constant == pytest.approx(-np.log(density).mean())
    recent.keep_last(199)
    assert recent.needless_loss(100, np.array([WIDE])) is None


@pytest.mark.parametrize("since", [0, 40])
def test_a_constant_counts_where_targets_vary_little(since):
    """Which further targets do so is known before they are learned."""
    further = np.concatenate([Y[:160], 100.0 * Y[160:260], Y[260:460]])
    recent = filled(60)
    narrow = recent.are_narrow(100, since, further, np.array([WIDE]))
    every = np.concatenate([Y[:60][60 - since :], further])
    assert narrow.tolist() == [run.std() < 0.25 * WIDE for run in np.split(every[:400], 4)] + [True] * (since // 40)
    recent = RecentEvents()
    recent.add(X[:100], 100.0 * Y[:100], WEIGHTS[:100], LOSSES[:100])
    assert recent.needless_loss(50, np.array([WIDE])) is None
    assert recent.are_narrow(100, 40, Y[:60], np.array([WIDE])).tolist() == [False]
    assert RecentEvents().are_narrow(100, 40, Y[:60], np.array([WIDE])).tolist() == [False]


def test_a_constant_does_not_count_where_half_of_the_targets_are_equal():
    recent = RecentEvents()
    recent.add(X[:100], np.where(np.arange(100)[:, None] < 26, 0.0, Y[:100]), WEIGHTS[:100], LOSSES[:100])
    assert recent.needless_loss(50, np.full(1, WIDE)) is None
