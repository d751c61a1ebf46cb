import numpy as np
import pytest

from benchmarks.oracle_agreement import HOSTILE, STEPS, Case, model_at_start, run, stream
from tests.oracle.algorithm2 import Algorithm2, curvature_bound

EVENTS = 500
SOUND = [steps for steps in STEPS if steps != HOSTILE]
WIDTHS = [3, 11, pytest.param(31, marks=pytest.mark.slow)]


@pytest.mark.parametrize("steps", SOUND)
@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_iterates_of_the_plain_algorithm(K, p, bound, steps):
    case = Case(K, p, bound, steps)
    agreement = run(case, EVENTS, twins=3 if p > 11 else 1)
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_iterates_under_hostile_steps_with_a_prior(K, p, seed):
    case = Case(K, p, "paper" if seed % 2 else "tight", HOSTILE, prior=1.0, seed=seed)
    agreement = run(case, EVENTS, twins=3 if p > 11 else 1)
    assert agreement.finite
    assert agreement.smallest_mass >= 1e-3 / K
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize(("degree", "gate_degree"), [(2, 2), (2, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize(("steps", "prior"), [(SOUND[0], 0.0), (SOUND[1], 0.5), (HOSTILE, 1.0)])
def test_iterates_with_powers_of_the_inputs(steps, prior, degree, gate_degree):
    case = Case(3, 1 + 2 * degree, "tight", steps, prior=prior, degree=degree, gate_degree=gate_degree)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("prior", [0.0, 1.0])
@pytest.mark.parametrize(("bound", "other"), [("tight", "paper"), ("paper", "tight")])
def test_another_curvature_is_noticed(bound, other, prior):
    case = Case(4, 3, bound, HOSTILE if prior else SOUND[0], prior=prior)
    assert run(case, 100, twins=1, kernel_bound=other).difference > 1e-4


def test_another_prior_is_noticed():
    case = Case(3, 3, "tight", HOSTILE, prior=1.0)
    X, y = stream(case, 100)
    model = model_at_start(case, X, y)
    oracle = Algorithm2(model.parameters(), bound="tight", prior_strength=1.001)
    gammas = STEPS[HOSTILE].steps(2, 99)
    model.learn_array(X[1:], y[1:], feature_names=model.feature_names)
    for x, target, gamma in zip(X[1:], y[1:, None], gammas, strict=True):
        oracle.learn(np.append(1.0, x), np.append(1.0, x), target, gamma)
    assert np.abs(model.parameters()["experts"] - oracle.theta["experts"]).max() > 1e-6


class TestTheOracleItself:
    @pytest.mark.parametrize("bound", ["tight", "paper"])
    @pytest.mark.parametrize("K", [2, 3, 4, 8])
    def test_curvature_bounds_the_hessian_of_log_sum_exp(self, bound, K):
        rng = np.random.default_rng(K)
        A = curvature_bound(bound, K)
        for _ in range(300):
            g = rng.dirichlet(np.full(K, rng.choice([0.05, 0.3, 1.0])))[:-1]
            assert np.linalg.eigvalsh(A - (np.diag(g) - np.outer(g, g))).min() > -1e-12

    @pytest.mark.parametrize("bound", ["tight", "paper"])
    def test_parameters_minimise_the_surrogate(self, bound):
        case = Case(3, 3, bound, SOUND[0])
        X, y = stream(case, 200)
        oracle = Algorithm2(model_at_start(case, X, y).parameters(), bound=bound)
        for x, target in zip(X, y[:, None], strict=True):
            oracle.learn(np.append(1.0, x), np.append(1.0, x), target, 0.05)

        def surrogate(omega, upsilon, sigma2):
            gate = np.sum(oracle.s1 * omega) + omega.ravel() @ oracle.s2 @ omega.ravel()
            square = oracle.s3 + np.sum(oracle.s4 * upsilon, axis=2)
            square += np.einsum("kqi,kij,kqj->kq", upsilon, oracle.s5, upsilon)
            return gate + 0.5 * np.sum(oracle.s6[:, None] * np.log(sigma2) + square / sigma2)

        theta = [oracle.omega, oracle.upsilon, oracle.sigma2]
        least = surrogate(*theta)
        rng = np.random.default_rng(0)
        for _ in range(100):
            moved = [part * (1.0 + 1e-3 * rng.normal(size=part.shape)) for part in theta]
            assert surrogate(*moved) > least

    def test_statistics_of_a_start_give_its_parameters_back(self):
        case = Case(4, 3, "tight", SOUND[0])
        start = model_at_start(case, *stream(case, 400)).parameters()
        oracle = Algorithm2(start, bound="tight")
        oracle.minimise()
        for name, value in oracle.theta.items():
            np.testing.assert_allclose(value, start[name], rtol=1e-12, atol=1e-12, err_msg=name)
