"""Starts from moments: the regressors that made the data, without a guess."""

import itertools
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streammoe.engine import em, starts
from streammoe.engine.spectral import polynomials, regressors
from streammoe.errors import ConfigError
from tests.unit.cases import Case, options

LINE = Case("gaussian", 1)


def mixture(n, K, seed, *, d=6, sigma=0.3, link=lambda z: z, orthogonal=False):
    """Regressors and gate directions of length 1, no intercepts ([CQT] §4); also the regressors.

    The moments are exact where gate directions are orthogonal to regressors.
    """
    rng = np.random.default_rng(seed)
    a, w = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, K, d)))
    w[-1] = 0.0
    if orthogonal:
        w -= w @ np.linalg.pinv(a) @ a
    X = rng.normal(size=(n, d))
    logits = X @ w.T
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    chosen = (shares.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return X, link((X @ a.T)[np.arange(n), chosen]) + sigma * rng.normal(size=n), a


def likeness(found, truth):
    """The worst cosine, up to the order and the sign."""
    cosines = np.abs(found @ truth.T) / np.linalg.norm(found, axis=1, keepdims=True)
    K = len(truth)
    return max(min(cosines[at, k] for k, at in enumerate(order)) for order in itertools.permutations(range(K)))


def buffer_of(X, y):
    R = np.column_stack([np.ones(len(X)), X])
    return em.Buffer(R, R, y.reshape(len(y), -1), np.ones(len(y)))


def steps_of(buffer, K, case=LINE):
    chosen = options(case, K, 0.1)
    return em.Em(case.family, buffer, em.one_expert_prior(case.family, buffer, case.n_outputs, chosen), chosen)


class TestPolynomials:
    """The closed forms, where there are some."""

    def test_of_a_line_and_of_a_relu(self):
        b = 3.0 * (4.0 - math.pi) / (math.pi - 2.0)
        for sigma in (0.0, 0.5):
            assert polynomials("linear", sigma) == pytest.approx((0.0, 0.0, -3.0 * (1.0 + sigma**2)), abs=1e-9)
            expected = (-2.0 * math.sqrt(2.0 / math.pi), -(6.0 + b) / math.sqrt(2.0 * math.pi), b - 3.0 * sigma**2)
            assert polynomials("relu", sigma) == pytest.approx(expected, abs=1e-6)

    def test_of_a_sigmoid(self):
        gamma, alpha, beta = polynomials("sigmoid", 0.2)
        assert (gamma, alpha) == pytest.approx((-1.0, -1.5), abs=1e-9)
        z = np.random.default_rng(0).normal(size=1_000_000)
        slope = 1.0 / (1.0 + np.exp(-z))
        slope *= 1.0 - slope
        assert beta == pytest.approx(3.0 * np.mean(slope**2) / np.mean(slope) - 3.0 * 0.2**2, abs=1e-3)

    def test_of_another_link(self):
        with pytest.raises(ConfigError):
            polynomials("tanh", 0.1)


class TestRegressors:
    @pytest.mark.parametrize(("K", "n", "seed"), [(1, 2_000, 0), (2, 8_000, 1), (3, 30_000, 2)])
    def test_of_lines_are_found_without_a_guess(self, K, n, seed):
        X, y, a = mixture(n, K, seed)
        found = regressors(X, y, K, np.random.default_rng(0), sigma=0.3)
        assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(K))
        assert likeness(found, a) > 0.95

    def test_of_bent_experts_are_found_with_their_link(self):
        X, y, a = mixture(200_000, 2, 1, d=4, sigma=0.02, link=lambda z: np.maximum(z, 0.0), orthogonal=True)
        right, wrong = (
            likeness(regressors(X, y, 2, np.random.default_rng(0), link=each, sigma=0.02), a)
            for each in ("relu", "linear")
        )
        assert right > 0.99
        assert wrong < right - 0.005

    def test_moments_that_tell_of_fewer_give_none(self):
        X = np.random.default_rng(0).normal(size=(5_000, 3))
        falling = np.random.default_rng(1).normal(size=5_000) * np.exp(-(X**2).sum(axis=1))
        assert regressors(X, falling, 2, np.random.default_rng(0), sigma=0.1) is None
        assert regressors(X, np.zeros(5_000), 1, np.random.default_rng(0), sigma=0.1) is None


class TestStart:
    def test_leads_em_to_the_experts_that_made_the_data(self):
        X, y, a = mixture(3_000, 3, 5)
        steps = steps_of(buffer_of(X, y), 3)
        (start,) = starts.spectral_starts(steps, 3, np.random.default_rng(0))
        assert likeness(start.experts[:, 0, 1:], a) > 0.8
        steps.run(start, 200)
        assert likeness(start.experts[:, 0, 1:], a) > 0.98

    def test_does_not_depend_on_units_and_leanings_of_the_columns(self):
        X, y, _ = mixture(3_000, 2, 2)
        turned = X @ np.random.default_rng(0).normal(size=(6, 6)) * [1.0, 10.0, 1e-3, 1.0, 1.0, 5.0] + 7.0
        said = []
        for inputs, outputs in ((X, y), (turned, 100.0 * y - 40.0)):
            buffer = buffer_of(inputs, outputs)
            (start,) = starts.spectral_starts(steps_of(buffer, 2), 2, np.random.default_rng(0))
            said.append(np.sort(buffer.R @ start.experts[:, 0].T, axis=1))
        assert said[1] == pytest.approx(100.0 * said[0] - 40.0, abs=15.0)

    def test_is_the_same_to_the_bit_whatever_the_number_of_threads(self):
        X, y, _ = mixture(1_500, 2, 0, d=150)  # so wide that work is shared out
        said = []
        for threads in (1, 2, 4):
            with threadpool_limits(threads):
                (start,) = starts.spectral_starts(steps_of(buffer_of(X, y), 2), 2, np.random.default_rng(0))
            said.append(start.experts.tobytes() + start.gate.tobytes())
        assert len(set(said)) == 1

    def test_there_is_none_for_classes_several_outputs_few_columns_or_no_spread(self):
        X, y, _ = mixture(500, 2, 0)
        rng = np.random.default_rng(0)
        planes, classes = Case("gaussian_full", 2), Case("categorical", 2)
        assert not starts.spectral_starts(steps_of(buffer_of(X, np.column_stack([y, y])), 2, planes), 2, rng)
        assert not starts.spectral_starts(steps_of(buffer_of(X, (y > 0.0) * 1.0), 2, classes), 2, rng)
        assert not starts.spectral_starts(steps_of(buffer_of(X[:, :1], y), 2), 2, rng)
        assert not starts.spectral_starts(steps_of(buffer_of(np.repeat(X[:, :1], 3, axis=1), y), 2), 2, rng)
        assert not starts.spectral_starts(steps_of(buffer_of(X, np.zeros(500)), 2), 2, rng)
