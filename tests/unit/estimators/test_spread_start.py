"""The fit that ends a warm-up is spread over the events that follow: nothing is lost, and cuts leave no trace."""

import copy
import logging
import pickle

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor, load
from streammoe.engine import mixture, warmup
from streammoe.engine.cost import row_cost
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.engine.jobs import StepwiseJob
from streammoe.engine.state import UnsoundError
from streammoe.errors import CheckpointError
from streammoe.model import checkpoint
from streammoe.model.phases import provisional
from streammoe.model.phases import warmup as phases_warmup
from streammoe.options import Auto, Options, WarmUp
from tests.pairs import pairwise_cases
from tests.unit.estimators.models import ESTIMATORS, NAMES, OUTPUTS, pairs, same, trained

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


def events_of(kind, *, late=False):
    """Events, with new levels, columns and labels while the fit is in progress."""
    events = pairs(kind, N)
    if not late:
        return events
    found = []
    for i, (x, y) in enumerate(events):
        more = {"kind": "ab"[i % 2] if i < WARM + 5 else "abcdef"[i % 6]}
        if i >= WARM + 7:
            more["late"] = float(i % 5)
        found.append(({**x, **more}, "never" if kind is MoEClassifier and i in (WARM + 3, WARM + 9, WARM + 90) else y))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    pairwise_cases(
        kind=ESTIMATORS,
        n_experts=(1, 2, Auto(max=2)),
        standardize=(True, False),
        late=(True, False),
        more=({}, {"drift": "page_hinkley"}, {"batch_size": 8}),
    ),
)
def test_it_is_the_same_event_by_event_and_over_restarts_and_copies(case, tmp_path, monkeypatch):
    monkeypatch.setattr(provisional, "FIRST_FIT", 20)
    kind, n_experts, standardize, late, more = case.values()
    given = {**SLOW, "n_experts": n_experts, "standardize": standardize, **more}
    given |= {"categorical": ["kind"]} if late else {}
    whole, single, cut = (trained(kind, 0, **given) for _ in range(3))
    events = events_of(kind, late=late)
    ends = length(single, events)
    assert n_experts == 1 or WARM + 12 < ends < N, ends
    for x, y in events[ends:]:
        single.learn_one(x, y)
    for i, (x, y) in enumerate(events):
        cut.learn_one(x, y)
        if i in (25, WARM - 2, WARM - 1, WARM, WARM + 4, WARM + 8, ends - 2, ends - 1):
            cut.save(tmp_path / "cut.safetensors")
            cut = load(tmp_path / "cut.safetensors")
        if i == WARM + 11:
            cut = pickle.loads(pickle.dumps(copy.deepcopy(cut)))
    assert same(single, cut)
    assert single.n == N
    if not late:
        X = np.array([[x[name] for name in NAMES] for x, _ in events])
        Y = np.array([[y[name] for name in OUTPUTS] if isinstance(y, dict) else y for _, y in events])
        whole.learn_array(X[: WARM + 9], Y[: WARM + 9], feature_names=NAMES)
        whole.learn_array(X[WARM + 9 :], Y[WARM + 9 :], feature_names=NAMES)
        assert same(single, whole)


@pytest.mark.slow  # several fits, and as many checkpoints as events
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_fit_of_default_size_that_predicts_worse_is_repeated_with_twice_the_events(
    kind, tmp_path, monkeypatch, caplog
):
    """Up to as many as determine its parameters; the same event by event, as arrays and over restarts."""
    monkeypatch.setattr(warmup, "LEAST_SIZE", 40)
    monkeypatch.setattr(warmup, "ROUND_LIMIT", 1.0)
    monkeypatch.setattr(warmup, "replayed_rows", lambda shape: 10)
    monkeypatch.setattr(phases_warmup, "TOLERATED", -1e9)
    given = {"warmup": WarmUp(restarts=1), "standardize": True, "drift": "page_hinkley"}
    single, cut, whole = (trained(kind, 0, **given) for _ in range(3))
    events = pairs(kind, 3 * N)
    with caplog.at_level(logging.INFO):
        ends = length(single, events)
    found = [record.args[0] for record in caplog.records if "predicts the next" in record.msg]
    assert found[0] == 40
    assert found[1] >= 80
    assert ends > found[-1]
    single.learn_one(*events[ends])
    for i, (x, y) in enumerate(events[: ends + 1]):
        cut.learn_one(x, y)
        if i % 13 == 0:
            cut.save(tmp_path / "cut.safetensors")
            cut = load(tmp_path / "cut.safetensors")
    X = np.array([[x[name] for name in NAMES] for x, _ in events[: ends + 1]])
    Y = np.array([[y[name] for name in OUTPUTS] if isinstance(y, dict) else y for _, y in events[: ends + 1]])
    whole.learn_array(X, Y, feature_names=NAMES)
    assert same(single, cut)
    assert same(single, whole)


def test_events_that_come_during_the_fit_are_learned_as_if_it_had_taken_no_time(monkeypatch):
    """Apart from what one expert predicted in the meantime."""
    given = {**SLOW, "curved": "off"}  # which learns all events of the warm-up at its end
    monkeypatch.setattr(Options, "has_on_trial", False)  # likewise: it begins with the mixture after those events
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


def test_an_event_that_the_new_mixture_cannot_learn_is_only_counted(tmp_path, caplog):
    events = pairs(MoEClassifier, N)
    wide = {"degree": 3, "range_factor": 0.0, "prior_strength": 0.0, "standardize": False}
    model = trained(MoEClassifier, 0, **SLOW, **wide)
    for x, y in events[: WARM + 5]:
        model.learn_one(x, y)
    model.learn_one({**events[0][0], "a": 9e49}, events[0][1], 1e6)
    with caplog.at_level(logging.INFO):
        length(model, events[WARM + 5 :])
    assert not model.is_warming_up
    assert model.is_finite()
    assert model.learner.state.n[0] == model.n
    model.save(tmp_path / "model.safetensors")
    assert same(model, load(tmp_path / "model.safetensors"))


def test_a_rejected_event_does_not_disturb_it():
    plain, model = (trained(MoERegressor, 0, **SLOW) for _ in range(2))
    events = pairs(MoERegressor, N)
    rejected = 0
    for i, (x, y) in enumerate(events):
        for each in (plain, model):
            each.learn_one(x, y)
        if i % 7 == 0:
            before = model.state_digest()
            try:
                model.learn_one({**x, "a": 1e300}, y)
            except ValueError:
                rejected += 1
            assert model.state_digest() == before
    assert rejected
    assert same(plain, model)


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


@pytest.mark.parametrize(
    "claimed",
    [[0, 3, 1, 0], [WARM + 4, 3, 1, 0], [WARM, 4, 1, 0], [WARM, 2, 1, 0], [WARM, 3, 2, 0], [WARM, 3, 1, 2]],
)
def test_a_checkpoint_whose_fit_does_not_suit_its_buffer_is_rejected(claimed):
    model = trained(n=WARM + 3, **SLOW)
    assert model.arrays()["warmup.search"].tolist() == [WARM, 3, 1, 0]
    arrays = {**model.arrays(), "warmup.search": np.array(claimed)}
    with pytest.raises(CheckpointError):
        checkpoint.restore(trained(n=0, **SLOW).learner, arrays)


@pytest.mark.parametrize("claimed", [WARM, WARM + 3])
def test_a_checkpoint_that_claims_that_its_fit_has_ended_goes_on_with_the_fit(claimed):
    model = trained(n=WARM + 3, **SLOW)
    arrays = {**model.arrays(), "warmup.replay": np.array([claimed])}
    other = trained(n=0, **SLOW)
    checkpoint.restore(other.learner, arrays)
    for x, y in pairs(MoERegressor, N)[WARM + 3 :]:
        for each in (model, other):
            each.learn_one(x, y)
    assert same(model, other)


@pytest.mark.parametrize("claimed", [-1, WARM - 1, WARM + 4])
def test_a_checkpoint_whose_fit_ended_when_it_cannot_have_is_rejected(claimed):
    arrays = {**trained(n=WARM + 3, **SLOW).arrays(), "warmup.replay": np.array([claimed])}
    with pytest.raises(CheckpointError):
        checkpoint.restore(trained(n=0, **SLOW).learner, arrays)


def test_no_call_learns_more_of_the_events_of_a_fit_than_are_due(monkeypatch):
    learned = []
    step = mixture.learn

    def counted(*arguments, **options):
        learned.append(len(arguments[5]))
        return step(*arguments, **options)

    model = trained(MoERegressor, 0, **SLOW)
    monkeypatch.setattr(mixture, "learn", counted)
    for x, y in pairs(MoERegressor, N):
        learned.append(0)
        model.learn_one(x, y)
    assert not model.is_warming_up
    assert max(learned) == 2


# --- a job done bit by bit ------------------------------------------------------------------------------------------


def test_whether_a_job_has_ended_depends_on_the_work_asked_for_alone():
    def job():
        yield 2.0
        yield 3.0
        return "found"

    ahead = StepwiseJob(job)
    assert ahead.advance(100.0)
    for work in (0.0, 1.0, 2.0, 3.0, 5.0, 5.5):
        fresh = StepwiseJob(job)
        assert fresh.advance(work) == ahead.advance(work) == (work > 5.0)
    assert ahead.result() == "found"


def test_an_interrupted_job_begins_again_and_one_without_a_result_says_so():
    calls = []

    def job():
        calls.append(0)
        yield 1.0
        if len(calls) == 1:
            raise KeyboardInterrupt
        raise UnsoundError(["masses"])

    progress = StepwiseJob(job)
    with pytest.raises(KeyboardInterrupt):
        progress.advance(5.0)
    assert progress.advance(5.0)
    assert len(calls) == 2
    with pytest.raises(UnsoundError):
        progress.result()
