"""The properties that the derivation of the literal algorithms promises, before anything is held to them."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, multivariate_t

from streammoe.testing.literal import ALGORITHMS, curvature_bound, curvature_weight, log_softmax
from tests.oracle.agreement import FAMILIES, STEPS, Case, oracle, powers, start_of, start_with_prior, stream

SOUND = next(iter(STEPS))
BOUNDS = ["tight", "paper", "adaptive"]
CASES = [
    pytest.param(Case(3, 3, BOUNDS[at % 3], SOUND, weighted=True, **family), id=f"{name}, {BOUNDS[at % 3]}")
    for at, (name, family) in enumerate(FAMILIES.items())
]
cases = pytest.mark.parametrize("case", CASES)


def complete(start):
    """With what an estimator fills in: a prior that weighs nothing."""
    p_w, (_, rows, p_v) = start["gate"].shape[1], start["experts"].shape
    prior = {"gate_gram": np.ones(p_w), "expert_gram": np.ones(p_v), "experts": np.zeros((rows, p_v))}
    if "variances" in start:
        prior["variances"] = np.ones(rows)
    return {"decay": 1.0, "prior_weight": 0.0, "prior": prior} | start


def begun(case, count):
    """A literal algorithm at a random start, and events as it takes them: (w, r, y), and their weights."""
    events = stream(case, count)
    Y = events.y if case.classes else events.y.reshape(count, case.outputs)
    rows = zip(powers(events.X, case.gate_degree), powers(events.X, case.degree), Y, strict=True)
    return oracle(case, complete(start_of(case, events))), list(rows), events.weights


# --- curvature ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_majorizes_log_sum_exp_everywhere(bound):
    rng = np.random.default_rng(0)
    for N in (1, 2, 4, 7):
        A = curvature_bound(bound, N)
        for _ in range(1500):
            logits = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 1.5), 0.0)
            rng.shuffle(logits)
            logits -= logits[-1]
            move = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 2), 0.0)
            quadratic = 0.5 * curvature_weight(bound, logits) * (move[:-1] @ A @ move[:-1])
            above = np.logaddexp.reduce(logits) + np.exp(log_softmax(logits)) @ move + quadratic
            below = np.logaddexp.reduce(logits + move)
            assert below <= above + 1e-12 * max(abs(below), quadratic, 1.0), N


def test_the_adaptive_bound_is_as_low_as_it_can_be():
    """For two classes it touches again at the mirrored logit; without a majority it is the tight one."""
    for xi in (0.1, 1.0, 7.0):
        quadratic = 0.5 * curvature_weight("adaptive", np.array([xi, 0.0])) * 0.25 * (2.0 * xi) ** 2
        slope = np.exp(log_softmax(np.array([xi, 0.0])))[0]
        above = np.logaddexp(xi, 0.0) - 2.0 * xi * slope + quadratic
        assert above == pytest.approx(np.logaddexp(-xi, 0.0), rel=1e-12)
    assert curvature_weight("adaptive", np.array([0.3, 0.1, 0.0])) == 1.0
    assert curvature_weight("tight", np.array([0.0, 9.0])) == curvature_weight("paper", np.array([0.0, 9.0])) == 1.0
    with pytest.raises(ValueError):
        curvature_bound("loose", 2)


# --- the surrogate --------------------------------------------------------------------------------------------------


@cases
def test_parameters_minimise_the_surrogate(case):
    algorithm, events, weights = begun(case, 200)
    start = algorithm.theta
    algorithm.minimise()  # the statistics of a start give its parameters back
    for name, value in algorithm.theta.items():
        np.testing.assert_allclose(value, start[name], rtol=1e-11, atol=1e-11, err_msg=name)
    for event, weight in zip(events, weights, strict=True):
        algorithm.learn(*event, 0.05, weight)
    s = algorithm.s

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

    theta = [algorithm.omega, *([algorithm.C] if case.classes else [algorithm.upsilon, algorithm.sigma2])]
    least = surrogate(*theta)
    rng = np.random.default_rng(0)
    for _ in range(100):
        noise = [1.0 + 1e-3 * rng.normal(size=part.shape) for part in theta]
        if case.covariance == "full":
            noise[2] = (noise[2] + noise[2].transpose(0, 2, 1)) / 2.0
        assert surrogate(*(part * by for part, by in zip(theta, noise, strict=True))) > least


@cases
def test_rounds_over_all_events_never_raise_the_loss(case):
    """Of sparse rounds: the loss that the likeliest experts leave."""
    algorithm, events, weights = begun(case, 80)
    algorithm.top_k = top_k = None if case.bound == "paper" else 2

    def loss():
        kept = [np.sort(algorithm.log_joint(*event))[-(top_k or case.K) :] for event in events]
        return -np.dot(weights, [np.logaddexp.reduce(part) for part in kept])

    losses = [loss()]
    for _ in range(12):
        algorithm.learn_group(events, 1.0 - 1e-12, weights)
        losses.append(loss())
    assert all(later <= earlier + 1e-9 * abs(earlier) for earlier, later in pairwise(losses))
    assert losses[-1] < losses[0] - 1.0


def test_which_class_is_the_reference_does_not_matter():
    case = Case(2, 3, "adaptive", SOUND, classes=4)
    algorithm, events, _ = begun(case, 100)
    order = np.array([2, 0, 3, 1])  # the class that stands first now, second, …

    def turn(C):
        every = np.concatenate([np.zeros((len(C), 1, C.shape[2])), C], axis=1)[:, order]
        return every[:, 1:] - every[:, :1]

    start = complete(start_of(case, stream(case, 100)))
    turned = oracle(case, start | {"experts": turn(start["experts"])})
    for w, r, y in events:
        algorithm.learn(w, r, y, 0.1)
        turned.learn(w, r, int(np.flatnonzero(order == y)[0]), 0.1)
    np.testing.assert_allclose(turned.C, turn(algorithm.C), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(turned.omega, algorithm.omega, rtol=1e-9, atol=1e-11)


# --- heavy tails ----------------------------------------------------------------------------------------------------


def at(expert, upsilon, sigma2):
    """The literal algorithm with a single expert at these parameters."""
    Q, p = upsilon.shape
    case = Case(1, p, "tight", SOUND, prior=1.0, expert=expert, outputs=Q)
    return ALGORITHMS[expert](start_with_prior(case) | {"experts": upsilon[None], "variances": sigma2[None]})


@pytest.mark.parametrize(("expert", "Q"), [("student_t", 1), ("student_t", 3), ("laplace", 1)])
def test_the_surrogate_of_an_event_with_heavy_tails_touches_its_loss_and_lies_above_it(expert, Q):
    rng = np.random.default_rng(Q)
    for _ in range(50):
        r = rng.normal(size=4)
        upsilon, sigma2 = rng.normal(size=(Q, 4)), 10.0 ** rng.uniform(-2, 2, size=Q)
        # From inside the tip of a Laplace expert to far out.
        y = upsilon @ r + np.sqrt(sigma2) * rng.normal(size=Q) * 10.0 ** rng.uniform(-3, 3)
        here = at(expert, upsilon, sigma2)
        s = {name: value[0] for name, value in here.expert_statistics(r, y, np.ones(1)).items()}

        def surrogate(upsilon, sigma2, s=s):
            squares = s["s3"] + np.sum(s["s4"] * upsilon, axis=1) + np.einsum("qi,ij,qj->q", upsilon, s["s5"], upsilon)
            return 0.5 * (s["s6"] * np.sum(np.log(sigma2)) + np.sum(squares / sigma2))

        level = -here.log_experts(r, y)[0] - surrogate(upsilon, sigma2)
        for size in 10.0 ** rng.uniform(-4, 1.5, size=20):
            moved = upsilon + size * rng.normal(size=upsilon.shape), sigma2 * np.exp(size * rng.normal(size=Q))
            loss, above = -at(expert, *moved).log_experts(r, y)[0], surrogate(*moved) + level
            assert loss <= above + 1e-9 * max(abs(loss), abs(above), abs(level), 1.0)


def test_densities_are_those_of_scipy():
    """Area 1, and for several outputs the one of SciPy."""
    for expert in ("student_t", "laplace"):
        one = at(expert, np.array([[0.3]]), np.array([0.7]))

        def density(y, one=one):
            return np.exp(one.log_experts(np.ones(1), np.array([y]))[0])

        parts = [(0, 0.09), (0.09, 5), (5, 4000)]
        area = 2.0 * sum(quad(density, 0.3 + begin, 0.3 + end, limit=200)[0] for begin, end in parts)
        assert area == pytest.approx(1.0, abs=1e-6)
    upsilon, sigma2 = np.array([[0.3], [-1.0], [2.0]]), np.array([0.5, 2.0, 1.3])
    mean = upsilon[:, 0]
    for y in np.random.default_rng(0).normal(size=(20, 3)) * 5.0:
        for expert, reference in (
            ("student_t", multivariate_t(mean, np.diag(sigma2), df=4.0)),
            ("gaussian", multivariate_normal(mean, np.diag(sigma2))),
        ):
            found = at(expert, upsilon, sigma2).log_experts(np.ones(1), y)[0]
            assert found == pytest.approx(reference.logpdf(y), rel=1e-12)
