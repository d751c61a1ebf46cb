"""A drift amid a batch: steps begin again right behind it, and the way back leads over it."""

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.engine import mm
from streammoe.engine.drift import BLOCK, Drift
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.estimators import watching

N, CHANGE = 1300, 900
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 2))
SIDE = np.where(np.arange(N) < CHANGE, 1.0, -1.0)
Y = SIDE * np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], -X[:, 1]) + 0.1 * RNG.normal(size=N)


def new():
    return MoERegressor(2, warmup=100, warmup_restarts=1, drift="page_hinkley", drift_restart=50)


@pytest.fixture(scope="module")
def learned():
    model = new()
    model.learn_array(X, Y)
    assert CHANGE < model.last_drift.n < CHANGE + 400
    return model


def test_the_way_back_leads_over_a_drift(learned):
    model = new()
    model.set_columns(["x0", "x1"])
    drift = learned.last_drift
    first = drift.n - 40
    model.learn_rows(X[:first], Y[:first, None])
    before, digest = model.copied(), model.state_digest()
    model.learn_rows(X[first:], Y[first:, None])
    assert model.last_drift == drift
    model.go_back(before)
    assert (model.drifts, model.state_digest()) == (0, digest)
    model.learn_rows(X[first:], Y[first:, None])
    assert model.state_digest() == learned.state_digest()


def test_steps_that_end_before_a_drift_is_seen_are_tried_block_by_block(learned, monkeypatch):
    """A batch is learned as if there were no drift in it; if that leaves nothing finite, it may be for that."""
    asked = []

    def fails_on_long_runs(*arguments, learn=mm.learn, **more):
        rows = len(arguments[5])
        asked.append(rows)
        if rows > BLOCK:
            raise UnsoundError(["gate"])
        return learn(*arguments, **more)

    model = new()
    model.learn_array(X[:150], Y[:150])
    monkeypatch.setattr(watching.mm, "learn", fails_on_long_runs)
    model.learn_array(X[150:], Y[150:])
    monkeypatch.undo()
    assert max(asked[1:]) <= BLOCK < asked[0]
    assert model.state_digest() == learned.state_digest()


def test_what_leaves_nothing_finite_block_by_block_either_is_refused(monkeypatch):
    model = new()
    model.learn_array(X[:400], Y[:400])
    digest = model.state_digest()
    rows = X[400:700].copy()
    rows[200, 0] = 77.0

    def fails_on_one_row(*arguments, learn=mm.learn, **more):
        if (arguments[5] == 77.0).any():
            raise UnsoundError(["gate"])
        return learn(*arguments, **more)

    monkeypatch.setattr(watching.mm, "learn", fails_on_one_row)
    with pytest.raises(InvalidEvent) as refused:
        model.learn_array(rows, Y[400:700])
    assert refused.value.row == 200
    assert model.state_digest() == digest


def test_amid_a_race_the_average_of_every_candidate_begins_again():
    model = MoERegressor("auto", warmup=50, warmup_restarts=1, max_experts=3, drift="page_hinkley")
    model.learn_array(X[:80], Y[:80])
    states = [candidate.state for candidate in model._race.candidates]
    assert len(states) > 1
    assert not any(np.array_equal(state.average_experts, state.experts) for state in states)
    model._on_drift(Drift(80, 0.0, 1.0))
    for candidate in model._race.candidates:
        np.testing.assert_array_equal(candidate.state.average_experts, candidate.state.experts)
    assert model._state is model._race.leader().state
