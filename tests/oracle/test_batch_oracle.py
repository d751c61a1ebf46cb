"""The batch methods against slow literal ones: EM and MM step by step, gradients by differences, and [MD] §3.1."""

import numpy as np
import pytest
from scipy.special import expit

from streammoe.engine import batch
from streammoe.engine.em import Buffer, Em
from streammoe.engine.gradient import gradient, moved
from streammoe.engine.methods import ExpectationMaximisation, GradientDescent, MajorizationMinimisation, point_at
from streammoe.experts import Parameters
from tests.oracle.batch_methods import Literal
from tests.unit.cases import CASES, Case, draw, options, random_prior, random_theta

BOUNDS = ["tight", "adaptive", "paper"]
n, p, K = 60, 3, 3


def problem(case, bound, *, strength=0.7, K=K, n=n, seed=0):
    R, Y = draw(case, n, p, K, seed)
    weights = np.random.default_rng(9).uniform(0.2, 2.0, n)
    return Em(case.family, Buffer(R, R, Y, weights), random_prior(case, strength, p), options(case, K, strength, bound))


def agree(found, expected, tolerance):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max(initial=0.0) <= tolerance * max(np.abs(theirs).max(initial=0.0), 1.0)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("method", "name"), [(ExpectationMaximisation, "em"), (MajorizationMinimisation, "mm")])
def test_rounds_are_the_literal_ones(method, name, case, bound):
    em = problem(case, bound)
    literal = Literal(case, em, bound)
    point = point_at(em, random_theta(case, K, p))
    theta = Parameters(*(array.copy() for array in point.theta))
    for _ in range(3):
        point = method().advance(em, point, gradient(em, point.theta, point.tau))
        theta = getattr(literal, name)(theta)
        # A softmax regression ends where its objective gains no more than rounding: half of the digits of its place.
        tolerance = 1e-6 if name == "em" else 1e-9
        agree(point.theta, theta, tolerance)
        assert point.objective == pytest.approx(literal.objective(theta), rel=tolerance)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_gradient_is_that_of_the_literal_objective(case, bound):
    """Entry by entry; a variance's coordinate is its logarithm, or an entry of the Cholesky factor relative to L."""
    em = problem(case, bound)
    literal = Literal(case, em, bound)
    theta = random_theta(case, K, p)
    slope = gradient(em, theta, em.expect(theta)[1])
    for name in ("gate", "experts"):
        array = getattr(theta, name)
        for at in np.ndindex(array.shape):
            ends = []
            for h in (1e-5, -1e-5):
                there = array.copy()
                there[at] += h
                ends.append(literal.objective(theta._replace(**{name: there})))
            assert getattr(slope, name)[at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7), (name, at)
    for at in np.ndindex(theta.variances.shape):
        ends = []
        for h in (1e-5, -1e-5):
            there = theta.variances.copy()
            if there.ndim == 2:
                there[at] *= np.exp(h)
            elif at[1] >= at[2]:
                k, row, column = at
                factor = np.linalg.cholesky(there[k])
                turn = np.eye(len(factor))
                turn[row, column] = np.exp(h) if row == column else h
                there[k] = factor @ turn @ turn.T @ factor.T
            ends.append(literal.objective(theta._replace(variances=there)))
        assert slope.variances[at] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7), at


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_of_gradient_descent_goes_along_the_gradient(case):
    em = problem(case, "tight")
    theta = random_theta(case, K, p)
    point = point_at(em, theta)
    slope = gradient(em, theta, point.tau)
    after = GradientDescent(0.01).advance(em, point, slope)
    np.testing.assert_allclose(after.theta.gate, theta.gate + 0.01 * slope.gate, rtol=1e-14)
    np.testing.assert_allclose(after.theta.experts, theta.experts + 0.01 * slope.experts, rtol=1e-14)
    if theta.variances.ndim == 2:
        np.testing.assert_allclose(after.theta.variances, theta.variances * np.exp(0.01 * slope.variances), rtol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=str)
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


@pytest.mark.parametrize("method", ["gradient_em", "gradient_descent", "mm"])
@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 2)], ids=str)
def test_what_is_symmetric_stays_so(case, method):
    em, theta, *_ = symmetric(case)
    way = batch.descend(em, theta, method, rounds=20, tolerance=0.0)
    np.testing.assert_allclose(way.theta.experts[0], -way.theta.experts[1], atol=1e-8)
    np.testing.assert_allclose(way.theta.variances[0], way.theta.variances[1], rtol=1e-8)
    assert way.objective > way.trace[0].objective + 0.01


def logistic_regression(X, targets, beta):
    """Newton's method; the targets are probabilities."""
    for _ in range(100):
        g = expit(X @ beta)
        beta = beta + np.linalg.solve((X * (g * (1.0 - g))[:, None]).T @ X, X.T @ (targets - g))
    return beta
