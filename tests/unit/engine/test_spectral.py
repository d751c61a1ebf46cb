"""Starts from moments: the regressors that made the data, without a guess."""

import itertools

import numpy as np
from threadpoolctl import threadpool_limits

from streammoe.engine import starts
from streammoe.engine.jobs import run_job
from tests.unit.cases import Case, em_of

LINE = Case("gaussian", 1)


def mixture(n, K, seed, *, d=6):
    """Regressors and gate directions of length 1, no intercepts ([CQT] §4); also the regressors."""
    rng = np.random.default_rng(seed)
    a, w = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.normal(size=(2, K, d)))
    w[-1] = 0.0
    X = rng.normal(size=(n, d))
    logits = X @ w.T
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    chosen = (shares.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    return X, (X @ a.T)[np.arange(n), chosen] + 0.3 * rng.normal(size=n), a


def likeness(found, truth):
    """The worst cosine, up to the order and the sign."""
    cosines = np.abs(found @ truth.T) / np.linalg.norm(found, axis=1, keepdims=True)
    K = len(truth)
    return max(min(cosines[at, k] for k, at in enumerate(order)) for order in itertools.permutations(range(K)))


def steps_of(X, y, K):
    return em_of(LINE, np.column_stack([np.ones(len(X)), X]), y.reshape(len(y), -1), K)


def test_a_start_leads_em_to_the_experts_that_made_the_data():
    X, y, a = mixture(3_000, 3, 5)
    (start,) = run_job(starts.spectral_starts(steps_of(X, y, 3), 3, np.random.default_rng(0)))
    assert likeness(start.experts[:, 0, 1:], a) > 0.8
    steps_of(X, y, 3).run(start, 200)
    assert likeness(start.experts[:, 0, 1:], a) > 0.98


def test_a_start_is_the_same_to_the_bit_whatever_the_number_of_threads():
    X, y, _ = mixture(1_000, 2, 0, d=100)  # so wide that work is shared out
    found = set()
    for threads in (1, 4):
        with threadpool_limits(threads):
            (start,) = run_job(starts.spectral_starts(steps_of(X, y, 2), 2, np.random.default_rng(0)))
        found.add(start.experts.tobytes() + start.gate.tobytes())
    assert len(found) == 1
