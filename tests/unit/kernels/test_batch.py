import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from streammoe.engine.mm import curvature
from streammoe.experts.gaussian import unit_prior
from streammoe.kernels import batch


def rows(n, p, K, Q=1, seed=0):
    rng = np.random.default_rng(seed)
    R = np.column_stack([np.ones(n), rng.normal(size=(n, p - 1))])
    experts = 2.0 * rng.normal(size=(K, Q, p))
    logits = R @ (2.0 * rng.normal(size=(p, K)))
    chosen = (logits + rng.gumbel(size=(n, K))).argmax(axis=1)
    Y = np.einsum("nqj,nj->nq", experts[chosen], R) + 0.4 * rng.normal(size=(n, Q))
    return R, Y


def random_prior(strength, p, Q, seed=0):
    rng = np.random.default_rng(seed)
    return unit_prior(strength, p, p, Q)._replace(
        gate_gram=rng.uniform(0.5, 2.0, p),
        expert_gram=rng.uniform(0.5, 2.0, p),
        experts=rng.normal(size=(Q, p)),
        variances=rng.uniform(0.5, 2.0, Q),
    )


def bent(bound, K):
    """The dense A whose inverse the kernels apply as a (d + b Σd)."""
    a, b = curvature(bound, K)
    return np.linalg.inv(a * (np.eye(K - 1) + b * np.ones((K - 1, K - 1))))


@pytest.mark.parametrize("strength", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize(("K", "Q", "bound"), [(1, 1, "tight"), (2, 1, "tight"), (3, 2, "paper"), (5, 1, "tight")])
def test_em_never_lowers_the_penalised_likelihood(K, Q, bound, strength):
    p = 4
    R, Y = rows(300, p, K, Q, seed=K)
    prior = random_prior(strength, p, Q)
    rng = np.random.default_rng(1)
    for _ in range(3):
        gate = rng.normal(size=(K - 1, p))
        experts, variances = rng.normal(size=(K, Q, p)), rng.uniform(0.5, 3.0, (K, Q))
        climbed = [
            batch.run_em(gate, experts, variances, prior, curvature(bound, K), R, R, Y, 1, -np.inf) for _ in range(40)
        ]
        assert np.diff(climbed).min() > -1e-12
        assert climbed[-1] > climbed[0] + 0.1


def test_em_reports_the_penalised_likelihood_of_an_event():
    R, Y = rows(50, 3, 2)
    prior = random_prior(0.7, 3, 1)
    rng = np.random.default_rng(0)
    gate, experts, variances = rng.normal(size=(1, 3)), rng.normal(size=(2, 1, 3)), np.array([[0.5], [2.0]])
    log_g = log_softmax(np.column_stack([R @ gate[0], np.zeros(50)]), axis=1)
    log_e = -0.5 * (np.log(2 * np.pi * variances[:, 0]) + (Y - R @ experts[:, 0].T) ** 2 / variances[:, 0])
    expected = np.logaddexp.reduce(log_g + log_e, axis=1).sum()
    # The prior's 0.7 events, half of them at each expert, around its own target.
    apart = experts[:, 0] - prior.experts[0]
    square = prior.variances[0] + (prior.expert_gram * apart**2).sum(axis=1)
    expected -= 0.5 * 0.35 * (np.log(variances[:, 0]) + square / variances[:, 0]).sum()
    expected -= 0.5 * 0.7 * 0.25 * (prior.gate_gram * gate[0] ** 2).sum()
    found = batch.run_em(gate, experts, variances, prior, curvature("tight", 2), R, R, Y, 1, 0.0)
    assert found == pytest.approx(expected / 50, rel=1e-12)


def test_em_stops_when_it_gains_too_little():
    R, Y = rows(200, 3, 2)
    prior = random_prior(1.0, 3, 1)
    start = [np.full((1, 3), 0.1), np.random.default_rng(0).normal(size=(2, 1, 3)), np.ones((2, 1))]
    short, long = [a.copy() for a in start], [a.copy() for a in start]
    first = batch.run_em(*short, prior, (2.0, 1.0), R, R, Y, 10_000, 1e-2)
    last = batch.run_em(*long, prior, (2.0, 1.0), R, R, Y, 10_000, 1e-10)
    assert first < last
    again = [a.copy() for a in long]
    assert batch.run_em(*again, prior, (2.0, 1.0), R, R, Y, 5, 1e-10) == pytest.approx(last, abs=1e-8)


@pytest.mark.parametrize("strength", [0.0, 2.0])
def test_experts_are_weighted_least_squares_with_the_priors_rows(strength):
    K, Q, p = 3, 2, 4
    R, Y = rows(80, p, K, Q)
    tau = np.random.default_rng(0).dirichlet(np.ones(K), size=80)
    prior = random_prior(strength, p, Q)
    experts, variances = np.random.default_rng(1).normal(size=(K, Q, p)), np.ones((K, Q))
    batch.fit_experts(experts, variances, prior, tau, R, Y)
    share = strength / K
    for k in range(K):
        gram = (tau[:, k, None] * R).T @ R + share * np.diag(prior.expert_gram)
        for q in range(Q):
            pull = (tau[:, k] * Y[:, q]) @ R + share * prior.expert_gram * prior.experts[q]
            theta = np.linalg.solve(gram, pull)
            np.testing.assert_allclose(experts[k, q], theta, rtol=1e-10)
            total = tau[:, k] @ (Y[:, q] - R @ theta) ** 2
            total += share * (prior.variances[q] + prior.expert_gram @ (theta - prior.experts[q]) ** 2)
            assert variances[k, q] == pytest.approx(total / (tau[:, k].sum() + share), rel=1e-10)


@pytest.mark.parametrize("bound", ["tight", "paper"])
def test_gate_is_the_penalised_multinomial_regression(bound):
    K, p, n = 4, 3, 250
    R, _ = rows(n, p, K)
    tau = np.random.default_rng(2).dirichlet(np.full(K, 0.4), size=n)
    prior = random_prior(1.5, p, 1)
    A = bent(bound, K)

    def loss(flat):
        gate = flat.reshape(K - 1, p)
        log_g = log_softmax(np.column_stack([R @ gate.T, np.zeros(n)]), axis=1)
        return -np.sum(tau * log_g) + 0.5 * 1.5 * np.einsum("kj,km,mj,j->", gate, A, gate, prior.gate_gram)

    best = minimize(loss, np.zeros((K - 1) * p), method="BFGS", options={"gtol": 1e-7})
    gate = np.zeros((K - 1, p))
    batch.fit_gate(gate, prior, curvature(bound, K), tau, R, 60)
    assert loss(gate.ravel()) <= best.fun + 1e-9
    np.testing.assert_allclose(gate.ravel(), best.x, atol=1e-4)


@pytest.mark.parametrize(("K", "p"), [(3, 4), (4, 102)])
def test_a_gate_step_never_lowers_the_objective_from_any_start(K, p):
    assert ((K - 1) * p > batch.NEWTON_LIMIT) == (p == 102)
    R, _ = rows(200, p, K)
    tau = np.random.default_rng(3).dirichlet(np.full(K, 0.2), size=200)
    prior = random_prior(0.1, p, 1)
    bend = curvature("tight", K)
    for size in (0.0, 1.0, 30.0):
        gate = size * np.random.default_rng(4).normal(size=(K - 1, p))
        values = []
        for _ in range(8):
            values.append(batch.gate_objective(gate, prior, bend, tau, R))
            batch.fit_gate(gate, prior, bend, tau, R, 1)
        assert np.diff(values).min() >= 0.0
        assert values[-1] > values[0]


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


@pytest.mark.parametrize("strength", [0.0, 3.0])
@pytest.mark.parametrize(("K", "bound"), [(1, "tight"), (3, "tight"), (3, "paper")])
def test_statistics_are_the_averages_at_these_parameters(K, bound, strength):
    """As the literal algorithm forms and solves them, with the prior as `strength` more events."""
    n, p = 120, 3
    R, Y = rows(n, p, K)
    prior = random_prior(strength, p, 1)
    rng = np.random.default_rng(5)
    gate, experts, variances = rng.normal(size=(K - 1, p)), rng.normal(size=(K, 1, p)), rng.uniform(1, 2, (K, 1))
    log_g = log_softmax(np.column_stack([R @ gate.T, np.zeros(n)]), axis=1)
    joint = log_g - 0.5 * (np.log(variances[:, 0]) + (Y - R @ experts[:, 0].T) ** 2 / variances[:, 0])
    tau = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])
    total = n + strength
    G = (R.T @ R + strength * np.diag(prior.gate_gram)) / total
    masses = (tau.sum(axis=0) + strength / K) / total
    grams = [((tau[:, k, None] * R).T @ R + strength / K * np.diag(prior.expert_gram)) / total for k in range(K)]
    if K > 1:
        A = bent(bound, K)
        s1 = ((np.exp(log_g) - tau)[:, :-1].T @ R - A @ gate @ R.T @ R) / total
        expected_gate = -np.linalg.solve(np.kron(A, G), s1.ravel()).reshape(K - 1, p)
    found = [np.empty(K), np.empty((p, p)), np.empty((K, p, p))]
    batch.collect_statistics(gate, experts, variances, prior, curvature(bound, K), R, R, Y, *found)
    np.testing.assert_allclose(found[0], masses, rtol=1e-10)
    np.testing.assert_allclose(found[1], G, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found[2], grams, rtol=1e-10, atol=1e-14)
    if K > 1:
        np.testing.assert_allclose(gate, expected_gate, rtol=1e-9)
