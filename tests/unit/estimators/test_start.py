"""The first events of a stream: what is predicted before there are experts, and on which scales."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine.schedule import FIRST_FIT
from tests.unit.estimators.models import NAMES, classes, numbers

UNITS = np.array([1e4, 1e-3, 50.0])
OFFSETS = np.array([3e5, 0.0, -700.0])


@pytest.mark.parametrize(("expert", "near"), [("gaussian", 0.1), ("student_t", 0.5), ("laplace", 0.5)])
def test_the_first_predictions_are_the_mean_of_what_was_seen(expert, near):
    rng = np.random.default_rng(0)
    model, seen = MoERegressor(expert=expert), []
    for y in (1e6 + rng.normal(size=4)).tolist():
        x = dict(zip(NAMES, rng.normal(size=3) * UNITS + OFFSETS, strict=True))
        if seen:
            assert model.predict_one(x) == pytest.approx(np.mean(seen), abs=near)
        model.learn_one(x, y)
        seen.append(y)


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
