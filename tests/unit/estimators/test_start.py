"""The first events of a stream: what is predicted before there are experts, and on which scales."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.engine.schedule import FIRST_FIT
from tests.unit.estimators.models import NAMES, classes, numbers

UNITS = np.array([1e4, 1e-3, 50.0])
OFFSETS = np.array([3e5, 0.0, -700.0])


@pytest.mark.parametrize(("expert", "near"), [("gaussian", 0.05), ("student_t", 0.5), ("laplace", 0.5)])
def test_the_first_predictions_are_the_mean_of_what_was_seen(expert, near):
    rng = np.random.default_rng(0)
    model, seen = MoERegressor(expert=expert), []
    for y in (1e6 + rng.normal(size=4)).tolist():
        x = dict(zip(NAMES, rng.normal(size=3) * UNITS + OFFSETS, strict=True))
        if seen:
            assert model.predict_one(x) == pytest.approx(np.mean(seen), abs=near)
        model.learn_one(x, y)
        seen.append(y)


def test_each_output_has_its_own_first_mean():
    model = MoEMultiTargetRegressor()
    model.learn_one({"a": 3.0}, {"u": 5.0, "v": -0.001})
    assert model.predict_one({"a": -70.0}) == pytest.approx({"u": 5.0, "v": -0.001})


@pytest.mark.parametrize("y", [5.0, -1e6, 1e-6])
def test_the_first_intervals_are_as_wide_as_equal_targets_are_large(y):
    model = MoERegressor()
    for _ in range(3):
        model.learn_one({"a": 1.0}, y)
        low, high = model.predict_distribution_one({"a": 2.0}).interval(0.9)
        assert low < y < high
        assert 0.5 * abs(y) < high - low < 5.0 * abs(y)


@pytest.mark.parametrize(("kind", "stream"), [(MoERegressor, numbers), (MoEClassifier, classes)])
def test_units_and_offsets_of_inputs_do_not_matter(kind, stream):
    X, y = stream(FIRST_FIT - 10)
    plain, moved = (kind(2).learn_array(rows, y) for rows in (X, X * UNITS + OFFSETS))
    np.testing.assert_allclose(moved[8:], plain[8:], rtol=1e-6, atol=1e-6)


def test_inputs_without_any_use_cost_little_more_than_the_frequencies_of_the_classes():
    rng = np.random.default_rng(0)
    n = FIRST_FIT
    X, y = rng.normal(size=(n, 30)), (rng.random(n) < 0.3).astype(int)
    counts = np.concatenate([[0], np.cumsum(y)[:-1]])
    chance = (counts + 0.5) / (np.arange(n) + 1.0)
    frequencies = -np.log(np.where(y == 1, chance, 1.0 - chance)).sum()
    losses = {serve: MoEClassifier(2, serve=serve).learn_array(X, y).sum() for serve in ("portfolio", "polyak")}
    assert losses["portfolio"] < frequencies + 15.0 < losses["polyak"]


def test_without_fits_random_experts_begin_at_once():
    X, y = numbers(3 * FIRST_FIT)
    model = MoERegressor(3, warmup=0)
    assert model.is_warming_up
    model.learn_array(X[:1], y[:1], feature_names=NAMES)
    assert (model.is_warming_up, len(model.experts())) == (False, 3)
    plain = MoERegressor(3, warmup=0, standardize=False)
    plain.learn_array(X[:1], y[:1], feature_names=NAMES)
    for each in (model, plain):
        each.learn_array(X[1:], y[1:], feature_names=NAMES)
    assert model.state_digest() == plain.state_digest(), "nothing is scaled"
