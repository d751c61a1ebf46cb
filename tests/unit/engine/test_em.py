"""EM on a buffer, and the statistics to stream on from, against the formulas; for every family."""

import numpy as np
import pytest

from streammoe.engine.em import Buffer, Em, statistics_at
from streammoe.experts import Parameters
from streammoe.kernels.batch import adaptive_weights
from tests.unit.cases import (
    CASES,
    HEAVY,
    Case,
    bent,
    draw,
    log_classes,
    log_gate,
    options,
    random_prior,
    random_theta,
    responsibilities,
    trust,
)

BOUNDS = ["tight", "adaptive", "paper"]


def em_of(case, n, p, K, *, strength, bound="tight", weighted=False, seed=0):
    R, Y = draw(case, n, p, K, seed)
    weights = np.random.default_rng(9).uniform(0.0, 3.0, n) if weighted else np.ones(n)
    prior = random_prior(case, strength, p)
    return Em(case.family, Buffer(R, R, Y, weights), prior, options(case, K, strength, bound))


def log_prior(case, theta, prior, bound):
    """Log density of the prior's pseudo-events, a K-th of them at each expert, around its own target."""
    share = prior.strength / len(theta.experts)
    apart = theta.experts - prior.experts
    total = 0.0
    if case.name in {"gaussian", *HEAVY}:
        squares = prior.variances + np.einsum("kqj,j->kq", apart**2, prior.expert_gram)
        total -= 0.5 * share * np.sum(np.log(theta.variances) + squares / theta.variances)
    elif case.name == "gaussian_full":
        for difference, covariance in zip(apart, theta.variances, strict=True):
            scatter = difference @ np.diag(prior.expert_gram) @ difference.T + np.diag(prior.variances)
            total -= 0.5 * share * (np.linalg.slogdet(covariance)[1] + np.trace(np.linalg.inv(covariance) @ scatter))
    else:
        A = bent(bound, case.n_rows)
        total -= 0.5 * share * np.einsum("kaj,ab,kbj,j->", apart, A, apart, prior.expert_gram)
    A = bent(bound, len(theta.gate))
    return total - 0.5 * prior.strength * np.einsum("aj,ab,bj,j->", theta.gate, A, theta.gate, prior.gate_gram)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reports_the_penalised_likelihood_of_an_event(case, bound, weighted):
    em = em_of(case, 50, 3, 3, strength=0.7, bound=bound, weighted=weighted)
    theta = random_theta(case, 3, 3)
    tau, log_likelihoods = responsibilities(case, theta, em.buffer.R, em.buffer.Y)
    expected = (em.buffer.weights @ log_likelihoods + log_prior(case, theta, em.prior, bound)) / 50
    found, found_tau = em.expect(theta)
    assert found == pytest.approx(expected, rel=1e-11)
    np.testing.assert_allclose(found_tau, tau, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("strength", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(("K", "bound"), [(1, "tight"), (2, "adaptive"), (3, "paper"), (5, "tight")])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_never_lowers_the_penalised_likelihood(case, K, bound, strength):
    em = em_of(case, 150, 4, K, strength=strength, bound=bound, weighted=K == 3, seed=K)
    for seed in range(2):
        theta = random_theta(case, K, 4, seed)
        climbed = []
        for _ in range(25):
            total, tau = em.expect(theta)
            climbed.append(total)
            em.maximise(theta, tau)
        assert np.diff(climbed).min() > -1e-11
        assert climbed[-1] > climbed[0] + 0.05


@pytest.mark.parametrize("case", CASES, ids=str)
def test_stops_when_it_gains_too_little(case):
    em = em_of(case, 150, 3, 2, strength=1.0)
    theta = random_theta(case, 2, 3)
    short = em.run(Parameters(*(array.copy() for array in theta)), 3)
    last = em.run(theta, 2000)
    assert short < last
    before = [array.copy() for array in theta]
    again = em.run(theta, 2000)
    assert again == pytest.approx(last, abs=1e-6)
    for old, new in zip(before, theta, strict=True):
        np.testing.assert_allclose(new, old, atol=0.02)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_annealing_ends_with_plain_rounds(case):
    """What it leaves is as likely as what EM makes of random experts, or likelier: no round lowers it at the end."""
    em = em_of(case, 150, 3, 2, strength=1.0)
    theta = random_theta(case, 2, 3)
    first, _ = em.expect(theta)
    em.anneal(theta, 30)
    last, tau = em.expect(theta)
    assert last > first
    em.maximise(theta, tau)
    assert em.expect(theta)[0] > last - 1e-11


def literal(coefficients, target, A, X, push, weights, prior_weight, gram, total):
    """θ̄ of the averaged statistics E[push xᵀ − weight A C x xᵀ] and E[weight x xᵀ], with the prior's rows."""
    curved = (X * weights[:, None]).T @ X
    linear = push.T @ X - A @ coefficients @ curved - prior_weight * A @ target @ np.diag(gram)
    G = (curved + prior_weight * np.diag(gram)) / total
    return -np.linalg.solve(np.kron(A, G), linear.ravel() / total).reshape(coefficients.shape), G


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("strength", [0.0, 3.0])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_statistics_are_the_averages_at_these_parameters(case, K, bound, strength, weighted):
    """As the literal algorithms form and solve them, with the prior as `strength` more events."""
    n, p = 120, 3
    em = em_of(case, n, p, K, strength=strength, bound=bound, weighted=weighted)
    (_, R, Y, weights), prior = em.buffer, em.prior
    theta = random_theta(case, K, p, seed=5)
    given = Parameters(*(array.copy() for array in theta))
    total = n + strength
    tau = responsibilities(case, given, R, Y)[0] * weights[:, None]
    state = statistics_at(em, theta)
    np.testing.assert_allclose(state.masses, (tau.sum(axis=0) + strength / K) / total, rtol=1e-9)

    def bends(log_probabilities):
        found = np.ones(n)
        if bound == "adaptive" and log_probabilities.shape[1] > 1:
            adaptive_weights(np.exp(log_probabilities), found)
        return found

    log_g = log_gate(given.gate, R)
    push = (np.exp(log_g) * weights[:, None] - tau)[:, :-1]
    zeros = np.zeros_like(given.gate)
    A = bent(bound, K - 1)
    gate, G = literal(given.gate, zeros, A, R, push, weights * bends(log_g), strength, prior.gate_gram, total)
    np.testing.assert_allclose(state.gate, gate, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(state.gate_gram, G, rtol=1e-10, atol=1e-14)

    share = strength / K
    for k in range(K):
        if case.name == "categorical":
            log_p = log_classes(given.experts[k], R)
            push = (np.exp(log_p) - (np.arange(case.n_outputs) == Y))[:, 1:] * tau[:, k, None]
            expert, gram = literal(
                given.experts[k],
                prior.experts,
                bent(bound, case.n_rows),
                R,
                push,
                tau[:, k] * bends(log_p),
                share,
                prior.expert_gram,
                total,
            )
        else:
            trusted = (tau * trust(case, given, R, Y))[:, k, None]
            gram = (R * trusted).T @ R + share * np.diag(prior.expert_gram)
            linear = (R * trusted).T @ Y + share * (prior.experts * prior.expert_gram).T
            expert = np.linalg.solve(gram, linear).T
            gram /= total
            errors, apart = Y - R @ expert.T, expert - prior.experts
            scatter = (errors * trusted).T @ errors
            scatter += share * (np.diag(prior.variances) + apart @ np.diag(prior.expert_gram) @ apart.T)
            scatter /= tau[:, k].sum() + share
            expected = scatter if case.name == "gaussian_full" else np.diag(scatter)
            np.testing.assert_allclose(state.variances[k], expected, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(state.experts[k], expert, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(state.expert_grams[k], gram, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 3)], ids=str)
def test_a_weight_of_two_is_the_event_twice(case):
    once = em_of(case, 60, 3, 2, strength=0.0)
    R, Y = once.buffer.R, once.buffer.Y
    doubled = once._replace(buffer=Buffer(R, R, Y, np.where(np.arange(60) < 20, 2.0, 1.0)))
    rows = np.concatenate([np.arange(20), np.arange(60)])
    repeated = once._replace(buffer=Buffer(R[rows], R[rows], Y[rows], np.ones(80)))
    ours, theirs = random_theta(case, 2, 3), random_theta(case, 2, 3)
    for _ in range(5):
        doubled.maximise(ours, doubled.expect(ours)[1])
        repeated.maximise(theirs, repeated.expect(theirs)[1])
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)
