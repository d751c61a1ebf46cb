"""The properties that the derivation of the literal algorithms promises, before anything is held to them."""

import numpy as np
import pytest

from tests.oracle.agreement import FAMILIES, STEPS, Case, oracle, powers, start_of, stream
from tests.oracle.literal import curvature_bound, curvature_weight, log_softmax

SOUND = next(iter(STEPS))
BOUNDS = ["tight", "paper", "adaptive"]
# --- curvature ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_majorizes_log_sum_exp_everywhere(bound):
    rng = np.random.default_rng(0)
    for N in (1, 2, 4, 7):
        A = curvature_bound(bound, N)
        for _ in range(400):
            logits = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 1.5), 0.0)
            rng.shuffle(logits)
            logits -= logits[-1]
            move = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 2), 0.0)
            quadratic = 0.5 * curvature_weight(bound, logits) * (move[:-1] @ A @ move[:-1])
            above = np.logaddexp.reduce(logits) + np.exp(log_softmax(logits)) @ move + quadratic
            below = np.logaddexp.reduce(logits + move)
            assert below <= above + 1e-12 * max(abs(below), quadratic, 1.0), N


def test_the_sharp_curvature_is_the_local_one_unless_that_is_far_below_the_bound():
    for xi in (0.0, 0.5, 2.0, 4.0, 30.0):
        adaptive, local = curvature_weight("adaptive", np.array([xi, 0.0])), 1.0 / np.cosh(xi / 2.0) ** 2
        sharp = curvature_weight("sharp", np.array([xi, 0.0]))
        assert sharp == pytest.approx(max(local, 0.1 * adaptive), rel=1e-12)
        assert sharp <= adaptive + 1e-15
    assert curvature_weight("sharp", np.array([0.3, 0.1, 0.0])) == 1.0


def test_the_adaptive_bound_is_as_low_as_it_can_be():
    """For two classes it touches again at the mirrored logit; without a majority it is the tight one."""
    for xi in (0.1, 1.0, 7.0):
        quadratic = 0.5 * curvature_weight("adaptive", np.array([xi, 0.0])) * 0.25 * (2.0 * xi) ** 2
        slope = np.exp(log_softmax(np.array([xi, 0.0])))[0]
        above = np.logaddexp(xi, 0.0) - 2.0 * xi * slope + quadratic
        assert above == pytest.approx(np.logaddexp(-xi, 0.0), rel=1e-12)
    assert curvature_weight("adaptive", np.array([0.3, 0.1, 0.0])) == 1.0
    assert curvature_weight("tight", np.array([0.0, 9.0])) == curvature_weight("paper", np.array([0.0, 9.0])) == 1.0


# --- the surrogate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gaussian 3", "full 3", "student_t 3", "laplace", "2 classes", "5 classes"])
@pytest.mark.parametrize("bound", ["tight", "adaptive"])
def test_parameters_minimise_the_surrogate(family, bound):
    case = Case(3, 3, bound, SOUND, prior=1.0, weighted=True, **FAMILIES[family])
    events = stream(case, 60)
    algorithm = oracle(case, start_of(case, events))
    start = algorithm.theta
    algorithm.mm.replace_statistics(algorithm.mm.statistics)  # the statistics of a start give its parameters back
    for name, value in algorithm.theta.items():
        np.testing.assert_allclose(value, start[name], rtol=1e-11, atol=1e-11, err_msg=name)
    Y = events.y if case.classes else events.y.reshape(60, case.outputs)
    for r, y, weight in zip(powers(events.X, 1), Y, events.weights, strict=True):
        algorithm.learn(r, r, y, 0.05, weight)
    s = algorithm.mm.statistics

    def gate(omega):
        return np.sum(s["s1"] * omega) + omega.ravel() @ s["s2"] @ omega.ravel()

    def classes(C):
        flat = C.reshape(len(C), -1)
        return np.sum(s["s3"] * C) + np.einsum("ki,kij,kj->", flat, s["s4"], flat)

    def linear(upsilon, sigma2):
        total = 0.0
        for k in range(len(upsilon)):
            covariance = sigma2[k] if sigma2.ndim == 3 else np.diag(sigma2[k])
            start = s["s3"][k] if sigma2.ndim == 3 else np.diag(s["s3"][k])
            cross = s["s4"][k] @ upsilon[k].T
            square = start + 0.5 * (cross + cross.T) + upsilon[k] @ s["s5"][k] @ upsilon[k].T
            total += s["s6"][k] * np.linalg.slogdet(covariance)[1] + np.trace(np.linalg.solve(covariance, square))
        return 0.5 * total

    def surrogate(omega, *experts):
        return gate(omega) + (classes if case.classes else linear)(*experts)

    theta = [algorithm.mm.last_iterate[name] for name in ("gate", "experts", "variances")[: 2 if case.classes else 3]]
    least = surrogate(*theta)
    rng = np.random.default_rng(0)
    for _ in range(50):
        noise = [1.0 + 1e-3 * rng.normal(size=part.shape) for part in theta]
        if case.covariance == "full":
            noise[2] = (noise[2] + noise[2].transpose(0, 2, 1)) / 2.0
        assert surrogate(*(part * by for part, by in zip(theta, noise, strict=True))) > least
