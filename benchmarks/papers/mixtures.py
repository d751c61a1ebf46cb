"""Run EM from a given start with the library's engine: the parts of a warm-up, one by one.

The only module of this package that uses code below the estimators.
"""

from __future__ import annotations

import numpy as np

from benchmarks.papers.baselines import features
from streammoe import schedules
from streammoe.engine.em import Buffer, Em, one_expert_prior
from streammoe.engine.jobs import run_job
from streammoe.engine.mixture import learning_options
from streammoe.engine.starts import spectral_starts
from streammoe.experts import Parameters, families

PRIOR_STRENGTH = 0.1
"""The estimators' default."""


def em_on(X: np.ndarray, y: np.ndarray, K: int) -> Em:
    """Set up EM on these events for K experts of degree 1, as a warm-up would."""
    family = families()["gaussian"]
    options = learning_options(
        bound="adaptive",
        n_experts=K,
        n_rows=1,
        prior_strength=PRIOR_STRENGTH,
        averaging="polyak",
        schedule=schedules.Power(0.6),
    )
    W = features(X)
    buffer = Buffer(W, W, np.ascontiguousarray(y[:, None]), np.ones(len(y)))
    return Em(family, buffer, run_job(one_expert_prior(family, buffer, 1, options)), options)


def spectral_start(em: Em, K: int, seed: int) -> Parameters | None:
    """Estimate experts from moments, and their gate by EM ([CQT]); None if the moments reveal fewer experts."""
    starts = run_job(spectral_starts(em, K, np.random.default_rng(seed)))
    return starts[0] if starts else None


def random_start(X: np.ndarray, y: np.ndarray, K: int, seed: int) -> Parameters:
    """Draw regressors and gate weights on the unit sphere, without intercepts, with the targets' variances."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(2 * K - 1, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    padded = np.column_stack([np.zeros(2 * K - 1), directions])
    return Parameters(padded[: K - 1].copy(), padded[K - 1 :, None].copy(), np.full((K, 1), y.var()))
