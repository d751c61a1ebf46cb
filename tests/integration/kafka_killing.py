"""Streams of events, and daemons that are killed amid them."""

import json
import os
import time

import numpy as np
import pytest

ROUNDS = [
    0,
    *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, int(os.environ.get("STREAMMOE_ROUNDS", "3")))),
]
OFTEN = {"checkpoint.every_events": 300, "checkpoint.every_seconds": 0.2, "source.max_poll_records": 50}
"""Checkpoints: so many that kills fall into them, too."""
RATE, MOST = 250, 60_000
"""Events a second, and so many that a slow machine does not come to their end."""
DELAY = 40
LEAST_SQUARES = {
    "model.n_experts": 1,
    "model.prior_strength": 0.0,
    "model.standardize": False,
    "model.averaging": "none",
    "model.schedule.kind": "power",
    "model.schedule.alpha": 1.0,
}
"""A model whose state is that of all events together, in whatever order they come."""
MIXTURE = {"model.n_experts": 2, "model.warmup": 100, "model.warmup_restarts": 1}


def events(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 3)).round(4)
    return X, (np.where(X[:, 0] > 0, X @ [1, 2, 3], X @ [-1, 0, 1]) + 0.1 * rng.normal(size=n)).round(4)


def objects(X, y):
    return [json.dumps({"a": a, "b": b, "c": c, "y": t}) for (a, b, c), t in zip(X.tolist(), y.tolist(), strict=True)]


def killed_at_random(daemon, chance, kills):
    """Start the daemon and kill it, so many times, at any moment from the first checkpoint with something new on."""
    for _ in range(kills):
        daemon.start()
        daemon.wait_for_events(daemon.events)
        time.sleep(chance.random() * 0.2)
        daemon.kill()
