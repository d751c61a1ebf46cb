"""Distributions are calibrated by where targets fall in them: how far that may be trusted."""

import copy
import math

import numpy as np
import pytest

from streammoe import MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions.mixtures import LEVELS
from streammoe.engine.intervals import mixture_intervals
from streammoe.engine.portfolio import Trust
from streammoe.errors import ConfigError
from streammoe.kernels import calibration

RNG = np.random.default_rng(0)
N = 2_000
X = RNG.normal(size=(N, 3))
LINE = X @ [1.0, -1.0, 0.5]
NOISE = RNG.normal(size=N)
TARGETS = {
    "all equal": np.zeros(N),
    "another value all the time": np.where(np.arange(N) < 500, 100.0, 0.0),
    "half zeros": np.where(RNG.random(N) < 0.5, 0.0, np.exp(LINE + NOISE)),
    "nearly all zeros": np.where(RNG.random(N) < 0.99, 0.0, 5.0 * NOISE),
    "counts": RNG.poisson(np.exp(0.3 * LINE)).astype(float),
    "skewed": np.exp(LINE + NOISE),
    "noise that grows": LINE + np.exp(LINE) * NOISE,
}


def row(i):
    return dict(zip(["x0", "x1", "x2"], X[i].tolist(), strict=True))


def inside(model, y, level):
    """Learn targets, and return which of them were in their intervals, but for the first one."""
    model.learn_array(X[:1], y[:1])
    outcome = model.learn_rows(X[1 : len(y)], y[1:, None], traced=True)
    low, high = mixture_intervals(*outcome.trace, level, model.learner.context.family.noise)[:, 0].T
    return (low <= y[1:]) & (y[1:] <= high)


@pytest.mark.parametrize("kind", TARGETS)
def test_intervals_hold_as_many_targets_as_they_say_also_where_values_recur(kind):
    for level in (0.5, 0.9):
        found = inside(MoERegressor(2), TARGETS[kind], level)[200:].mean()
        assert found > level - 0.05
        if kind in {"skewed", "noise that grows"}:
            assert found < level + 0.07


@pytest.mark.parametrize("kind", TARGETS)
def test_the_loss_of_an_event_is_that_of_the_distribution_before_it(kind):
    model, y = MoERegressor(2, lags="off"), TARGETS[kind]
    model.learn_array(X[:-5], y[:-5])
    for i in range(N - 5, N):
        distribution = model.predict_distribution_one(row(i))
        found = model.log_likelihood_array(X[[i]], y[[i]])[0]
        assert math.log(distribution.pdf(float(y[i]))) == pytest.approx(found, abs=1e-9)
        assert -model.learn_array(X[[i]], y[[i]])[0] == found


def test_one_of_several_outputs_is_calibrated_as_a_single_one():
    model = MoEMultiTargetRegressor(2, lags="off")
    model.learn_array(X[:-1], TARGETS["skewed"][:-1, None])
    distribution = model.predict_distribution_one(row(-1))
    y = TARGETS["skewed"][[-1]]
    assert math.log(distribution.pdf(y)) == pytest.approx(model.log_likelihood_array(X[-1:], y[:, None])[0], abs=1e-9)
    assert distribution.pdf(np.stack([y, y])).tolist() == [distribution.pdf(y)] * 2
    (name,) = distribution.names
    assert distribution.sample(np.random.default_rng(0), 3).ravel().tolist() == pytest.approx(
        distribution.marginal(name).sample(np.random.default_rng(0), 3).tolist()
    )


def test_where_the_members_are_right_it_costs_next_to_nothing_and_is_found_out_where_they_are_wrong():
    trust = Trust.beginning(1, 1, is_trusted=False)
    gains = calibration.gains_of(trust.ranks[0], trust.belief[0], RNG.random(100))
    assert not gains.any()
    model, total = MoERegressor(2, lags="off"), 0.0
    for start in range(0, N, 100):
        rows = slice(start, start + 100)
        model.learn_array(X[rows], (LINE + NOISE)[rows])
        trust = model.learner.phase.portfolio.trust
        total += np.abs(np.log(calibration.shares_of(trust.ranks, trust.belief) * calibration.PARTS)).mean()
    assert total < 20 * 0.03, "parts of a right distribution keep their probability"
    model.learn_array(X, TARGETS["half zeros"])
    assert model.learner.phase.portfolio.trust.belief[0] > 0.9


def test_after_targets_have_changed_their_distribution_it_is_not_trusted_for_long():
    model = MoERegressor(2, drift=None)
    model.learn_array(X, TARGETS["nearly all zeros"])
    found = inside(model, LINE + NOISE, 0.5)
    assert found[300:1000].mean() > 0.3
    assert found[1000:].mean() == pytest.approx(0.5, abs=0.1)


GROWING = LINE + 1.002 ** np.arange(N) * NOISE


@pytest.mark.parametrize("kind", ["growing", "half zeros", "skewed"])
def test_ends_move_until_intervals_hold_as_many_targets_as_they_say_and_keep_a_value_that_recurs(kind):
    y = GROWING if kind == "growing" else TARGETS[kind]
    kept = [inside(MoERegressor(2, calibrate=True), y, level).mean() for level in LEVELS]
    plain = [inside(MoERegressor(2, calibrate=False), y, level).mean() for level in LEVELS]
    if kind == "half zeros":
        assert (np.array(kept) > np.array(LEVELS) - 0.01).all()
        return
    np.testing.assert_allclose(kept, LEVELS, atol=0.02)
    assert np.abs(np.subtract(kept, LEVELS)).sum() < np.abs(np.subtract(plain, LEVELS)).sum()


def test_intervals_of_one_event_of_rows_and_of_what_is_learned_are_the_same():
    X3, Y = X[:1_000], np.column_stack([GROWING, TARGETS["skewed"]])[:1_000]
    model = MoEMultiTargetRegressor(2, lags="off")
    assert np.isnan(model.predict_interval_array(X3[:2])).all()
    assert model.predict_interval_one(row(0)) == {}
    model.learn_array(X3[:-1], Y[:-1])
    assert (model.learner.phase.portfolio.trust.stretch != 1.0).all()
    narrower = model.predict_interval_array(X3, 0.1)
    for level in (0.3, 0.8, 0.93, 0.99):
        several = model.predict_interval_array(X3, level)
        assert several.shape == (1_000, 2, 2)
        one = model.predict_interval_one(row(999), level)
        np.testing.assert_allclose([one["y0"], one["y1"]], several[-1], rtol=1e-9)
        trace = copy.copy(model).learn_rows(X3[-1:], Y[-1:], traced=True).trace
        np.testing.assert_allclose(mixture_intervals(*trace, level, model.noise)[0], several[-1], rtol=1e-9)
        assert (several[:, :, 0] < narrower[:, :, 0]).all()
        assert (several[:, :, 1] > narrower[:, :, 1]).all()
        narrower = several
    with pytest.raises(ConfigError):
        model.predict_interval_array(X3, 1.0)


def test_many_rows_are_scored_in_little_memory():
    import tracemalloc

    model = MoERegressor(3)
    model.learn_array(X, LINE + NOISE)
    rows, y = np.tile(X, (50, 1)), np.tile(LINE, 50)
    tracemalloc.start()
    model.log_likelihood_array(rows, y)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000 * 8 * 150
