"""Which fits enter a race, what each pays, and who leads."""

import math

import numpy as np
import pytest

from streammoe.engine import mm
from streammoe.engine.em import Buffer
from streammoe.engine.model_selection import (
    CHARGE_EVERY,
    ENTRANTS,
    SHORTEST_RACE,
    Candidate,
    Race,
    entrants,
    race_length,
    race_start,
)
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.state import UnsoundError
from streammoe.schedules import Power
from tests.unit.cases import Case, options, random_state

LINE = Case("gaussian", 1)
STEPS = Power(alpha=0.6)
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(200), RNG.normal(size=(200, 3))])
Y = X[:, 1:2] * np.where(X[:, 2:3] > 0.0, 1.0, -1.0) + 0.1 * RNG.normal(size=(200, 1))
Y[150] = np.nan
WEIGHTS = RNG.uniform(0.5, 2.0, size=200)
BUFFER = Buffer(X[:80], X[:80], X[:80, 1:2] + 0.1 * RNG.normal(size=(80, 1)), WEIGHTS[:80])
TOTALS = np.array([0.0, 0.0, 5.0])


def start(n_experts, share=None, seed=0):
    """Experts that all know so much of the truth."""
    state = random_state(LINE, n_experts, 4, 0.1, seed)
    if share is not None:
        state.average_experts[:] = share * np.array([0.0, 1.0, 0.0, 0.0])
    return state


def chosen(fit, most=5):
    return entrants(LINE.family, BUFFER, fit, max_experts=most, n_outputs=1, p_w=4, p_v=4)


@pytest.mark.parametrize(
    ("shares", "asked", "best"),
    [
        ({1: 1.0, 2: 0.5, 3: 0.0}, [1, 2, 3], [1, 2, 3]),
        ({1: -2.0, 2: -9.0, 3: 1.0, 4: -8.0, 5: -7.0}, [1, 2, 3, 4, 5], [3, 1, 5]),
        ({1: 0.0, 2: -9.0, 3: -8.0, 4: 1.0}, [1, 2, 3], [1, 3, 2]),
    ],
)
def test_the_cheapest_come_first_and_more_experts_are_tried_while_that_pays(shares, asked, best, monkeypatch):
    tried = []
    found = chosen(lambda K: tried.append(K) or start(K, shares[K]))
    assert tried == asked
    assert [len(entrant.state.masses) for entrant in found] == best
    assert len(best) == ENTRANTS
    for entrant in found:
        K = len(entrant.state.masses)
        errors = BUFFER.Y[:, 0] - shares[K] * X[:80, 1]
        loss = BUFFER.weights @ (0.5 * errors**2 + 0.5 * math.log(2.0 * math.pi))
        free = (K - 1) * 4 + K * 5
        assert entrant.total == pytest.approx(loss + 0.5 * math.log(80 + SHORTEST_RACE) * free)
    # What the prior has gained an entrant is added to its cost.
    monkeypatch.setattr("streammoe.engine.model_selection.prior_gain", lambda state: 1e-3 * len(state.masses))
    for before, after in zip(found, chosen(lambda K: start(K, shares[K])), strict=True):
        assert after.total - before.total == pytest.approx(80 * 1e-3 * len(after.state.masses))


def test_fits_of_which_nothing_finite_comes_are_left_out():
    def fit(K):
        if K != 2:
            raise UnsoundError([f"experts of {K}"])
        return start(K)

    assert [len(entrant.state.masses) for entrant in chosen(fit)] == [2]
    with pytest.raises(UnsoundError):
        chosen(fit, most=1)


def test_a_race_is_longer_after_a_longer_warm_up():
    assert (race_length(10), race_length(SHORTEST_RACE)) == (SHORTEST_RACE, 2 * SHORTEST_RACE)
    assert all(race_start(n + race_length(n)) == n for n in range(0, 3 * SHORTEST_RACE, 7))
    raced = Race([candidate(2), candidate(2)], np.zeros(2), 1_030)
    assert [raced.due(n) for n in (0, 30, 130, 229)] == [30, 30 + CHARGE_EVERY, 230, 230]
    about_one_expert = Race([candidate(2), candidate(2)], np.zeros(2), 1_030, 0)
    assert about_one_expert.due(0) == 1_030


def candidate(n_experts, seed=0):
    state = start(n_experts, seed=seed)
    return Candidate(state, mm.new_residual(LINE.family, state, 1), options(LINE, n_experts, schedule=STEPS))


def race():
    return Race([candidate(1), candidate(3), candidate(2, seed=4)], TOTALS.copy(), 10_000)


def learn(of, rows):
    return of.learn(LINE.family, STEPS, X[rows], X[rows], Y[rows], weights=WEIGHTS[rows], n_outputs=1, traced=True)


def alone(each):
    given = each.state, each.residual, each.options, STEPS, X, X, Y
    return mm.learn(LINE.family, *given, weights=WEIGHTS, n_outputs=1, traced=True)


def test_each_row_is_scored_by_the_leader_before_it():
    raced, totals, led = race(), TOTALS.copy(), set()
    assert raced.leader() is raced.candidates[0]  # of two as good the earlier
    found = learn(raced, slice(None))
    runs = [alone(each) for each in race().candidates]
    for i in range(200):
        leader = int(np.argmin(totals))
        led.add(leader)
        np.testing.assert_array_equal(found.predictions[i], runs[leader].predictions[i])
        np.testing.assert_array_equal(found.losses[i], runs[leader].losses[i])
        K = runs[leader].trace.shares.shape[1]
        np.testing.assert_array_equal(found.trace.shares[i, :K], runs[leader].trace.shares[i])
        np.testing.assert_array_equal(found.trace.means[i, :K], runs[leader].trace.means[i])
        assert (found.trace.shares[i, K:] == 0.0).all()
        if not np.isnan(Y[i, 0]):
            totals += [WEIGHTS[i] * run.losses[i] for run in runs]
    assert len(led) > 1, "one led throughout, so this shows nothing"
    assert raced.totals.tobytes() == totals.tobytes()
    assert raced.leader() is raced.candidates[int(totals.argmin())]
    assert learn(raced, slice(0, 0)).losses.shape == (0,)


def test_each_pays_for_what_its_own_prior_has_gained():
    raced = race()
    raced.candidates[1].state.masses[:] = [0.9, 0.05, 0.05]
    expected = [40 * prior_gain(each.state) for each in raced.candidates]
    assert expected[1] > expected[0] == 0.0
    before = raced.copy()
    raced.charge(40)
    raced.charge(0)
    assert raced.totals.tolist() == (TOTALS + expected).tolist()
    assert before.totals.tolist() == TOTALS.tolist()
