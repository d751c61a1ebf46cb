"""Where a drift is found, and steps begin anew, does not depend on how events came: not in one bit."""

import copy
import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, schedules
from streammoe.engine import mm
from streammoe.engine.drift import BLOCK
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.estimators import watching

N, CHANGE = 1300, 900
GIVEN = {"n_experts": 2, "warmup": 100, "warmup_restarts": 1, "drift": "page_hinkley", "drift_restart": 50}
MODELS = [
    (MoERegressor, {}),
    (MoERegressor, {"standardize": True, "schedule": schedules.constant(0.005), "averaging": "exponential"}),
    (MoEClassifier, {}),
    (MoERegressor, {"averaging": "decay", "prior_strength": 1.0, "degree": 2}),
    (MoEMultiTargetRegressor, {}),
    (MoERegressor, {"n_experts": "auto", "max_experts": 3}),  # candidates race when the drift is found
]
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 2))
SIDE = np.where(np.arange(N) < CHANGE, 1.0, -1.0)
Y = SIDE * np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], -X[:, 1]) + 0.1 * RNG.normal(size=N)
TARGETS = {
    MoERegressor: Y,
    MoEClassifier: (Y > 0.0).astype(int),
    MoEMultiTargetRegressor: np.stack([Y, Y + RNG.normal(size=N)], axis=1),
}


def new(at):
    kind, arguments = MODELS[at]
    return kind(**{**GIVEN, **arguments}), TARGETS[kind]


@cache
def looped(at):
    """What a loop over `learn_one` leaves."""
    model, targets = new(at)
    for x, y in zip(X.tolist(), targets.tolist(), strict=True):
        target = {f"y{q}": value for q, value in enumerate(y)} if isinstance(y, list) else y
        model.learn_one({"x0": x[0], "x1": x[1]}, target)
    assert model.drifts >= 1
    assert CHANGE < model.last_drift.n < CHANGE + 400
    return model.state_digest(), model.last_drift, model.step_size


def saved(model, folder):
    model.save(folder / "model.safetensors")
    return load(folder / "model.safetensors")


BETWEEN = {
    "itself": lambda model, _: model,
    "copy": lambda model, _: copy.deepcopy(model),
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model)),
    "file": saved,
}


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("at", range(len(MODELS)), ids=lambda at: f"{MODELS[at][0].__name__}-{at}")
@settings(max_examples=3, deadline=None)
@given(
    cuts=st.lists(st.integers(1, N - 1), max_size=12, unique=True),
    how=st.sampled_from(sorted(BETWEEN)),
)
@example(cuts=[], how="itself")
@example(cuts=list(range(CHANGE, CHANGE + 300)), how="itself")
@example(cuts=list(range(7, N, 131)), how="file")
def test_a_stream_cut_anywhere_equals_the_loop(at, cuts, how, tmp_path_factory):
    model, targets = new(at)
    folder = tmp_path_factory.mktemp("cut")
    for part in np.split(np.arange(N), sorted(cuts)):
        model.learn_array(X[part], targets[part])
        model = BETWEEN[how](model, folder)
    assert (model.state_digest(), model.last_drift, model.step_size) == looped(at)


@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(1, N - 1), max_size=12, unique=True), seed=st.integers(0, 9))
def test_rows_without_target_or_refused_leave_no_trace(cuts, seed):
    """Many rows are predicted only, and some are out of range; a drift is found at the same learned event."""
    rng = np.random.default_rng(seed)
    rows, targets = X.repeat(2, axis=0), Y.repeat(2)[:, None]
    targets[rng.permutation(2 * N)[:N]] = np.nan
    rows[::97, 1] = 1e9
    outcomes = []
    for parts in (np.split(np.arange(2 * N), sorted(cuts)), np.split(np.arange(2 * N), range(16, 2 * N, 16))):
        model, _ = new(0)
        model.set_columns(["x0", "x1"])
        predictions = np.concatenate([model.learn_rows(rows[part], targets[part]).predictions for part in parts])
        assert model.drifts >= 1
        outcomes.append((model.state_digest(), model.last_drift, predictions.tobytes()))
    assert outcomes[0] == outcomes[1]


def test_the_way_back_leads_over_a_drift():
    model, _ = new(0)
    model.set_columns(["x0", "x1"])
    _, drift, _ = looped(0)
    first = drift.n - 40
    model.learn_rows(X[:first], Y[:first, None])
    before, digest = model.copied(), model.state_digest()
    model.learn_rows(X[first:], Y[first:, None])
    assert model.last_drift == drift
    model.go_back(before)
    assert (model.drifts, model.state_digest()) == (0, digest)
    model.learn_rows(X[first:], Y[first:, None])
    assert model.state_digest() == looped(0)[0]


def test_steps_that_end_before_a_drift_is_seen_are_tried_block_by_block(monkeypatch):
    """A batch is learned as if there were no drift in it; if that leaves nothing finite, it may be for that."""
    plain, _ = new(0)
    plain.learn_array(X, Y)
    asked = []

    def fails_on_long_runs(*arguments, learn=mm.learn, **more):
        rows = len(arguments[5])
        asked.append(rows)
        if rows > BLOCK:
            raise UnsoundError(["gate"])
        return learn(*arguments, **more)

    model, _ = new(0)
    model.learn_array(X[:150], Y[:150])
    monkeypatch.setattr(watching.mm, "learn", fails_on_long_runs)
    model.learn_array(X[150:], Y[150:])
    monkeypatch.undo()
    assert max(asked[1:]) <= BLOCK < asked[0]
    assert model.state_digest() == plain.state_digest()


def test_what_leaves_nothing_finite_block_by_block_either_is_refused(monkeypatch):
    model, _ = new(0)
    model.learn_array(X[:400], Y[:400])
    digest = model.state_digest()
    rows = X[400:700].copy()
    rows[200, 0] = 77.0

    def fails_on_one_row(*arguments, learn=mm.learn, **more):
        if (arguments[5] == 77.0).any():
            raise UnsoundError(["gate"])
        return learn(*arguments, **more)

    monkeypatch.setattr(watching.mm, "learn", fails_on_one_row)
    with pytest.raises(InvalidEvent, match="row 200") as refused:
        model.learn_array(rows, Y[400:700])
    assert refused.value.row == 200
    assert model.state_digest() == digest
