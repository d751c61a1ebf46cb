"""Inputs and predictions held to what was seen, against the rule as it reads, one number at a time."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian

WARMUP, N, SETTLED = 600, 1_199, 300
"""There is one fit, of which nothing depends on the events before it but their values."""
NAMES = ["a", "b", "c", "d", "e"]
BRIEF = {"n_experts": 2, "warmup": WARMUP, "serve": "polyak", "drift": None}


@pytest.fixture(autouse=True)
def _ranges_are_those_of_the_fit(monkeypatch):
    monkeypatch.setattr("streammoe.model.fits.RANGED_AT", WARMUP)


class Literal:
    """The range of one column: what was seen until enough values differ from the first, then a pace.

    That of targets does not follow those taken for errors, which lie more than five widths beyond it: ten at most, or
    one or two in a hundred for long. That of inputs follows 64 values at once after 64 that were more than half a width
    beyond it, unless it was left step by step; one that is as good as the one before it does not count.
    """

    def __init__(self, pace, judges=False):
        self.values, self.others, self.pace, self.judges = [], 0, pace, judges
        self.low = self.high = None
        self.doubts = 0.0
        self.far = self.near = self.following = 0
        self.before = np.inf

    def held(self, x, after=SETTLED):
        if np.isnan(x) or self.others < after:
            return x
        reach = 0.1 * (self.high - self.low)
        return min(max(x, self.low - reach), self.high + reach)

    def count_whole(self):
        """What is fitted counts whole, as there is nothing absurd in it here; a quarter of the values settle it."""
        self.low, self.high = min(self.values), max(self.values)
        common = max(self.values.count(value) for value in set(self.values))
        others = len(self.values) - common
        self.others = SETTLED if others >= len(self.values) / 4 else others

    def is_error(self, x):
        if self.others < 10 or abs(x - (self.low + self.high) / 2) <= 5.5 * (self.high - self.low):
            self.doubts = max(self.doubts - 0.015, 0.0)
            return False
        self.doubts = min(self.doubts + 1.0, 11.0)
        return self.doubts <= 10.0

    def has_jumped(self, x):
        """Count how far beyond the range an input is; return whether the range follows."""
        if self.following:
            self.following -= 1
            return True
        beyond = max(self.low - x, x - self.high) / (self.high - self.low)
        if beyond > 0.5:
            before, self.before = self.before, x
            if abs(x - before) < 0.01 * max(self.low - x, x - self.high):
                return False
            if self.near < 64:
                self.far, self.near = self.far + 1, 0
        elif beyond > 0.0 and not self.far:
            self.near = min(self.near + 1, 64)
        else:
            self.near, self.far = max(self.near - 1, 0), max(self.far - 8, 0)
        if self.far == 64:
            self.far, self.following = 0, 64
        return False

    def see(self, x):
        if np.isnan(x) or (self.judges and self.is_error(x)):
            return
        self.values.append(x)
        if self.others < SETTLED:
            self.low, self.high = min(self.values), max(self.values)
            self.others += x != self.values[0]
            return
        is_input = self.pace < 0.01
        step = np.inf if is_input and self.has_jumped(x) else self.pace * (self.high - self.low)
        if x > self.high:
            self.high = min(x, self.high + step)
        if x < self.low:
            self.low = max(x, self.low - step)


def stream(kind, seed=0):
    """Five columns: one that jumps, one that leaves its range slowly, one that lives late, a flag, one with two levels.

    The last one stays there, but for the least bit, and so is held for good.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 5))
    X[:, 1] += np.maximum(np.arange(N) - 700, 0.0) * 0.05
    X[:650, 2] = 0.0
    X[:, 3] = rng.random(N) < 0.1
    X[1050, 0], X[1051, 4] = 1e5, -99_999.0
    X[1080:, 0] += 40.0
    X[1000:, 4] = 60.0 + 0.01 * X[1000:, 4]
    y = np.where(X[:, 4] > 0.0, X[:, 3], X[:, 1]) + 0.1 * rng.normal(size=N)
    if kind is MoEClassifier:
        return X, (y > 0.3).astype(int)
    y[1060] = 100.0
    return X, y if kind is MoERegressor else np.stack([y, -y], axis=1)


def literal_inputs(X, learned):
    held, columns = X.copy(), [Literal(1e-4) for _ in X.T]
    for i, row in enumerate(X):
        for j, column in enumerate(columns):
            if i >= WARMUP:
                held[i, j] = column.held(row[j])
            if learned[i]:
                column.see(row[j])
                if i + 1 == WARMUP:
                    column.count_whole()
    return held


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_a_model_that_holds_is_one_without_that_is_given_held_inputs(kind):
    X, y = stream(kind)
    learned = np.ones(N, np.bool_)
    learned[[650, 900, 1055]] = False
    weights = learned.astype(float)
    ours, plain = kind(**BRIEF, degree=2, standardize=True), kind(**BRIEF, degree=2, standardize=True, hold=False)
    expected = literal_inputs(X, learned)
    assert (expected != X).sum() > 100
    losses = ours.learn_array(X, y, w=weights, feature_names=NAMES)
    found = plain.learn_array(expected, y, w=weights, feature_names=NAMES)
    np.testing.assert_array_equal(found[WARMUP:], losses[WARMUP:])
    for name, array in plain.parameters().items():
        if isinstance(array, np.ndarray):
            assert array.tobytes() == ours.parameters()[name].tobytes(), name
    before = ours.state_digest()
    ours.predict_array(3.0 * X, feature_names=NAMES)
    ours.predict_one(dict(zip(NAMES, 3.0 * X[0], strict=True)))
    assert ours.state_digest() == before, "ranges are those of what was learned"


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor])
def test_predictions_are_held_to_the_targets_before_them(kind):
    X, y = stream(kind)
    Y = np.tanh(y).reshape(N, -1)
    Y[1060] = 5.0  # beyond what was seen, but no error
    Y[650:1150:50] = 1e4  # ten errors, of which most are forgotten before the next
    Y[1130:1160] = -20.0  # the first seven are taken for errors too, then that is where targets are
    brief = {**BRIEF, "expert": Gaussian(tail=np.inf)}  # which learns what is taken for an error by others
    ours, plain = kind(**brief), kind(**brief, hold=False)
    if kind is MoEMultiTargetRegressor:
        for model in (ours, plain):
            model.set_targets(["y0", "y1"])
    for model in (ours, plain):
        model.set_columns(NAMES)
    found = ours.learn_rows(X, Y).predictions
    free = plain.learn_rows(literal_inputs(X, np.ones(N, np.bool_)), Y).predictions
    bounds = [Literal(0.1, judges=True) for _ in Y.T]
    clipped = 0
    for i in range(N):
        for q, bound in enumerate(bounds):
            if i >= WARMUP:
                expected = bound.held(free[i, q], after=3)
                assert found[i, q] == expected, (i, q)
                clipped += expected != free[i, q]
            bound.see(Y[i, q])
            if i + 1 == WARMUP:
                bound.count_whole()
    assert clipped > 3
    assert all(bound.low < -5.0 and bound.high < 2.0 for bound in bounds)
