"""The batch methods against slow literal ones: EM step by step, and [MD] §3.1."""

import numpy as np
import pytest
from scipy.special import expit

from streammoe.engine import batch
from streammoe.engine.em import Buffer, Em
from streammoe.engine.gradient import gradient, moved
from streammoe.engine.methods import ExpectationMaximisation, point_at
from streammoe.experts import Parameters
from tests.oracle.batch_methods import Literal
from tests.pairs import pairwise_cases
from tests.unit.cases import CASES, Case, draw, options, random_prior, random_theta

n, p, K = 60, 3, 3


def problem(case, bound, *, strength=0.7, K=K, n=n, seed=0):
    R, Y = draw(case, n, p, K, seed)
    weights = np.random.default_rng(9).uniform(0.2, 2.0, n)
    return Em(case.family, Buffer(R, R, Y, weights), random_prior(case, strength, p), options(case, K, strength, bound))


def agree(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0.0) <= tolerance * max(np.abs(theirs).max(initial=0.0), 1.0)


@pytest.mark.parametrize("given", pairwise_cases(case=CASES, bound=["tight", "adaptive", "paper"], K=[3, 1]))
def test_rounds_and_their_objective_are_the_literal_ones(given):
    case, bound, K = given.values()
    em = problem(case, bound, K=K)
    literal = Literal(case, em, bound)
    point = point_at(em, random_theta(case, K, p))
    theta = Parameters(*(array.copy() for array in point.theta))
    for _ in range(3):
        point = ExpectationMaximisation().advance(em, point, gradient(em, point.theta, point.tau))
        theta = literal.em(theta)
        # A softmax regression ends where its objective gains no more than rounding: half of the digits of its place.
        agree(point.theta, theta, 1e-6)
        assert point.objective == pytest.approx(literal.objective(point.theta), rel=1e-11)


@pytest.mark.parametrize("case", [Case("gaussian_full", 3), Case("categorical", 3)], ids=str)
def test_em_ends_at_a_stationary_point_of_the_literal_likelihood(case):
    em = problem(case, "tight", n=150, K=2)
    way = batch.descend(em, random_theta(case, 2, p), "em", rounds=3_000, tolerance=0.0)
    literal = Literal(case, em, "tight")
    rng = np.random.default_rng(0)
    assert way.trace[-1].gradient < 1e-6 < way.trace[0].gradient
    for _ in range(5):
        direction = Parameters(*(rng.normal(size=array.shape) for array in way.theta))
        ends = [literal.objective(moved(em, way.theta, direction, h, h)) for h in (1e-4, -1e-4)]
        assert abs(ends[0] - ends[1]) / 2e-4 < 1e-5


# --- [MD] §3.1: two experts that are each other's negatives ---------------------------------------------------------


def symmetric(case, seed=0, rows=200, d=3):
    """Rows and their mirror images (−x, y), of a mixture with β₂ = −β₁ and no intercept; hardly any prior."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, d))
    beta, slope = rng.normal(size=d), 2.0 * rng.normal(size=d)
    sign = np.where(rng.random(rows) < expit(X @ slope), 1.0, -1.0)
    if case.family.is_metric:
        Y = (sign * (X @ beta) + 0.5 * rng.normal(size=rows))[:, None]
    else:
        Y = (rng.random(rows) < expit(sign * (2.0 * X @ beta))).astype(float)[:, None]
    both = np.concatenate([X, -X])
    prior = case.family.unit_prior(1e-9, d, d, case.n_outputs)
    em = Em(case.family, Buffer(both, both, np.concatenate([Y, Y]), np.ones(2 * rows)), prior, options(case, 2, 1e-9))
    start = 0.5 * rng.normal(size=(1, d))
    variances = np.ones((2, case.family.n_variances(case.n_outputs)))
    theta = Parameters(rng.normal(size=(1, d)), np.stack([start, -start]), variances)
    return em, theta, X, Y[:, 0]


def test_symmetric_linear_experts_follow_the_closed_form_map():
    """β⁺ = (Σ x xᵀ)⁻¹ Σ tanh(xᵀω/2 + y xᵀβ/σ²) y x, and ω⁺ is the logistic regression of τ on x."""
    em, theta, X, y = symmetric(Case("gaussian", 1))
    point = point_at(em, theta)
    beta, omega, variance = theta.experts[0, 0].copy(), theta.gate[0].copy(), 1.0
    for _ in range(8):
        point = ExpectationMaximisation().advance(em, point, gradient(em, point.theta, point.tau))
        lean = np.tanh(0.5 * (X @ omega) + y * (X @ beta) / variance)
        beta = np.linalg.solve(X.T @ X, X.T @ (lean * y))
        tau = 0.5 * (1.0 + lean)
        variance = np.mean(tau * (y - X @ beta) ** 2 + (1.0 - tau) * (y + X @ beta) ** 2)
        omega = logistic_regression(X, tau, omega)
        np.testing.assert_allclose(point.theta.experts[:, 0], [beta, -beta], atol=1e-6)
        np.testing.assert_allclose(point.theta.variances, variance, rtol=1e-6)
        np.testing.assert_allclose(point.theta.gate[0], omega, atol=1e-5)
    assert np.abs(beta).max() > 0.5


def test_symmetric_logistic_experts_follow_one_logistic_regression():
    """β⁺ is the logistic regression of τ where y = 1, and of 1 − τ where y = 0, on x."""
    em, theta, X, y = symmetric(Case("categorical", 2))
    point = point_at(em, theta)
    beta, omega = theta.experts[0, 0].copy(), theta.gate[0].copy()
    for _ in range(8):
        point = ExpectationMaximisation().advance(em, point, gradient(em, point.theta, point.tau))
        one, other = (np.where(y == 1.0, expit(sign * (X @ beta)), expit(-sign * (X @ beta))) for sign in (1, -1))
        g = expit(X @ omega)
        tau = g * one / (g * one + (1.0 - g) * other)
        beta = logistic_regression(X, np.where(y == 1.0, tau, 1.0 - tau), beta)
        omega = logistic_regression(X, tau, omega)
        np.testing.assert_allclose(point.theta.experts[:, 0], [beta, -beta], atol=1e-5)
        np.testing.assert_allclose(point.theta.gate[0], omega, atol=1e-5)


def logistic_regression(X, targets, beta):
    """Newton's method; the targets are probabilities."""
    for _ in range(100):
        g = expit(X @ beta)
        beta = beta + np.linalg.solve((X * (g * (1.0 - g))[:, None]).T @ X, X.T @ (targets - g))
    return beta
