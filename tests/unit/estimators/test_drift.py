"""A drift amid a batch: steps begin again right behind it."""

import numpy as np

from streammoe import MoERegressor
from streammoe.engine import mixture
from streammoe.engine.drift import BLOCK
from streammoe.engine.state import UnsoundError
from streammoe.options import PageHinkley, WarmUp

N, CHANGE = 1300, 900
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 2))
SIDE = np.where(np.arange(N) < CHANGE, 1.0, -1.0)
Y = SIDE * np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], -X[:, 1]) + 0.1 * RNG.normal(size=N)


def learned(n):
    model = MoERegressor(2, warmup=WarmUp(100, restarts=1), drift=PageHinkley(50), curved="off", refits=False)
    model.learn_array(X[:n], Y[:n])
    return model


def test_a_batch_that_leaves_nothing_finite_is_tried_block_by_block(monkeypatch):
    """A batch is learned as if there were no drift in it; if that leaves nothing finite, it may be for that."""
    asked = []

    def fails_on_long_runs(*arguments, learn=mixture.learn, **more):
        asked.append(len(arguments[5]))
        if asked[-1] > BLOCK:
            raise UnsoundError(["gate"])
        return learn(*arguments, **more)

    model = learned(150)
    monkeypatch.setattr(mixture, "learn", fails_on_long_runs)
    model.learn_array(X[150:], Y[150:])
    # Once before the review of members at 1,024 events, and once after it.
    assert [rows for rows in asked if rows > BLOCK] == [1_024 - 150, N - 1_024]
    monkeypatch.undo()
    assert model.state_digest() == learned(N).state_digest()
    assert CHANGE < model.last_drift.n < CHANGE + 400
