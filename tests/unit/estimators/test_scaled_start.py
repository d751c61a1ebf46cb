"""The inputs of the single expert that serves in a warm-up are scaled from the first events on."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.engine import warmup as fits
from streammoe.engine import warmup_buffer
from tests.unit.estimators.models import NAMES, classes, pairs, same, trained

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


def test_events_are_learned_again_so_many_at_each_event_and_the_fit_ends_as_if_at_once(monkeypatch):
    whole, model = (trained(n=0, warmup=200, standardize=True) for _ in range(2))
    events = pairs(type(model), N)[:23]
    for x, y in events:
        whole.learn_one(x, y)
    monkeypatch.setattr(fits, "relearned_rows", lambda *_: 4)
    monkeypatch.setattr(fits, "RARENESS", 0.0)
    learned = []
    learn = warmup_buffer.learn

    def counted(*arguments, **options):
        learned.append(len(arguments[5]))
        return learn(*arguments, **options)

    monkeypatch.setattr(warmup_buffer, "learn", counted)
    scalings = []
    for x, y in events:
        model.learn_one(x, y)
        scalings.append(model.arrays().get("warmup.rescaling", np.zeros(2)).tolist())
    assert max(learned) <= 4
    assert scalings[15:] == [[16, 16]] * 4 + [[0, 0]] * 4
    assert same(model, whole)
