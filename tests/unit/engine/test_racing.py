"""Candidates side by side: who leads, what a row's score is, and that cuts leave no trace."""

import numpy as np

from streammoe.engine import mm
from streammoe.engine.model_selection import CHARGE_EVERY, Candidate, Race
from streammoe.engine.prior_gain import prior_gain
from streammoe.experts import families
from streammoe.schedules import Power

FAMILY = families()["gaussian"]
STEPS = Power(alpha=0.6)
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(200), RNG.normal(size=(200, 3))])
Y = X[:, 1:2] * np.where(X[:, 2:3] > 0.0, 1.0, -1.0) + 0.1 * RNG.normal(size=(200, 1))
Y[150] = np.nan
WEIGHTS = RNG.uniform(0.5, 2.0, size=200)


def candidate(n_experts, seed=0):
    options = mm.learning_options(
        bound="tight", n_experts=n_experts, n_rows=1, prior_strength=0.1, averaging="polyak", schedule=STEPS
    )
    state = mm.random_start(FAMILY, n_experts=n_experts, p_w=4, p_v=4, n_outputs=1, prior_strength=0.1, seed=seed)
    return Candidate(state, mm.new_residual(FAMILY, state, 1), options)


def race(totals=(0.0, 0.0, 5.0)):
    return Race([candidate(1), candidate(3), candidate(2, seed=4)], np.array(totals), 10_000)


def learn(of, rows=slice(None), *, traced=False):
    return of.learn(FAMILY, STEPS, X[rows], X[rows], Y[rows], weights=WEIGHTS[rows], n_outputs=1, traced=traced)


def alone(each, *, traced=False):
    return mm.learn(
        FAMILY, each.state, each.residual, each.options, STEPS, X, X, Y, weights=WEIGHTS, n_outputs=1, traced=traced
    )


def test_each_row_is_scored_by_the_leader_before_it():
    raced = race()
    found = learn(raced, traced=True)
    runs = [alone(each, traced=True) for each in race().candidates]
    totals = np.array([0.0, 0.0, 5.0])
    led = []
    for i in range(200):
        leader = int(np.argmin(totals))
        led.append(leader)
        np.testing.assert_array_equal(found.predictions[i], runs[leader].predictions[i])
        np.testing.assert_array_equal(found.losses[i], runs[leader].losses[i])
        K = runs[leader].trace.shares.shape[1]
        np.testing.assert_array_equal(found.trace.shares[i, :K], runs[leader].trace.shares[i])
        np.testing.assert_array_equal(found.trace.means[i, :K], runs[leader].trace.means[i])
        assert (found.trace.shares[i, K:] == 0.0).all()
        if not np.isnan(Y[i, 0]):
            totals += [WEIGHTS[i] * run.losses[i] for run in runs]
    assert len(set(led)) > 1, "one led throughout, so this shows nothing"
    assert raced.totals.tobytes() == totals.tobytes()
    assert raced.leader() is raced.candidates[int(totals.argmin())]


def test_cuts_leave_no_trace():
    whole, parts = race(), race()
    expected = learn(whole)
    found = [learn(parts, part) for part in np.split(np.arange(200), [1, 50, 51, 150, 151])]
    assert np.concatenate([run.losses for run in found]).tobytes() == expected.losses.tobytes()
    assert np.concatenate([run.predictions for run in found]).tobytes() == expected.predictions.tobytes()
    assert parts.totals.tobytes() == whole.totals.tobytes()
    for ours, theirs in zip(parts.candidates, whole.candidates, strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(ours.state, theirs.state, strict=True))


def test_no_rows_are_nothing():
    raced = race()
    found = learn(raced, slice(0, 0), traced=True)
    assert found.losses.shape == (0,)
    assert raced.totals.tolist() == [0.0, 0.0, 5.0]


def test_earlier_candidates_win_ties():
    raced = race((1.0, 1.0, 1.0))
    assert raced.leader() is raced.candidates[0]


def test_candidates_are_charged_at_counts_that_end_with_the_last():
    raced = Race([candidate(1), candidate(2)], np.zeros(2), 1_030)
    counts = [raced.due(0)]
    while counts[-1] < raced.until:
        counts.append(raced.due(counts[-1]))
    assert counts == [30, *range(30 + CHARGE_EVERY, 1_031, CHARGE_EVERY)]
    assert {raced.due(n) for n in range(130, 230)} == {230}
    about_one = Race([candidate(2), candidate(2)], np.zeros(2), 1_030, 0)
    assert about_one.due(0) == 1_030


def test_each_pays_for_what_its_own_prior_has_gained():
    raced = race()
    raced.candidates[1].state.masses[:] = [0.9, 0.05, 0.05]
    expected = [40 * prior_gain(each.state) for each in raced.candidates]
    assert expected[1] > expected[0] == 0.0
    before = raced.copy()
    raced.charge(40)
    assert raced.totals.tolist() == (np.array([0.0, 0.0, 5.0]) + expected).tolist()
    assert before.totals.tolist() == [0.0, 0.0, 5.0]
    raced.charge(0)
    assert raced.totals.tolist() == (np.array([0.0, 0.0, 5.0]) + expected).tolist()


def test_a_copy_shares_nothing():
    raced = race()
    copied = raced.copy()
    learn(raced)
    assert copied.totals.tolist() == [0.0, 0.0, 5.0]
    assert all(int(each.state.n[0]) == 0 for each in copied.candidates)
    assert (copied.until, copied.expert) == (raced.until, raced.expert)
    learn(copied)
    assert copied.totals.tobytes() == raced.totals.tobytes()
