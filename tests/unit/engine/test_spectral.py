"""Starts from moments: the regressors that made the data, without a guess."""

import itertools
import math

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streammoe.engine import starts
from streammoe.engine.spectral import polynomials, regressors
from tests.unit.cases import Case, em_of

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


def steps_of(X, y, K, case=LINE):
    return em_of(case, np.column_stack([np.ones(len(X)), X]), y.reshape(len(y), -1), K)


def test_polynomials_have_their_closed_forms():
    b = 3.0 * (4.0 - math.pi) / (math.pi - 2.0)
    for sigma in (0.0, 0.5):
        assert polynomials("linear", sigma) == pytest.approx((0.0, 0.0, -3.0 * (1.0 + sigma**2)), abs=1e-9)
        expected = (-2.0 * math.sqrt(2.0 / math.pi), -(6.0 + b) / math.sqrt(2.0 * math.pi), b - 3.0 * sigma**2)
        assert polynomials("relu", sigma) == pytest.approx(expected, abs=1e-6)
    gamma, alpha, beta = polynomials("sigmoid", 0.2)
    assert (gamma, alpha) == pytest.approx((-1.0, -1.5), abs=1e-9)
    z = np.random.default_rng(0).normal(size=500_000)
    slope = 1.0 / (1.0 + np.exp(-z))
    slope *= 1.0 - slope
    assert beta == pytest.approx(3.0 * np.mean(slope**2) / np.mean(slope) - 3.0 * 0.2**2, abs=1e-3)


def test_bent_regressors_are_found_with_their_link():
    X, y, a = mixture(100_000, 2, 1, d=4, sigma=0.02, link=lambda z: np.maximum(z, 0.0), orthogonal=True)
    right, wrong = (
        likeness(regressors(X, y, 2, np.random.default_rng(0), link=each, sigma=0.02), a) for each in ("relu", "linear")
    )
    assert right > 0.99
    assert wrong < right - 0.005


def test_a_start_leads_em_to_the_experts_that_made_the_data():
    X, y, a = mixture(3_000, 3, 5)
    (start,) = starts.spectral_starts(steps_of(X, y, 3), 3, np.random.default_rng(0))
    assert likeness(start.experts[:, 0, 1:], a) > 0.8
    steps_of(X, y, 3).run(start, 200)
    assert likeness(start.experts[:, 0, 1:], a) > 0.98


def test_a_start_is_the_same_to_the_bit_whatever_the_number_of_threads():
    X, y, _ = mixture(1_000, 2, 0, d=100)  # so wide that work is shared out
    found = set()
    for threads in (1, 4):
        with threadpool_limits(threads):
            (start,) = starts.spectral_starts(steps_of(X, y, 2), 2, np.random.default_rng(0))
        found.add(start.experts.tobytes() + start.gate.tobytes())
    assert len(found) == 1


def test_there_is_no_start_where_moments_show_no_experts():
    X, y, _ = mixture(500, 2, 0)
    rng = np.random.default_rng(0)
    for inputs, outputs, case in [
        (X, np.column_stack([y, y]), Case("gaussian_full", 2)),
        (X, (y > 0.0) * 1.0, Case("categorical", 2)),
        (X[:, :1], y, LINE),
        (np.repeat(X[:, :1], 3, axis=1), y, LINE),
        (X, np.zeros(500), LINE),
    ]:
        assert not starts.spectral_starts(steps_of(inputs, outputs, 2, case), 2, rng)
    X = rng.normal(size=(5_000, 3))
    falling = rng.normal(size=5_000) * np.exp(-(X**2).sum(axis=1))
    assert regressors(X, falling, 2, np.random.default_rng(0), sigma=0.1) is None
    assert regressors(X, np.zeros(5_000), 1, np.random.default_rng(0), sigma=0.1) is None
