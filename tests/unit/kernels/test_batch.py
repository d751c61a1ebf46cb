"""Parts of M-steps; whole ones are held to literal ones in tests/oracle."""

import numpy as np
import pytest

from streammoe.engine.mm import curvature
from streammoe.kernels import batch
from tests.unit.cases import Case, draw

LINE = Case("gaussian", 2)


def test_no_variance_falls_below_the_floor():
    K, p = 3, 4
    R, _ = draw(LINE, 80, p, K)
    tau = np.random.default_rng(0).dirichlet(np.ones(K), size=80)
    experts = np.repeat(np.random.default_rng(1).normal(size=(1, 2, p)), K, axis=0)
    exact = R @ experts[0].T
    least = np.array([0.5, 2.0])
    variances, covariances = np.ones((K, 2)), np.ones((K, 2, 2))
    prior = 0.0, np.ones(p), np.zeros((2, p))
    batch.fit_variances(experts, variances, *prior, least, 1e-3, tau, tau, R, exact)
    batch.fit_covariances(experts, covariances, *prior, least, 1e-3, tau, R, exact)
    np.testing.assert_allclose(variances, np.tile(1e-3 * least, (K, 1)))
    np.testing.assert_allclose(np.einsum("kqq->kq", covariances), variances)


@pytest.mark.parametrize(("free", "p"), [(2, 4), (3, 102)])
def test_a_step_of_softmax_regression_never_lowers_the_objective_from_any_start(free, p):
    assert (free * p > batch.NEWTON_LIMIT) == (p == 102)
    X, _ = draw(LINE, 200, p, 2)
    targets = np.random.default_rng(3).dirichlet(np.full(free + 1, 0.2), size=200)
    given = 0.1, np.ones(p), np.zeros((free, p)), curvature("tight", free), targets, X, free
    for size in (0.0, 1.0, 30.0):
        found = size * np.random.default_rng(4).normal(size=(free, p))
        values = []
        for _ in range(8):
            values.append(batch.softmax_objective(found, *given))
            batch.fit_softmax(found, *given, 1)
        assert np.diff(values).min() >= 0.0
        assert values[-1] > values[0]
