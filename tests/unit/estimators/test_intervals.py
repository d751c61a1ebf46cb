"""Predictive intervals hold about as many targets as they say, on a stream that is what the models take it for."""

import numpy as np
import pytest

from streammoe import MoEMultiTargetRegressor, MoERegressor

LEARNED, ASKED = 6000, 1000
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, (LEARNED + ASKED, 3))
SLOPES = RNG.normal(size=(2, 3, 2))
FIRST = RNG.random(len(X)) < 1.0 / (1.0 + np.exp(-8.0 * X[:, 0]))
NOISE = RNG.normal(size=(len(X), 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
Y = np.where(FIRST[:, None], X @ SLOPES[0], X @ SLOPES[1]) + np.array([0.3, 3.0]) * NOISE
"""Two outputs, of which the errors go together."""


def hits(interval, y):
    low, high = interval
    return low < y < high


@pytest.mark.parametrize("covariance", ["one output", "diagonal", "full"])
def test_an_interval_of_90_percent_holds_87_to_93_percent(covariance):
    if covariance == "one output":
        model, targets = MoERegressor(2), Y[:, 0]
    else:
        model, targets = MoEMultiTargetRegressor(2, covariance=covariance), Y
    model.learn_array(X[:LEARNED], targets[:LEARNED])
    inside = []
    for x, y in zip(X[LEARNED:].tolist(), Y[LEARNED:].tolist(), strict=True):
        found = model.predict_distribution_one(dict(zip(["x0", "x1", "x2"], x, strict=True))).interval(0.9)
        of_each = [found["y0"], found["y1"]] if isinstance(found, dict) else [found]
        inside.append([hits(interval, target) for interval, target in zip(of_each, y, strict=False)])
    assert np.mean(inside, axis=0) == pytest.approx(0.9, abs=0.03)
