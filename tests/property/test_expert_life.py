"""Races and experts that begin anew, at counts made small: cuts, weights, labels that are missing and restarts amid
them leave no trace, not in one bit."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor

N = 220
RNG = np.random.default_rng(3)
X = RNG.normal(size=(N, 3))
Y = np.where(X[:, 0] > 0.0, X[:, 1], -2.0 * X[:, 2]) + 0.1 * RNG.normal(size=N)
KNOWN = RNG.random(N) > 0.05
WEIGHTS = RNG.choice([0.5, 1.0, 3.0], size=N)
AUTO = {"n_experts": "auto", "max_experts": 3, "warmup": 40, "warmup_restarts": 1}
IDLE = {"n_experts": 3, "warmup": 40, "warmup_restarts": 1, "reseed": "auto"}
MODELS = [
    (MoERegressor, AUTO),
    (MoERegressor, {**AUTO, **IDLE, "n_experts": "auto", "standardize": True}),
    (MoERegressor, IDLE),
    (MoERegressor, {**IDLE, "warmup": 0, "averaging": None}),
    (MoEMultiTargetRegressor, {**AUTO, "covariance": "full"}),
    (MoEMultiTargetRegressor, {**IDLE, "averaging": "decay"}),
    (MoEClassifier, AUTO),
    (MoEClassifier, IDLE),
]
TARGETS = {
    MoERegressor: Y[:, None],
    MoEMultiTargetRegressor: np.column_stack([Y, Y + X[:, 1]]),
    # A third label comes while candidates race.
    MoEClassifier: np.select([np.arange(N) == 60, Y > 0.0], ["rare", "up"], "down").astype(object),
}


@pytest.fixture(scope="module", autouse=True)
def small_counts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streammoe.engine.choice.SHORTEST_RACE", 40)
        patch.setattr("streammoe.engine.choice.RACE_PER_BUFFER", 1)
        patch.setattr("streammoe.engine.racing.CHARGE_EVERY", 15)
        patch.setattr("streammoe.estimators.living.CHARGE_EVERY", 15)
        patch.setattr("streammoe.estimators.living.FIRST_LOOK", 32)
        patch.setattr("streammoe.estimators.living.SHORTEST_TRIAL", 20)
        # So that experts are always idle, and trials won now and then.
        patch.setattr("streammoe.engine.life.STARVED_BELOW", 0.9)
        patch.setattr("streammoe.estimators.living.Living._handicap", lambda self: 0.5)
        yield


def begun(at):
    kind, arguments = MODELS[at]
    model = kind(**arguments)
    model.set_columns(["a", "b", "c"])
    if kind is MoEMultiTargetRegressor:
        model.set_targets(["u", "v"])
    return model


def learn(model, rows):
    targets = TARGETS[type(model)][rows].copy()
    targets[~KNOWN[rows]] = None if targets.dtype == object else np.nan
    return model.learn_rows(X[rows], targets, WEIGHTS[rows], traced=True)


def said(outcomes):
    """Losses, and predictions of all rows that know as many classes as the last ones."""
    width = max(outcome.predictions.shape[1] for outcome in outcomes)
    predictions = [np.pad(o.predictions, [(0, 0), (0, width - o.predictions.shape[1])]) for o in outcomes]
    return np.concatenate([o.losses for o in outcomes]).tobytes(), np.concatenate(predictions).tobytes()


@cache
def reference(at):
    """One by one: digest, what was said, how many candidates there were, and what became of trials."""
    model = begun(at)
    outcomes, candidates = [], []
    for row in range(N):
        outcomes.append(learn(model, np.array([row])))
        candidates.append(model.n_candidates)
    return model.state_digest(), said(outcomes), candidates, model.n_reseeds


@pytest.mark.parametrize("at", range(len(MODELS)), ids=lambda at: f"{MODELS[at][0].__name__}-{at}")
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_cuts_and_restarts_leave_no_trace(at, data):
    cuts = data.draw(st.lists(st.integers(1, N - 1), max_size=8, unique=True), "cuts")
    restarts = data.draw(st.lists(st.booleans(), min_size=len(cuts) + 1, max_size=len(cuts) + 1), "restarts")
    _equals_the_loop(at, cuts, restarts)


@pytest.mark.parametrize("at", range(len(MODELS)), ids=lambda at: f"{MODELS[at][0].__name__}-{at}")
def test_the_whole_at_once_equals_the_loop(at):
    _equals_the_loop(at, [], [False])
    _equals_the_loop(at, [50, 70, 90], [True] * 4)


def _equals_the_loop(at, cuts, restarts):
    digest, expected, _, reseeds = reference(at)
    model = begun(at)
    outcomes = []
    for part, restart in zip(np.split(np.arange(N), sorted(cuts)), restarts, strict=True):
        outcomes.append(learn(model, part))
        if restart:
            arrays = {name: array.copy() for name, array in model.arrays().items()}
            model = type(model).from_checkpoint(arrays, model.describe()["model"])
    assert model.state_digest() == digest
    assert said(outcomes) == expected
    assert model.n_reseeds == reseeds


def test_these_models_do_race_and_begin_anew():
    found = [reference(at) for at in range(len(MODELS))]
    for at in (0, 1, 4, 6):
        assert 3 in found[at][2], at
        assert found[at][2][-1] == 1 or found[at][3][0] > 0, at
    tried, kept = np.sum([found[at][3] for at in (1, 2, 3, 5, 7)], axis=0)
    assert tried > kept > 0
    assert all(found[at][3][0] > 0 for at in (1, 2, 3, 5, 7))
