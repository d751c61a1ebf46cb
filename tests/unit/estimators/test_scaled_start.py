"""The inputs of the single expert that serves in a warm-up are scaled from the first events on."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.engine import warmup as fits
from streammoe.engine import warmup_buffer
from streammoe.errors import CheckpointError
from streammoe.model import checkpoint
from tests.pairs import pairwise_cases
from tests.unit.estimators.models import ESTIMATORS, NAMES, OUTPUTS, classes, pairs, same, trained

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


@pytest.mark.parametrize(
    "case",
    pairwise_cases(kind=ESTIMATORS, standardize=(True, False), late=(True, False), at_each=(None, 2, 5)),
)
def test_it_is_the_same_event_by_event_and_over_a_restart(case, tmp_path, monkeypatch):
    kind, standardize, late, at_each = case.values()
    if at_each is not None:  # as wide models learn them again
        monkeypatch.setattr(fits, "relearned_rows", lambda *_: at_each)
        monkeypatch.setattr(fits, "RARENESS", 0.0 if at_each == 2 else fits.RARENESS)
    whole, single, cut = (trained(kind, 0, standardize=standardize, warmup=200) for _ in range(3))
    events = pairs(kind, N)
    if late:  # a column that appears while the scales are still being taken
        events = [({**x, "late": 100.0 * i} if i >= 20 else x, y) for i, (x, y) in enumerate(events)]
    for i, (x, y) in enumerate(events):
        single.learn_one(x, y)
        cut.learn_one(x, y)
        if i in (0, 2, 5, 20, 33, 70):
            cut.save(tmp_path / "cut.safetensors")
            cut = load(tmp_path / "cut.safetensors")
            assert cut.predict_one(x) == single.predict_one(x)
    assert same(single, cut)
    if not late:
        X = np.array([[x[name] for name in NAMES] for x, _ in events])
        Y = np.array([[y[name] for name in OUTPUTS] if isinstance(y, dict) else y for _, y in events])
        whole.learn_array(X, Y, feature_names=NAMES)
        assert same(single, whole)


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


def test_models_that_learn_few_again_at_an_event_take_another_scale_less_often_but_do(monkeypatch):
    monkeypatch.setattr(fits, "RESCALE_WORK", 0.0)
    model = trained(n=0, warmup=200, standardize=True)
    began = []
    for x, y in pairs(type(model), 150):
        model.learn_one(x, y)
        began.append(int(model.arrays().get("warmup.rescaling", np.zeros(2))[1]))
    assert {*began} == {0, 3, 6, 64}
    assert began[9:63] == [0] * 54
    assert began[-1] == 0


@pytest.mark.parametrize("claimed", [[0, 40], [8, 41], [33, 32], [-1, -1]])
def test_a_checkpoint_whose_new_scale_does_not_suit_its_buffer_is_rejected(claimed):
    model = trained(n=40, warmup=200, standardize=True)
    arrays = {**model.arrays(), "warmup.rescaling": np.array(claimed)}
    with pytest.raises(CheckpointError):
        checkpoint.restore(trained(n=0, warmup=200, standardize=True).learner, arrays)


@pytest.mark.parametrize("claimed", [-1, 41])
def test_a_checkpoint_that_claims_other_scales_than_its_buffer_has_is_rejected(claimed):
    model = trained(n=40, warmup=200, standardize=True)
    arrays = {**model.arrays(), "warmup.scaling": np.array([claimed])}
    with pytest.raises(CheckpointError):
        checkpoint.restore(trained(n=0, warmup=200, standardize=True).learner, arrays)
