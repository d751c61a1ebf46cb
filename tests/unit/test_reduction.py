"""`reduce`: what it reconciles and refuses, and that the result is a model like others."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streammoe import Gaussian, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, reduce
from streammoe.reduction import reduce_with_details
from streammoe.types import AnyArray, FloatArray

WARMUP = 100


def stream(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    first = rng.random(n) < 1.0 / (1.0 + np.exp(-4.0 * X[:, 0]))
    return X, np.where(first, 1.0 + X[:, 1], 3.0 - 2.0 * X[:, 1]) + 0.1 * rng.normal(size=n)


def fitted(seed: int, n: int = 1000, **arguments: Any) -> MoERegressor:
    model = MoERegressor(**{"n_experts": 2, "warmup": WARMUP, "reservoir": 300, **arguments})
    model.learn_array(*stream(n, seed))
    return model


@pytest.fixture(scope="module")
def workers() -> list[MoERegressor]:
    return [fitted(seed) for seed in range(4)]


def test_reduced_workers_predict_as_one_that_saw_everything(workers: Sequence[MoERegressor]) -> None:
    one = MoERegressor(n_experts=2, warmup=WARMUP)
    for seed in range(4):
        one.learn_array(*stream(1000, seed))
    X, y = stream(4000, 99)
    before = [model.state_digest() for model in workers]
    errors = [float(np.mean((y - model.predict_array(X)) ** 2)) for model in (reduce(workers), one, *workers)]
    assert [model.state_digest() for model in workers] == before
    assert errors[0] < 1.05 * errors[1]
    assert errors[0] < min(errors[2:])


def test_a_reduced_model_saves_and_learns_on(workers: Sequence[MoERegressor], tmp_path: Path) -> None:
    model = reduce(workers)
    assert model.n == 4000
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    X, y = stream(500, 50)
    np.testing.assert_array_equal(model.learn_array(X, y), again.learn_array(X, y))
    assert model.state_digest() == again.state_digest()
    assert len(model.learner.reservoir_rows().X) == 300


def test_models_of_different_numbers_of_experts_become_one(workers: Sequence[MoERegressor]) -> None:
    more = fitted(5, n_experts=4)
    models = [*workers, more]
    X, y = stream(4000, 99)
    assert len(reduce(models).masses) == 2
    assert len(reduce(models, n_experts=3).masses) == 3
    errors = [np.mean((y - model.predict_array(X)) ** 2) for model in (reduce(models, n_experts=2), *models)]
    assert errors[0] < 1.01 * min(errors[1:])
    assert len(reduce([more], n_experts=2).masses) == 2


def test_a_model_that_differs_is_farther_from_the_result(workers: Sequence[MoERegressor]) -> None:
    other = MoERegressor(n_experts=2, warmup=WARMUP, reservoir=300)
    X, y = stream(1000, 7)
    other.learn_array(X, y + 2.0)
    found = reduce_with_details([*workers, other])
    assert found.divergences.argmax() == 4
    assert found.divergences[4] > 3.0 * found.divergences[:4].max()


def test_levels_and_orders_of_columns_are_reconciled() -> None:
    rng = np.random.default_rng(3)
    models = []
    for levels, names in ((("red", "green"), ("a", "b", "c")), (("blue", "red"), ("c", "b", "a"))):
        model = MoERegressor(n_experts=2, warmup=WARMUP, reservoir=500)
        for _ in range(600):
            values = {"a": rng.normal(), "b": rng.normal(), "c": levels[rng.integers(2)]}
            y = values["a"] * (1 if values["b"] > 0 else -1) + {"red": 0.0, "green": 5.0, "blue": -5.0}[values["c"]]
            model.learn_one({name: values[name] for name in names}, y + 0.05 * rng.normal())
        models.append(model)
    model = reduce(models)
    assert {name for name in model.feature_names if str(name).startswith("c=")} == {"c=blue", "c=green", "c=red"}
    for color, level in (("red", 0.0), ("green", 5.0), ("blue", -5.0)):
        assert model.predict_one({"a": 1.5, "b": 2.0, "c": color}) == pytest.approx(1.5 + level, abs=1.0)
    model.learn_one({"a": 1.0, "b": 0.0, "c": "green"}, 6.0)


def test_orders_of_labels_are_reconciled_and_labels_joined() -> None:
    def labels(n: int, seed: int) -> tuple[FloatArray, AnyArray]:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 2))
        return X, np.where(X[:, 0] > 0.5, "up", np.where(X[:, 0] < -0.5, "down", "level"))

    models = []
    for seed, order in ((0, ["up", "down", "level"]), (1, ["level", "up", "down"]), (2, ["down", "up"])):
        X, y = labels(1500, seed)
        chosen = np.isin(y, order)
        first = np.concatenate([np.flatnonzero(y == label)[:1] for label in order])
        rows = np.concatenate([first, np.setdiff1d(np.flatnonzero(chosen), first)])
        model = MoEClassifier(n_experts=2, warmup=WARMUP, reservoir=300)
        model.learn_array(X[rows], y[rows])
        models.append(model)
        assert model.output_names == order
    X, y = labels(2000, 9)
    reduced = reduce(models[:2])
    accuracies = [float(np.mean(model.predict_array(X) == y)) for model in (reduced, *models[:2])]
    assert accuracies[0] >= max(accuracies[1:]) - 0.01
    assert set(reduce(models).output_names) == {"up", "down", "level"}


def test_outputs_in_another_order_are_reconciled() -> None:
    rng = np.random.default_rng(4)
    models = []
    for names in (("u", "v"), ("v", "u")):
        model = MoEMultiTargetRegressor(n_experts=2, expert=Gaussian("full"), warmup=WARMUP, reservoir=400)
        model.set_targets(names)
        for _ in range(300):
            x = rng.normal(size=2)
            values = {"u": abs(x[0]) + 0.1 * rng.normal(), "v": 100.0 - 50.0 * x[1] + rng.normal()}
            model.learn_one({"a": x[0], "b": x[1]}, {name: values[name] for name in names})
        models.append(model)
    found = reduce(models).predict_one({"a": -2.0, "b": 1.0})
    assert found["u"] == pytest.approx(2.0, abs=0.2)
    assert found["v"] == pytest.approx(50.0, abs=3.0)


def test_classifiers_that_have_seen_one_class_only_are_reduced_and_learn_further_ones() -> None:
    X, _ = stream(300, 0)
    workers = [MoEClassifier(n_experts=2, warmup=WARMUP, reservoir=100) for _ in range(2)]
    for worker in workers:
        worker.learn_array(X, np.full(300, "usual"))
    for refine in (False, True):
        model = reduce(workers, refine=refine)
        assert model.predict_proba_one({"x0": 0.0, "x1": 0.0}) == {"usual": 1.0}
        model.learn_array(X, np.full(300, "rare"))
        assert set(model.predict_proba_one({"x0": 0.0, "x1": 0.0})) == {"usual", "rare"}


def test_refining_gains_where_gates_are_hard() -> None:
    def hard(n: int, seed: int) -> tuple[FloatArray, FloatArray]:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 6))
        return X, np.where(X @ np.ones(6) > 0.0, 20.0, -20.0) + rng.normal(size=n)

    workers = []
    for seed in range(6):
        worker = MoERegressor(n_experts=2, warmup=WARMUP, reservoir=400)
        worker.learn_array(*hard(400, seed))
        workers.append(worker)
    X, y = hard(5000, 99)
    plain, refined = (reduce(workers, refine=refine) for refine in (False, True))
    errors = [float(np.mean((y - model.predict_array(X)) ** 2)) for model in (plain, refined)]
    assert errors[1] < 0.9 * errors[0]
    assert refined.n == plain.n


def test_refining_does_not_bring_back_what_models_have_forgotten() -> None:
    workers = []
    for seed in range(4):
        worker = MoERegressor(n_experts=2, reservoir=500)
        for draw, sign in ((seed, 1.0), (50 + seed, -1.0)):
            X, y = stream(2000, draw)
            worker.learn_array(X, sign * y)
        workers.append(worker)
    X, y = stream(4000, 99)
    errors = [float(np.mean((y + reduce(workers, refine=refine).predict_array(X)) ** 2)) for refine in (False, True)]
    assert errors[1] == errors[0] < 1.3


def test_models_that_go_on_from_one_result_keep_as_many_different_events(workers: Sequence[MoERegressor]) -> None:
    """As workers do that go on from what they have become together, again and again."""
    models = list(workers)
    for at in range(6):
        result = reduce(models)
        models = [copy.deepcopy(result) for _ in models]
        for m, model in enumerate(models):
            model.learn_array(*stream(10, 1000 + 10 * at + m))
    rows = reduce(models).learner.reservoir_rows()
    assert len(np.unique(np.column_stack((rows.X, rows.Y)), axis=0)) == len(rows.X) == 300


def test_inputs_may_be_given_as_an_array_a_frame_or_events_and_weights(workers: Sequence[MoERegressor]) -> None:
    pd = pytest.importorskip("pandas")
    X, _ = stream(100, 80)
    events = [{"x0": a, "x1": b} for a, b in X.tolist()]
    found = [
        reduce(workers, support=given).state_digest() for given in (X, pd.DataFrame(X, columns=["x0", "x1"]), events)
    ]
    assert len(set(found)) == 1
    without = [fitted(seed, reservoir=0) for seed in range(2)]
    assert reduce([*without, workers[0]], support=X).n == 3000, "those without a reservoir are not refined"
    first = reduce(workers[:1], support=X).predict_array(X)
    near = reduce(workers, weights=[1e9, 1.0, 1.0, 1.0], support=X).predict_array(X)
    np.testing.assert_allclose(near, first, atol=1e-4)
