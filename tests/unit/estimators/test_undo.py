"""Events whose values are all in range, and that would yet leave no finite model: they are rejected without a trace."""

import copy
import logging

import numpy as np
import pytest

from streammoe import InvalidEvent, MoEClassifier, MoERegressor, load, schedules
from streammoe.engine import search
from streammoe.engine.state import UnsoundError
from streammoe.errors import PoisonedModel
from tests.unit.estimators.models import ESTIMATORS, NAMES, STREAMS, pairs

pytestmark = pytest.mark.usefixtures("brief_fits")

WARM_UP, N = 40, 150
BRIEF = {"n_experts": 2, "warmup": WARM_UP}
WIDE = {
    "degree": 3,
    "range_factor": 0.0,
    "hold": False,
    "prior_strength": 0.0,
    "schedule": schedules.Constant(0.999999),
}
FRAGILE = {**BRIEF, **WIDE}
"""Nothing is left out that keeps numbers apart: a cube of 9e49 has a square of 5e299."""
HUGE = 9e49
POISON = {"a": HUGE, "b": 1.0}, 1.0, 1e6
"""An event and its weight."""
EVENTS = {estimator: pairs(estimator, N) for estimator in ESTIMATORS}


def learn(model, start=0, stop=N):
    for x, y in EVENTS[type(model)][start:stop]:
        model.learn_one(x, y)
    return model


def rejection(model, x, y, w=1.0):
    with pytest.raises(InvalidEvent) as error:
        model.learn_one(x, y, w)
    return error.value.reason


@pytest.fixture
def pair():
    """Two models that have learned the same, one to poison and its twin."""
    return tuple(learn(MoERegressor(**FRAGILE), stop=85) for _ in range(2))  # the next fit is at 160


def test_what_the_caller_changes_later_is_not_what_is_learned_again(pair):
    model, twin = pair
    (rows, targets), weights, names = STREAMS[MoERegressor](3), np.ones(3), list(NAMES)
    for each in (twin, model):
        each.learn_rows(rows, targets[:, None], weights)
        each.learn_array(rows, targets, w=weights, feature_names=names)
    assert (rows == STREAMS[MoERegressor](3)[0]).all()
    rows[:], targets[:], weights[:], names[:] = 7.0, 7.0, 7.0, NAMES[::-1]
    assert rejection(model, *POISON) == "poison"
    assert model.state_digest() == twin.state_digest()


HOSTILE = {
    **dict.fromkeys(["experts", "average_experts", "gate", "masses"], 1e299),
    **dict.fromkeys(["variances", "average_variances"], 1e-320),
    **dict.fromkeys(["expert_grams", "expert_inverses", "gate_gram", "prior_weight"], 1.7e308),
    "gate_inverse": -1.7e308,
    "decay": 5e-324,
}
SPOILT = ["experts", "gate", "expert_grams", "expert_inverses", "gate_gram", "masses", "decay"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_from_a_hostile_state_an_event_is_learned_whole_or_rejected_with_the_state_as_it_was(estimator):
    sound = learn(estimator(**BRIEF), stop=60)
    for name, value in HOSTILE.items():
        model = copy.deepcopy(sound)
        getattr(model.learner.state, name)[...] = value
        for i in range(60, 70):
            before = model.state_digest()
            try:
                model.learn_one(*EVENTS[estimator][i])
            except InvalidEvent as error:
                assert error.reason == "poison", name  # noqa: PT017 - either outcome is right, and each has its promise
                assert model.state_digest() == before, name
            else:
                assert all(np.isfinite(array).all() for array in model.learner.state), name
                assert model.state_digest() != before, name
    for name in SPOILT:
        for value in (np.nan, np.inf):
            model = copy.deepcopy(sound)
            getattr(model.learner.state, name).reshape(-1)[0] = value
            assert rejection(model, *EVENTS[estimator][60]) == "poison", name


# --- fits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_fit_of_which_nothing_finite_comes_is_not_taken(estimator, monkeypatch, caplog):
    def failing(*arguments, **more):
        yield 1.0
        raise UnsoundError(["experts"])

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "streammoe.estimators"):
        patch.setattr(search, "fit", failing)
        model = learn(estimator(**BRIEF), 0, WARM_UP + 1)
    assert (model.is_warming_up, model.n) == (True, WARM_UP + 1)
    assert any("did not converge" in message for message in caplog.messages)
    learn(model, WARM_UP + 1)
    model.arrays()  # raises if a number in it is not finite
    assert (model.is_warming_up, model.n) == (False, N)


@pytest.mark.parametrize(("estimator", "after"), [(MoERegressor, 20), (MoEClassifier, 60)])
def test_a_poisoned_model_is_not_saved(estimator, after, tmp_path):
    model, path = learn(estimator(**BRIEF), stop=after), tmp_path / "model.safetensors"
    model.save(path)
    kept = path.read_bytes()
    state = model.learner.phase.leader.state
    state.expert_grams[-1, 0, 1] = np.nan  # off the diagonal, where no step looks
    with pytest.raises(PoisonedModel):
        model.save(path)
    assert path.read_bytes() == kept
    assert load(path).n == after


def test_values_whose_squares_vanish_do_no_harm():
    for degree, tiny in ((2, 1e-78), (1, 1e-155), (2, 1e-155)):
        model = MoERegressor(1, degree=degree, warmup=3, standardize=False)
        for value in (0.0, 0.0, tiny, 1.0, 2.0, 1000.0):
            model.learn_one({"a": value}, value)
            model.arrays()  # raises if a number in it is not finite
