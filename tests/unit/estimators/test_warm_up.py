"""The further experts that predict in a warm-up, and the scales of their inputs."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from tests.unit.estimators.models import NAMES, classes

LONG = {"warmup": 400, "standardize": True}


def test_a_ring_is_found_before_there_is_a_mixture():
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = ((X**2).sum(axis=1) > 1.4).astype(int)
    curved, flat = (MoEClassifier(2, curved=each, **LONG).learn_array(X, y)[100:].mean() for each in ("auto", "off"))
    assert curved < 0.5 * flat


def test_inputs_without_any_use_cost_little_more_than_the_frequencies_of_the_classes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 30)), (rng.random(100) < 0.3).astype(int)
    losses = {serve: MoEClassifier(2, serve=serve, **LONG).learn_array(X, y).sum() for serve in ("portfolio", "polyak")}
    counts = np.concatenate([[0], np.cumsum(y)[:-1]])
    chance = (counts + 0.5) / (np.arange(100) + 1.0)
    assert losses["portfolio"] < -np.log(np.where(y == 1, chance, 1.0 - chance)).sum() + 15.0 < losses["polyak"]


def test_a_late_class_and_a_late_column_are_learned_by_all():
    X, _ = classes(120)
    y = np.where(np.arange(120) > 90, "late", np.where(X[:, 0] > 0, "a", "b"))
    model = MoEClassifier(2, degree=2, **LONG)
    for i, row in enumerate(X.tolist()):
        model.learn_one({"a": row[0], "b": row[1], **({"A": row[2]} if i > 80 else {})}, str(y[i]))
    arrays = model.arrays()
    assert {arrays[f"warmup.{name}.experts"].shape[1] for name in ("modest", "constant", "curved")} == {2}
    # Features are 1, a, b, A and, behind all columns, their squares; of the late column there are no products.
    before = [[0, 0], [0, 1], [0, 2], [0, 4], [0, 5], [1, 1], [1, 2], [2, 2]]
    assert arrays["warmup.curved_terms"].tolist() == [*before, [0, 3], [0, 6]]
    assert model.predict_proba_one({"a": 0.0, "b": 0.0, "A": 0.0})["late"] > 0.5


# --- scales -----------------------------------------------------------------------------------------------------------

UNITS = np.array([1e4, 1e-3, 50.0])
OFFSETS = np.array([3e5, 0.0, -700.0])
N = 90


def losses(X, y, **more):
    return MoEClassifier(**{"n_experts": 2, "warmup": 200, "standardize": True, **more}).learn_array(X, y)


def test_units_and_offsets_of_inputs_do_not_matter_soon():
    X, y = classes(N)
    plain, moved = losses(X, y), losses(X * UNITS + OFFSETS, y)
    np.testing.assert_allclose(moved[8:], plain[8:], rtol=1e-6, atol=1e-6)
    assert moved[8:].mean() < losses(X * UNITS + OFFSETS, y, standardize=False)[8:].mean()


@pytest.mark.parametrize(("expert", "near"), [("gaussian", 1e-6), ("student_t", 0.5), ("laplace", 0.5)])
def test_the_first_predictions_are_the_mean_of_what_was_seen(expert, near):
    rng = np.random.default_rng(0)
    model = MoERegressor(expert=expert)
    seen = []
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
        assert 0.5 * abs(y) < high - low < 4.0 * abs(y)
