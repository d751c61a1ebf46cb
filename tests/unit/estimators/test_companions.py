"""The further experts that predict in a warm-up: what they are for."""

import numpy as np

from streammoe import MoEClassifier
from tests.unit.estimators.models import classes

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
