"""Parts of M-steps; whole ones are held to literal ones in tests/oracle."""

import numpy as np
import pytest

from streammoe.engine.mm import curvature
from streammoe.kernels import batch
from streammoe.kernels.kmeans import kmeans
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


class TestSoftmaxRegression:
    """The gate, whose reference is the last, and categorical experts, whose reference is the first."""

    @pytest.mark.parametrize(("free", "p"), [(2, 4), (3, 102)])
    def test_a_step_never_lowers_the_objective_from_any_start(self, free, p):
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

    def test_separable_rows_stay_finite_under_a_prior(self):
        X = np.column_stack([np.ones(40), np.linspace(-1.0, 1.0, 40)])
        targets = np.column_stack([X[:, 1] < 0.0, X[:, 1] >= 0.0]).astype(float)
        found = np.zeros((1, 2))
        batch.fit_softmax(found, 1e-3, np.ones(2), np.zeros((1, 2)), (2.0, 1.0), targets, X, 0, 500)
        assert np.isfinite(found).all()
        assert found[0, 1] > 10.0


class TestKMeans:
    def test_finds_clusters_that_are_there(self):
        rng = np.random.default_rng(0)
        truth = np.repeat(np.arange(3), 60)
        points = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[truth] + 0.3 * rng.normal(size=(180, 2))
        draws = rng.random(3)
        tau, again = np.full((180, 3), np.nan), np.zeros((180, 3))
        distortion = kmeans(points, 5, draws, 3, 50, tau)
        kmeans(points, 5, draws, 3, 50, again)
        assert tau.tobytes() == again.tobytes()
        assert (np.sort(tau, axis=1) == [0, 0, 1]).all()
        labels = tau.argmax(axis=1)
        assert sorted(set(zip(truth.tolist(), labels.tolist(), strict=True))) == [(c, labels[60 * c]) for c in range(3)]
        within = sum(((points[labels == c] - points[labels == c].mean(axis=0)) ** 2).sum() for c in range(3))
        assert distortion == pytest.approx(within, rel=1e-10)

    def test_more_clusters_than_distinct_points(self):
        tau = np.empty((6, 4))
        assert kmeans(np.zeros((6, 2)), 0, np.full(4, 0.5), 4, 50, tau) == 0.0
        assert (tau.sum(axis=1) == 1.0).all()
