import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from streammoe.engine.mm import curvature
from streammoe.kernels import batch
from tests.unit.cases import Case, bent, draw, random_prior

DIAGONAL = Case("gaussian", 2)
FULL = Case("gaussian_full", 2)


class TestLeastSquares:
    K, p, n = 3, 4, 80

    def fitted(self, case, strength):
        R, Y = draw(case, self.n, self.p, self.K)
        tau = np.random.default_rng(0).dirichlet(np.ones(self.K), size=self.n)
        prior = random_prior(case, strength, self.p)
        experts = np.random.default_rng(1).normal(size=(self.K, 2, self.p))
        given = prior.strength, prior.expert_gram, prior.experts
        batch.fit_linear(experts, *given, tau, R, Y)
        return R, Y, tau, prior, experts, given

    @pytest.mark.parametrize("strength", [0.0, 2.0])
    def test_experts_are_weighted_least_squares_with_the_priors_rows(self, strength):
        R, Y, tau, prior, experts, given = self.fitted(DIAGONAL, strength)
        variances = np.ones((self.K, 2))
        trusted = tau * np.random.default_rng(4).uniform(0.0, 1.2, tau.shape)
        batch.fit_variances(experts, variances, *given, prior.variances, prior.variance_floor, tau, trusted, R, Y)
        share = strength / self.K
        for k in range(self.K):
            gram = (tau[:, k, None] * R).T @ R + share * np.diag(prior.expert_gram)
            for q in range(2):
                pull = (tau[:, k] * Y[:, q]) @ R + share * prior.expert_gram * prior.experts[q]
                theta = np.linalg.solve(gram, pull)
                np.testing.assert_allclose(experts[k, q], theta, rtol=1e-10)
                total = trusted[:, k] @ (Y[:, q] - R @ theta) ** 2
                total += share * (prior.variances[q] + prior.expert_gram @ (theta - prior.experts[q]) ** 2)
                assert variances[k, q] == pytest.approx(total / (tau[:, k].sum() + share), rel=1e-10)

    @pytest.mark.parametrize("strength", [0.0, 2.0])
    def test_covariances_are_what_they_leave_unexplained(self, strength):
        R, Y, tau, prior, experts, given = self.fitted(FULL, strength)
        covariances = np.empty((self.K, 2, 2))
        batch.fit_covariances(experts, covariances, *given, prior.variances, prior.variance_floor, tau, R, Y)
        share = strength / self.K
        for k in range(self.K):
            errors, apart = Y - R @ experts[k].T, experts[k] - prior.experts
            total = (tau[:, k, None] * errors).T @ errors
            total += share * (np.diag(prior.variances) + apart @ np.diag(prior.expert_gram) @ apart.T)
            np.testing.assert_allclose(covariances[k], total / (tau[:, k].sum() + share), rtol=1e-10)

    def test_no_variance_falls_below_the_floor(self):
        R, _, tau, prior, experts, given = self.fitted(DIAGONAL, 0.0)
        exact = np.einsum("qj,nj->nq", experts[0], R)
        flat = np.repeat(experts[:1], self.K, axis=0)
        variances, covariances = np.ones((self.K, 2)), np.ones((self.K, 2, 2))
        batch.fit_variances(flat, variances, *given, prior.variances, 1e-3, tau, tau, R, exact)
        batch.fit_covariances(flat, covariances, *given, prior.variances, 1e-3, tau, R, exact)
        np.testing.assert_allclose(variances, np.tile(1e-3 * prior.variances, (self.K, 1)))
        np.testing.assert_allclose(np.einsum("kqq->kq", covariances), variances)


class TestSoftmaxRegression:
    """The gate, whose reference is the last, and categorical experts, whose reference is the first."""

    @pytest.mark.parametrize("reference", [0, 2, 3])
    @pytest.mark.parametrize("bound", ["tight", "paper"])
    def test_is_the_penalised_multinomial_regression(self, bound, reference):
        M, p, n = 4, 3, 250
        X, _ = draw(DIAGONAL, n, p, 2)
        rng = np.random.default_rng(2)
        targets = rng.dirichlet(np.full(M, 0.4), size=n) * rng.uniform(0.0, 2.0, (n, 1))
        gram, target = rng.uniform(0.5, 2.0, p), rng.normal(size=(M - 1, p))
        A = bent(bound, M - 1)

        def loss(flat):
            found = flat.reshape(M - 1, p)
            logits = np.insert(X @ found.T, reference, 0.0, axis=1)
            apart = found - target
            penalty = np.einsum("kj,km,mj,j->", apart, A, apart, gram)
            return -np.sum(targets * log_softmax(logits, axis=1)) + 0.5 * 1.5 * penalty

        best = minimize(loss, np.zeros((M - 1) * p), method="BFGS", options={"gtol": 1e-7})
        found = np.zeros((M - 1, p))
        given = 1.5, gram, target, curvature(bound, M - 1), targets, X, reference
        batch.fit_softmax(found, *given, 60)
        assert loss(found.ravel()) <= best.fun + 1e-9
        np.testing.assert_allclose(found.ravel(), best.x, atol=1e-4)
        assert batch.softmax_objective(found, *given) == pytest.approx(-loss(found.ravel()), rel=1e-12)

    @pytest.mark.parametrize(("free", "p"), [(2, 4), (3, 102)])
    def test_a_step_never_lowers_the_objective_from_any_start(self, free, p):
        assert (free * p > batch.NEWTON_LIMIT) == (p == 102)
        X, _ = draw(DIAGONAL, 200, p, 2)
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

    def test_nothing_is_free_with_one_class(self):
        found = np.empty((0, 2))
        batch.fit_softmax(found, 1.0, np.ones(2), found, (2.0, 1.0), np.ones((5, 1)), np.ones((5, 2)), 0, 10)
        assert found.shape == (0, 2)

    @pytest.mark.parametrize("reference", [0, 1, 2])
    def test_rows_of_probabilities(self, reference):
        rng = np.random.default_rng(0)
        coefficients, X, found = rng.normal(size=(2, 3)), 50.0 * rng.normal(size=(20, 3)), np.empty((20, 3))
        batch.softmax_rows(coefficients, X, reference, found)
        expected = log_softmax(np.insert(X @ coefficients.T, reference, 0.0, axis=1), axis=1)
        np.testing.assert_allclose(found, np.exp(expected), rtol=1e-10)


class TestKMeans:
    def test_finds_clusters_that_are_there(self):
        rng = np.random.default_rng(0)
        truth = np.repeat(np.arange(3), 60)
        points = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[truth] + 0.3 * rng.normal(size=(180, 2))
        tau = np.empty((180, 3))
        distortion = batch.kmeans(points, 5, rng.random(3), 3, 50, tau)
        labels = tau.argmax(axis=1)
        assert sorted(set(zip(truth.tolist(), labels.tolist(), strict=True))) == [(c, labels[60 * c]) for c in range(3)]
        within = sum(((points[labels == c] - points[labels == c].mean(axis=0)) ** 2).sum() for c in range(3))
        assert distortion == pytest.approx(within, rel=1e-10)

    def test_labels_are_one_hot_and_repeatable(self):
        points = np.random.default_rng(1).normal(size=(40, 3))
        draws = np.random.default_rng(2).random(4)
        first, second = np.full((40, 4), np.nan), np.zeros((40, 4))
        batch.kmeans(points, 0, draws, 4, 50, first)
        batch.kmeans(points, 0, draws, 4, 50, second)
        assert (np.sort(first, axis=1) == [0, 0, 0, 1]).all()
        assert first.tobytes() == second.tobytes()

    def test_more_clusters_than_distinct_points(self):
        tau = np.empty((6, 4))
        assert batch.kmeans(np.zeros((6, 2)), 0, np.full(4, 0.5), 4, 50, tau) == 0.0
        assert (tau.sum(axis=1) == 1.0).all()
