"""Rounds of EM against the formulas: dense matrices, and the literal algorithms' densities."""

import numpy as np
import pytest

from streammoe.engine.batch import em_round, point_at
from streammoe.experts import Parameters
from tests.oracle.literal import curvature_bound
from tests.pairs import pairwise_cases
from tests.unit.cases import HEAVY, Case, problem, random_theta, responsibilities

pytestmark = pytest.mark.slow

p = 3
KINDS = [Case("gaussian", 3), Case("gaussian_full", 3), Case("student_t", 3), Case("laplace", 1)]
KINDS += [Case("categorical", 2), Case("categorical", 5)]


def moved(theta, direction, h):
    """θ a little further along a direction; variances stay positive, and covariances positive definite."""
    factors = np.exp(h * direction.variances)
    if theta.variances.ndim == 3:
        turned = np.linalg.cholesky(theta.variances) @ (np.eye(theta.variances.shape[1]) + h * direction.variances)
        variances = turned @ turned.transpose(0, 2, 1)
    else:
        variances = theta.variances * factors
    return Parameters(theta.gate + h * direction.gate, theta.experts + h * direction.experts, variances)


class Literal:
    """What EM climbs. The prior counts as `strength` further events, a K-th of them at each expert; its curvature for
    softmax blocks is A ⊗ Λ."""

    def __init__(self, case, em, bound):
        self.case, self.em, self.bound = case, em, bound

    def curved(self, apart, gram):
        """Apartᵀ (A ⊗ Λ) apart."""
        return np.einsum("aj,ab,bj,j->", apart, curvature_bound(self.bound, len(apart)), apart, gram)

    def log_prior(self, theta):
        prior, share = self.em.prior, self.em.prior.strength / len(theta.experts)
        total = -0.5 * prior.strength * self.curved(theta.gate, prior.gate_gram)
        for expert, variances in zip(theta.experts, theta.variances, strict=True):
            apart = expert - prior.experts
            if self.case.family.is_metric:
                covariance = variances if variances.ndim == 2 else np.diag(variances)
                scatter = apart @ np.diag(prior.expert_gram) @ apart.T + np.diag(prior.variances)
                squares = np.trace(np.linalg.solve(covariance, scatter))
                total -= 0.5 * share * (np.linalg.slogdet(covariance)[1] + squares)
            else:
                total -= 0.5 * share * self.curved(apart, prior.expert_gram)
        return total

    def says(self, theta):
        """(n, K) τ, and (n,) log s(y|x)."""
        return responsibilities(self.case, theta, self.em.buffer.R, self.em.buffer.Y)

    def objective(self, theta):
        """Penalised log-likelihood of an event."""
        weights = self.em.buffer.weights
        return (weights @ self.says(theta)[1] + self.log_prior(theta)) / len(weights)

    def expected(self, theta, tau):
        """The same of complete data, of which these responsibilities are known: what an M-step maximises."""
        weights, (own, total) = self.em.buffer.weights, self.says(theta)
        complete = np.sum(tau * (np.log(np.maximum(own, 1e-300)) + total[:, None]), axis=1)
        return (weights @ complete + self.log_prior(theta)) / len(weights)

    def slope(self, value, theta):
        """The steepest of a function of θ along a few random directions."""
        rng, found = np.random.default_rng(0), []
        for _ in range(3):
            direction = Parameters(*(rng.normal(size=array.shape) for array in theta))
            ends = [value(moved(theta, direction, h)) for h in (1e-4, -1e-4)]
            found.append(abs(ends[0] - ends[1]) / 2e-4)
        return max(found)


@pytest.mark.parametrize("given", pairwise_cases(case=KINDS, bound=["tight", "adaptive", "paper"], K=[3, 1]))
def test_rounds_of_em_maximise_what_the_literal_responsibilities_expect(given):
    case, bound, K = given.values()
    em = problem(case, 30, p, K, bound=bound)
    literal, point = Literal(case, em, bound), point_at(em, random_theta(case, K, p))
    for _ in range(2):
        tau, _ = literal.says(point.theta)
        np.testing.assert_allclose(point.tau, tau, rtol=1e-8, atol=1e-12)

        def expected(theta, tau=tau):
            return literal.expected(theta, tau)

        # Heavy tails have no closed form: so many reweighted solves under the same responsibilities.
        limit = 1e-5 + (0.05 * literal.slope(expected, point.theta) if case.name in HEAVY else 0.0)
        point = em_round(em, point)
        assert point.objective == pytest.approx(literal.objective(point.theta), rel=1e-11)
        assert literal.slope(expected, point.theta) < limit
