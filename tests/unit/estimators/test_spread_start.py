"""The fit that ends a warm-up is spread over the events that follow, and nothing is lost."""

import copy

import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine import warmup
from streammoe.engine.cost import row_cost
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.model.bound import Bound
from streammoe.options import WarmUp
from tests.unit.estimators.models import pairs, same, trained

WARM = 60
N = 220
SLOW = {"warmup": WarmUp(WARM, restarts=1)}


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    """Spread each fit over dozens of events, and as many more in which its result learns those."""
    monkeypatch.setattr(warmup, "pace", lambda family, shape, n: 10.0 * n * row_cost(family, shape))
    monkeypatch.setattr(warmup, "replayed_rows", lambda shape: 2)


def length(model, events):
    """How many events a model needs until it has a mixture."""
    for i, (x, y) in enumerate(events):
        model.learn_one(x, y)
        if not model.is_warming_up:
            return i + 1
    return None


def test_events_that_come_during_the_fit_are_learned_as_if_it_had_taken_no_time(monkeypatch):
    """Apart from members of a portfolio, which begin with the mixture after those events."""
    given = {**SLOW, "serve": "polyak"}
    spread = trained(MoERegressor, 0, **given)
    events = pairs(MoERegressor, N)
    assert length(spread, events) > WARM + 10
    monkeypatch.setattr(warmup, "pace", lambda family, shape, n: 1e12)
    at_once = trained(MoERegressor, 0, **given)
    ends = length(at_once, events)
    assert ends == WARM
    for x, y in events[ends : spread.n]:
        at_once.learn_one(x, y)
    assert same(spread, at_once)


def test_an_event_that_the_new_mixture_cannot_learn_is_only_counted():
    events = pairs(MoEClassifier, N)
    wide = {"degree": 3, "range_factor": 0.0, "prior_strength": 0.0, "standardize": False}
    model = trained(MoEClassifier, 0, **SLOW, **wide)
    for x, y in events[: WARM + 5]:
        model.learn_one(x, y)
    model.learn_one({**events[0][0], "a": 9e49}, events[0][1], 1e6)
    length(model, events[WARM + 5 :])
    assert not model.is_warming_up
    assert model.is_finite()
    assert model.learner.state.n[0] == model.n


def test_a_stop_between_two_pieces_leaves_the_model_as_it_was(monkeypatch):
    model = trained(MoERegressor, 0, **SLOW)
    events = pairs(MoERegressor, N)
    for x, y in events[: WARM + 3]:
        model.learn_one(x, y)
    before = model.state_digest()
    whole = copy.deepcopy(model)
    monkeypatch.setattr("streammoe.engine.interruption.GRACE_SECONDS", 0.0)
    with cancellable(lambda: True), pytest.raises(FitCancelled):
        model.learn_one(*events[WARM + 3])
    assert model.state_digest() == before
    for each in (whole, model):
        for x, y in events[WARM + 3 :]:
            each.learn_one(x, y)
    assert same(whole, model)


def test_no_call_learns_more_of_the_events_of_a_fit_than_are_due(monkeypatch):
    learned = []
    step = Bound.learn

    def counted(*arguments, **options):
        learned.append(len(arguments[1]))
        return step(*arguments, **options)

    model = trained(MoERegressor, 0, **SLOW)
    monkeypatch.setattr(Bound, "learn", counted)
    for x, y in pairs(MoERegressor, N):
        learned.append(0)
        model.learn_one(x, y)
    assert not model.is_warming_up
    assert max(learned) == 2
