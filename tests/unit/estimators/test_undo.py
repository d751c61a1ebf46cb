"""Events whose values are all in range, and that would yet leave no finite model: they are refused without a trace."""

import copy
import logging

import numpy as np
import pytest

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, schedules
from streammoe.engine import warmup
from streammoe.engine.state import UnsoundError
from streammoe.errors import PoisonedModel
from streammoe.estimators.undo import EVERY

ESTIMATORS = [MoERegressor, MoEClassifier, MoEMultiTargetRegressor]
FRAGILE = {
    "warmup": 40,
    "warmup_restarts": 1,
    "degree": 3,
    "range_factor": 0.0,
    "prior_strength": 0.0,
    "schedule": schedules.constant(0.999999),
}
"""Nothing is left out that keeps numbers apart: a cube of 9e49 has a square of 5e299."""
HUGE = 9e49
WARM_UP = FRAGILE["warmup"]
N = 3 * EVERY


def fragile(estimator, **arguments):
    return estimator(2, **{**FRAGILE, **arguments})


def event(estimator, i):
    rng = np.random.default_rng(i)
    x = {"a": float(rng.normal()), "b": float(rng.normal())}
    return x, target_of(estimator, x["a"])


def target_of(estimator, value):
    if estimator is MoEClassifier:
        return "p" if value > 0.0 else "q"
    return {"u": value, "v": -value} if estimator is MoEMultiTargetRegressor else value


def poison(estimator):
    """An event and its weight."""
    return {"a": HUGE, "b": 1.0}, target_of(estimator, 1.0), 1e6


def learn_all(model, start=0, stop=N):
    for i in range(start, stop):
        model.learn_one(*event(type(model), i))


def refused(model, x, y, w=1.0):
    with pytest.raises(InvalidEvent) as error:
        model.learn_one(x, y, w)
    return error.value


def table(estimator, n):
    events = [event(estimator, i) for i in range(n)]
    X = np.array([[x["a"], x["b"]] for x, _ in events])
    targets = [y for _, y in events]
    if estimator is MoEMultiTargetRegressor:
        return X, np.array([[y["u"], y["v"]] for y in targets])
    return X, np.array(targets)


def test_the_watch_for_drifts_goes_back_with_the_model():
    at = WARM_UP + 7
    model, twin = (fragile(MoERegressor, drift="page_hinkley") for _ in range(2))
    learn_all(model, 0, at)
    assert refused(model, *poison(MoERegressor)).reason == "poison"
    learn_all(twin, 0, at)
    assert model.arrays()["drift.counts"][0] == 7
    assert model.state_digest() == twin.state_digest()


def test_rows_that_somebody_changes_later_are_no_longer_his():
    model, twin = fragile(MoERegressor), fragile(MoERegressor)
    X, y = table(MoERegressor, 70)
    for each in (model, twin):
        each.learn_array(X[:50], y[:50])
    row, target, weight = X[50:51].copy(), y[50:51, None].copy(), np.ones(1)
    twin.learn_rows(row, target, weight)
    model.learn_rows(row, target, weight)
    row[:], target[:], weight[:] = 7.0, 7.0, 7.0
    refused(model, {"x0": HUGE, "x1": 1.0}, 1.0, 1e6)
    assert model.state_digest() == twin.state_digest()


def test_an_array_that_somebody_changes_later_is_no_longer_his():
    model, twin = fragile(MoERegressor), fragile(MoERegressor)
    X, y = table(MoERegressor, 70)
    for each in (model, twin):
        each.learn_array(X[:50], y[:50])
    rows, targets, weights, names = X[50:53].copy(), y[50:53].copy(), np.ones(3), ["x0", "x1"]
    twin.learn_array(rows, targets, weights=weights, feature_names=names)
    model.learn_array(rows, targets, weights=weights, feature_names=names)
    rows[:], targets[:], weights[:], names[:] = 7.0, 7.0, 7.0, ["x1", "x0"]
    refused(model, {"x0": HUGE, "x1": 1.0}, 1.0, 1e6)
    assert model.state_digest() == twin.state_digest()


def test_a_range_factor_set_in_between_is_that_of_the_events_after_it():
    model, twin = fragile(MoERegressor), fragile(MoERegressor)
    for each in (model, twin):
        learn_all(each, 0, 50)
        each.learn_one({"a": 1.0, "b": 1e30}, 1.0)
        each.set_range_factor(1e20)  # with which that would have been refused
        each.learn_one({"a": 1.0, "b": 1.0}, 1.0)
    assert refused(model, {"a": 1.0, "b": HUGE}, 1.0, 1e6).reason == "poison"
    assert refused(model, {"a": 1e45, "b": 1.0}, 1.0).reason == "out_of_range"
    assert model.state_digest() == twin.state_digest()


def test_columns_fixed_in_between_stay():
    model = fragile(MoERegressor)
    refused(model, {"a": 1e60}, 1.0)
    model.set_columns(["a", "b"])
    refused(model, *poison(MoERegressor))
    assert model.fields == ["a", "b"]


def test_outputs_fixed_in_between_stay():
    model = fragile(MoEMultiTargetRegressor)
    refused(model, {"a": 1e60}, {"s": 1.0})
    model.set_targets(["u", "v"])
    refused(model, *poison(MoEMultiTargetRegressor))
    assert model.output_names == ["u", "v"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_convergence_residual_stays_finite_whatever_it_is_shown(estimator):
    model = estimator(2, degree=2, warmup=WARM_UP, warmup_restarts=1, range_factor=0.0)
    learn_all(model, 0, 64)
    x, y = event(estimator, 64)
    model._state.average_experts[...] = model._state.experts[...] = 0.0
    model.learn_one({**x, "a": HUGE}, y)  # one in 64 enters, with a square of 1e397
    assert model.n == 65
    assert np.isfinite(model._residual).all()
    learn_all(model, 65, 200)
    assert np.isfinite(model._residual).all()


def interrupted(model, monkeypatch):
    """Interrupt the model when half an event is learned."""

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model._encoder, "notice_unplaced", stop)
        with pytest.raises(KeyboardInterrupt):
            model.learn_one({"a": 100.0, "b": 1.0}, 1.0)


def test_after_an_interrupted_event_the_way_back_begins_anew(monkeypatch):
    model = fragile(MoERegressor)
    learn_all(model, 0, 50)
    interrupted(model, monkeypatch)
    before = model.state_digest()
    refused(model, *poison(MoERegressor))
    assert model.state_digest() == before


# --- hostile states -------------------------------------------------------------------------------------------------

HOSTILE = {
    "experts": 1e299,
    "average_experts": 1e299,
    "gate": 1e299,
    "variances": 1e-320,
    "average_variances": 1e-320,
    "masses": 1e299,
    "expert_grams": 1.7e308,
    "expert_inverses": 1.7e308,
    "gate_gram": 1.7e308,
    "gate_inverse": -1.7e308,
    "decay": 5e-324,
    "prior_weight": 1.7e308,
}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_from_a_hostile_state_an_event_is_learned_whole_or_rejected_with_the_state_as_it_was(estimator):
    sound = estimator(2, warmup=WARM_UP, warmup_restarts=1)
    learn_all(sound, 0, 60)
    for name, value in HOSTILE.items():
        model = copy.deepcopy(sound)
        getattr(model._state, name)[...] = value
        for i in range(60, 70):
            before = model.state_digest()
            try:
                model.learn_one(*event(estimator, i))
            except InvalidEvent as error:
                assert error.reason == "poison", name  # noqa: PT017 - either outcome is right, and each has its promise
                assert model.state_digest() == before, name
            else:
                assert all(np.isfinite(array).all() for array in model._state), name
                assert model.state_digest() != before, name


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_spoilt_number_is_noticed_at_the_next_event_wherever_it_stands(estimator):
    sound = estimator(2, warmup=WARM_UP, warmup_restarts=1)
    learn_all(sound, 0, 60)
    for name in ("experts", "gate", "expert_grams", "expert_inverses", "gate_gram", "masses", "decay"):
        for value in (np.nan, np.inf):
            model = copy.deepcopy(sound)
            getattr(model._state, name).reshape(-1)[0] = value
            assert refused(model, *event(estimator, 60)).reason == "poison", name


# --- warm-up --------------------------------------------------------------------------------------------------------


def failing(times, monkeypatch):
    """Let the batch fit have nothing finite to say so many times."""
    real, calls = warmup.fit, []

    def fit(family, buffer, **arguments):
        calls.append(buffer)
        if len(calls) <= times:
            raise UnsoundError(["experts"])
        return real(family, buffer, **arguments)

    monkeypatch.setattr("streammoe.estimators.starting.warmup.fit", fit)
    return calls


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("times", "standardize"), [(1, True), (2, False)])
def test_a_warm_up_of_which_nothing_finite_comes_ends_all_the_same(estimator, times, standardize, monkeypatch, caplog):
    calls = failing(times, monkeypatch)
    model = estimator(2, warmup=WARM_UP, warmup_restarts=1, standardize=standardize)
    with caplog.at_level(logging.WARNING):
        learn_all(model, 0, WARM_UP)
    assert not model.is_warming_up
    assert model.n == WARM_UP
    assert len(calls) == 2
    assert len(caplog.records) == times
    learn_all(model, WARM_UP)
    assert model.is_finite()
    assert model.n == N


def test_a_classifier_whose_warm_up_held_what_nothing_finite_comes_of_goes_on():
    model = fragile(MoEClassifier)
    for i in range(WARM_UP):
        x, y = event(MoEClassifier, i)
        model.learn_one({**x, "a": HUGE} if i % 2 else x, y, 1e6)
    assert not model.is_warming_up
    learn_all(model, WARM_UP, N)
    assert model.n == N
    assert model.is_finite()


def test_the_second_fit_sees_neither_far_values_nor_heavy_weights(monkeypatch):
    first, second = failing(1, monkeypatch), None
    model = MoERegressor(2, warmup=WARM_UP, warmup_restarts=1)
    for i in range(WARM_UP):
        x, y = event(MoERegressor, i)
        model.learn_one({**x, "a": 1e5} if i == 5 else x, y, 50.0 if i == 6 else 1.0)
    first, second = first
    assert first.R.max() == 1e5
    assert first.weights.max() == 50.0
    assert second.R.max() < 100.0
    assert (second.weights == 1.0).all()


# --- keeping it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "after"), [(MoERegressor, 20), (MoEClassifier, 60), (MoEMultiTargetRegressor, 60)]
)
def test_a_poisoned_model_is_not_saved(estimator, after, tmp_path):
    model = estimator(2, warmup=WARM_UP, warmup_restarts=1)
    learn_all(model, 0, after)
    path = tmp_path / "model.safetensors"
    model.save(path)
    kept = path.read_bytes()
    state = model._warm_up.recursive if model.is_warming_up else model._state
    state.expert_grams[-1, 0, 1] = np.nan  # beside the diagonal, where no step looks
    with pytest.raises(PoisonedModel):
        model.save(path)
    assert path.read_bytes() == kept
    assert load(path).n == after
