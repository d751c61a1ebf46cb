"""Mixtures fitted to part of a long warm-up's buffer: when, what they bring, and that they leave no trace behind it."""

import logging
import sys

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.batch import fit
from streammoe.engine import warmup
from streammoe.engine.state import UnsoundError
from streammoe.estimators import provisional as interim
from streammoe.estimators.provisional import next_fit

FIRST, WARM_UP, N = 40, 170, 200
MODELS = [
    (MoERegressor, {"standardize": True}),
    (MoERegressor, {"gate_degree": 2, "batch_size": 8, "expert": "student_t"}),
    (MoEMultiTargetRegressor, {"covariance": "full", "standardize": True}),
    (MoEClassifier, {}),
]
BRIEF = {"n_experts": 2, "warmup": WARM_UP, "warmup_restarts": 1}
RNG = np.random.default_rng(3)
X = RNG.uniform(-1.0, 1.0, (N, 2)) + 5.0
KINKED = 4.0 * np.abs(X[:, 0] - 5.0) + X[:, 1] + 0.1 * RNG.normal(size=N)

TARGETS = {
    MoERegressor: KINKED,
    MoEMultiTargetRegressor: np.column_stack([KINKED, X[:, 0] - KINKED]),
    MoEClassifier: np.where(np.abs(X[:, 0] - 5.0) > 0.5, "far", "near"),
}
models = pytest.mark.parametrize(("kind", "more"), MODELS, ids=lambda value: getattr(value, "__name__", str(value)))


@pytest.fixture
def early(monkeypatch):
    """Fits at 40 and 80 of the 170 events that a buffer here holds."""
    monkeypatch.setattr(interim, "FIRST_FIT", FIRST)


@pytest.fixture
def never(monkeypatch):
    """Calls something without any such fit."""

    def call(function):
        with monkeypatch.context() as patched:
            patched.setattr(interim, "FIRST_FIT", sys.maxsize)
            return function()

    return call


def learned(kind, more, stop=N, **arguments):
    model = kind(**{**BRIEF, **more, **arguments})
    model.learn_array(X[:stop], TARGETS[kind][:stop])
    return model


def predicted(kind, model):
    return model.predict_proba_array(X) if kind is MoEClassifier else model.predict_array(X)


def fits(caplog):
    return [record.args[0] for record in caplog.records if record.msg.startswith("warm-up: a mixture")]


# --- when -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "due"),
    [
        (0, [0]),
        (571, [571]),
        (572, [400, 572]),
        (22_230, [400, 800, 1600, 3200, 6400, 12_800, 22_230]),
    ],
)
def test_fits_come_at_counts_that_follow_from_the_size_alone(size, due):
    found = [next_fit(0, size)]
    while found[-1] < size:
        assert {next_fit(n, size) for n in (found[-1], found[-1] + 1)} == {next_fit(found[-1], size)}
        found.append(next_fit(found[-1], size))
    assert found == due


def test_a_model_fits_at_these_counts_and_no_other(early, caplog):
    caplog.set_level(logging.INFO)
    learned(MoERegressor, {})
    assert fits(caplog) == [FIRST, 2 * FIRST]


@pytest.mark.parametrize("more", [{"warmup": 57}, {"warmup": 0}, {"n_experts": 1}, {"n_experts": "auto"}], ids=str)
def test_there_are_none_in_a_short_warm_up_nor_without_a_number_of_experts(more, early, never, caplog):
    caplog.set_level(logging.INFO)
    model = learned(MoERegressor, more, 56)
    assert not fits(caplog)
    plain = never(lambda: learned(MoERegressor, more, 56))
    assert model.arrays().keys() == plain.arrays().keys()
    assert model.state_digest() == plain.state_digest()


def test_rows_that_are_gathered_for_a_batch_fit_are_fitted_once(early, caplog):
    caplog.set_level(logging.INFO)
    model = MoERegressor(**BRIEF)
    fit(model, X, KINKED)
    assert not fits(caplog)
    assert not model.is_warming_up


# --- what they bring ------------------------------------------------------------------------------------------------


@models
def test_the_mixture_predicts_better_than_one_expert(kind, more, early, never):
    events = X[:WARM_UP], TARGETS[kind][:WARM_UP]
    losses = kind(**{**BRIEF, **more, "warmup": 1000}).learn_array(*events)
    alone = never(lambda: kind(**{**BRIEF, **more, "warmup": 1000}).learn_array(*events))
    assert losses[:FIRST].tobytes() == alone[:FIRST].tobytes()
    assert losses[80:].mean() < alone[80:].mean() - 0.1


def test_a_default_warm_up_of_many_parameters_has_one(never):
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1.0, 1.0, (700, 22))
    y = np.where(inputs[:, 0] > 0.0, inputs[:, 1], -inputs[:, 1]) + 0.1 * rng.normal(size=700)

    def late_error():
        model = MoERegressor(2)
        model.learn_array(inputs[:600], y[:600])
        assert model.is_warming_up
        return np.mean((model.predict_array(inputs[600:]) - y[600:]) ** 2)

    assert late_error() < 0.5 * never(late_error)


def test_what_is_told_of_a_mixture_waits_for_the_end_of_the_warm_up(early):
    model = learned(MoERegressor, {}, 120)
    assert model.is_warming_up
    assert model.is_finite()
    assert np.isnan(model.gate_one({"x0": 5.0, "x1": 5.0})).all()
    assert model.experts() == []
    assert len(model.predict_distribution_one({"x0": 5.0, "x1": 5.0}).shares) == 2


def test_covariances_are_those_of_the_mixture_in_the_targets_own_units(early):
    model = learned(MoEMultiTargetRegressor, {"covariance": "full", "standardize": True}, 150)
    said = model.predict_distribution_one({"x0": 4.2, "x1": 5.0})
    assert said.covariances.shape == (2, 2, 2)
    assert np.sqrt(said.covariances[:, 0, 0].min()) == pytest.approx(0.1, rel=1.0)


# --- no trace -------------------------------------------------------------------------------------------------------


@models
def test_the_warm_up_ends_with_the_model_that_it_would_have_without(kind, more, early, never):
    model, plain = learned(kind, more), never(lambda: learned(kind, more))
    assert model.state_digest() == plain.state_digest()
    assert repr(model.parameters()) == repr(plain.parameters())


# --- what events may bring ------------------------------------------------------------------------------------------


def fragile(kind, **more):
    wide = {"degree": 3, "range_factor": 0.0, "prior_strength": 0.0, "schedule": schedules.constant(0.999999)}
    return kind(**{**BRIEF, **wide, **more})


@pytest.mark.parametrize("cuts", [[], [60], list(range(1, 75))], ids=str)
def test_an_event_that_only_the_mixture_cannot_learn_is_learned_and_ends_it(cuts, early, never, caplog):
    caplog.set_level(logging.INFO)
    inputs, labels = X.copy(), TARGETS[MoEClassifier]
    weights = np.ones(N)
    inputs[60, 0], weights[60] = 9e49, 1e6

    def learn(cuts, stop=75):
        model = fragile(MoEClassifier)
        parts = np.split(np.arange(stop), cuts)
        losses = [model.learn_array(inputs[part], labels[part], weights=weights[part]) for part in parts]
        return model, np.concatenate(losses)

    model, losses = learn(cuts)
    assert any("leaves no finite mixture" in record.msg for record in caplog.records)
    plain, alone = never(lambda: learn([]))
    assert model.state_digest() == plain.state_digest()
    assert losses[60:].tobytes() == alone[60:].tobytes()
    assert losses.tobytes() == learn([])[1].tobytes()


@pytest.mark.parametrize("cuts", [[], list(range(1, 75))], ids=str)
def test_costs_beyond_all_numbers_end_it_and_the_model_can_be_saved(cuts, early, never, monkeypatch):
    true_led = interim.led

    def led(runs, totals, weights):
        return true_led(runs, totals, np.where(weights == 2.0, np.inf, weights))

    monkeypatch.setattr(interim, "led", led)

    def learn(stop=75):
        model = MoERegressor(**BRIEF)
        weights = np.where(np.arange(N) == 60, 2.0, 1.0)
        for part in np.split(np.arange(stop), cuts):
            model.learn_array(X[part], KINKED[part], weights=weights[part])
        return model

    model = learn()
    assert "warmup.totals" not in model.arrays()
    assert model.state_digest() == never(learn).state_digest()


def test_nothing_finite_comes_of_a_fit_and_one_expert_goes_on(early, never, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    true_fit = warmup.fit

    def fit(family, buffer, *, brief, **arguments):
        if brief:
            raise UnsoundError(["masses"])
        return true_fit(family, buffer, **arguments)

    monkeypatch.setattr(warmup, "fit", fit)
    model = learned(MoERegressor, {})
    assert [record.args for record in caplog.records if "nothing finite" in record.msg] == [
        (FIRST, caplog.records[0].args[1]),
        (2 * FIRST, caplog.records[1].args[1]),
    ]
    assert model.state_digest() == never(lambda: learned(MoERegressor, {})).state_digest()


@pytest.mark.parametrize("at", [20, 79])
def test_a_late_class_and_a_late_column_find_room(at, early, never):
    def learn():
        model = MoEClassifier(**BRIEF, standardize=True, categorical=("c",))
        for i in range(N):
            x = {"x0": X[i, 0], "x1": X[i, 1], "c": "early"}
            label = TARGETS[MoEClassifier][i]
            if i >= at and i % 5 == 0:
                x |= {"late": X[i, 0] ** 2, "c": "late"}
                label = "new"
            model.learn_one(x, label)
            if max(at + 10, FIRST) < i < WARM_UP - 1:
                probabilities = model.predict_proba_one(x)
                assert set(probabilities) == {"far", "near", "new"}
                assert sum(probabilities.values()) == pytest.approx(1.0)
                held.append("warmup.totals" in model.arrays())
        return model

    held = []
    model = learn()
    assert all(held)
    assert len(held) > 50
    assert model.state_digest() == never(learn).state_digest()
