"""The literal algorithms themselves: the properties that their derivation promises, before anything is held to them."""

from itertools import pairwise

import numpy as np
import pytest

from benchmarks.oracle_agreement import (
    FAMILIES,
    HOSTILE,
    STEPS,
    Case,
    estimator,
    oracle,
    powers,
    run,
    start_of,
    stream,
)
from tests.oracle.algorithm1 import curvature_bound, curvature_weight, log_softmax
from tests.oracle.recursion import Recursion

SOUND = next(steps for steps in STEPS if steps != HOSTILE)
EVERY_FAMILY = [{}, {"covariance": "full"}, *FAMILIES]
BOUNDS = ["tight", "paper", "adaptive"]
families = pytest.mark.parametrize(
    "family", EVERY_FAMILY, ids=lambda family: " ".join(map(str, family.values())) or "-"
)
bounds = pytest.mark.parametrize("bound", BOUNDS)


def complete(start):
    """With what an estimator fills in: a prior that weighs nothing."""
    p_w, (_, rows, p_v) = start["gate"].shape[1], start["experts"].shape
    prior = {"gate_gram": np.ones(p_w), "expert_gram": np.ones(p_v), "experts": np.zeros((rows, p_v))}
    if "variances" in start:
        prior["variances"] = np.ones(rows)
    return {"decay": 1.0, "prior_weight": 0.0, "prior": prior} | start


def oracle_and_events(case, count):
    """A literal algorithm at a random start, and events as it takes them: (w, r, y), and their weights."""
    events = stream(case, count)
    Y = events.y if case.classes else events.y.reshape(count, case.outputs)
    rows = zip(powers(events.X, case.gate_degree), powers(events.X, case.degree), Y, strict=True)
    return oracle(case, complete(start_of(case, events))), list(rows), events.weights


def loss(algorithm, events, weights):
    return -sum(v * np.logaddexp.reduce(algorithm.log_joint(*event)) for event, v in zip(events, weights, strict=True))


class PlainModel:
    """The recursion of tests/oracle/recursion.py with the three methods of an estimator that `run` needs."""

    def __init__(self, case, start, bound):
        self.case = case
        self.steps = STEPS[case.steps]
        self.recursion = Recursion(complete(start), bound=bound, prior_strength=case.prior, expert=case.expert)

    def learn_array(self, X, y, *, weights=None, feature_names=None):
        case = self.case
        Y = y if case.classes else y.reshape(len(y), case.outputs)
        weights = np.ones(len(X)) if weights is None else weights
        gammas = self.steps.steps(self.recursion.n + 1, len(X))
        rows = zip(powers(X, case.gate_degree), powers(X, case.degree), Y, gammas, weights, strict=True)
        return np.array([self.recursion.learn(*row) for row in rows])

    def parameters(self):
        return self.recursion.parameters()

    def is_finite(self):
        return all(np.isfinite(value).all() for name, value in self.parameters().items() if name != "prior")


class TestCurvature:
    @pytest.mark.parametrize("bound", ["tight", "paper"])
    @pytest.mark.parametrize("N", [1, 2, 3, 4, 7])
    def test_constant_bounds_are_above_every_hessian_of_log_sum_exp(self, bound, N):
        rng = np.random.default_rng(N)
        A = curvature_bound(bound, N)
        for _ in range(300):
            g = rng.dirichlet(np.full(N + 1, rng.choice([0.05, 0.3, 1.0])))[:-1]
            assert np.linalg.eigvalsh(A - (np.diag(g) - np.outer(g, g))).min() > -1e-12

    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("N", [1, 2, 3, 4, 7])
    def test_every_bound_majorizes_log_sum_exp(self, bound, N):
        rng = np.random.default_rng(N)
        A = curvature_bound(bound, N)
        for _ in range(2000):
            logits = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 1.5), 0.0)
            rng.shuffle(logits)
            logits -= logits[-1]
            move = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 2), 0.0)
            quadratic = 0.5 * curvature_weight(bound, logits) * (move[:-1] @ A @ move[:-1])
            above = np.logaddexp.reduce(logits) + np.exp(log_softmax(logits)) @ move + quadratic
            below = np.logaddexp.reduce(logits + move)
            assert below <= above + 1e-12 * max(abs(below), quadratic, 1.0)

    @pytest.mark.parametrize("xi", [0.1, 1.0, 7.0])
    def test_for_two_classes_the_adaptive_bound_touches_again_at_the_mirrored_logit(self, xi):
        a = curvature_weight("adaptive", np.array([xi, 0.0]))
        move = np.array([-2.0 * xi, 0.0])
        quadratic = 0.5 * a * 0.25 * move[0] ** 2
        above = np.logaddexp(xi, 0.0) + np.exp(log_softmax(np.array([xi, 0.0]))) @ move + quadratic
        assert above == pytest.approx(np.logaddexp(-xi, 0.0), rel=1e-12)

    def test_the_adaptive_weight_is_1_without_a_majority_and_falls_with_certainty(self):
        assert curvature_weight("adaptive", np.array([0.0, 0.0])) == 1.0
        assert curvature_weight("adaptive", np.array([0.3, 0.1, 0.0])) == 1.0
        certain = [curvature_weight("adaptive", np.array([0.0, xi, -1.0])) for xi in (1.0, 2.0, 5.0, 50.0, 800.0)]
        assert all(later < earlier < 1.0 for earlier, later in pairwise(certain))
        # ξ → log-odds, and tanh → 1.
        assert certain[-1] == pytest.approx(2.0 / (800.0 - np.logaddexp(0.0, -1.0)))
        assert curvature_weight("tight", np.array([0.0, 9.0])) == curvature_weight("paper", np.array([0.0, 9.0])) == 1.0

    def test_a_bound_by_another_name_is_refused(self):
        with pytest.raises(ValueError, match="loose"):
            curvature_bound("loose", 2)


@families
@bounds
class TestSurrogate:
    @pytest.mark.sampled(one_in=4)
    def test_parameters_minimise_it(self, family, bound):
        case = Case(3, 3, bound, SOUND, weighted=True, **family)
        algorithm, events, weights = oracle_and_events(case, 200)
        for event, weight in zip(events, weights, strict=True):
            algorithm.learn(*event, 0.05, weight)
        s = algorithm.s

        def gate(omega):
            return np.sum(s["s1"] * omega) + omega.ravel() @ s["s2"] @ omega.ravel()

        def classes(C):
            flat = C.reshape(len(C), -1)
            return np.sum(s["s3"] * C) + np.einsum("ki,kij,kj->", flat, s["s4"], flat)

        def gaussian(upsilon, sigma2):
            total = 0.0
            for k in range(len(upsilon)):
                covariance = sigma2[k] if sigma2.ndim == 3 else np.diag(sigma2[k])
                begun = s["s3"][k] if sigma2.ndim == 3 else np.diag(s["s3"][k])
                cross = s["s4"][k] @ upsilon[k].T
                square = begun + 0.5 * (cross + cross.T) + upsilon[k] @ s["s5"][k] @ upsilon[k].T
                total += s["s6"][k] * np.linalg.slogdet(covariance)[1] + np.trace(np.linalg.solve(covariance, square))
            return 0.5 * total

        if case.classes:
            theta, surrogate = [algorithm.omega, algorithm.C], lambda omega, C: gate(omega) + classes(C)
        else:
            theta = [algorithm.omega, algorithm.upsilon, algorithm.sigma2]
            surrogate = lambda omega, *expert: gate(omega) + gaussian(*expert)  # noqa: E731 - one of two formulas
        least = surrogate(*theta)
        rng = np.random.default_rng(0)
        for _ in range(100):
            noise = [1.0 + 1e-3 * rng.normal(size=part.shape) for part in theta]
            if case.covariance == "full" and not case.classes:
                noise[2] = (noise[2] + noise[2].transpose(0, 2, 1)) / 2.0
            assert surrogate(*(part * by for part, by in zip(theta, noise, strict=True))) > least

    def test_statistics_of_a_start_give_its_parameters_back(self, family, bound):
        case = Case(4, 3, bound, SOUND, **family)
        algorithm, _, _ = oracle_and_events(case, 400)
        start = start_of(case, stream(case, 400))
        algorithm.minimise()
        for name, value in algorithm.theta.items():
            np.testing.assert_allclose(value, start[name], rtol=1e-12, atol=1e-12, err_msg=name)

    @pytest.mark.sampled(one_in=4)
    def test_rounds_over_all_events_never_raise_the_loss(self, family, bound):
        case = Case(3, 3, bound, SOUND, weighted=True, **family)
        algorithm, events, weights = oracle_and_events(case, 80)
        losses = [loss(algorithm, events, weights)]
        for _ in range(15):
            algorithm.learn_group(events, 1.0 - 1e-12, weights)
            losses.append(loss(algorithm, events, weights))
        assert all(later <= earlier + 1e-9 * abs(earlier) for earlier, later in pairwise(losses))
        assert losses[-1] < losses[0] - 1.0


@families
@pytest.mark.parametrize("top_k", [1, 2])
def test_sparse_rounds_never_raise_the_loss_that_the_likeliest_experts_leave(family, top_k):
    case = Case(3, 3, "adaptive", SOUND, weighted=True, **family)
    algorithm, events, weights = oracle_and_events(case, 80)
    algorithm.top_k = top_k

    def bound():
        kept = [np.sort(algorithm.log_joint(*event))[-top_k:] for event in events]
        return -np.dot(weights, [np.logaddexp.reduce(part) for part in kept])

    losses = [bound()]
    for _ in range(15):
        algorithm.learn_group(events, 1.0 - 1e-12, weights)
        losses.append(bound())
    assert all(later <= earlier + 1e-9 * abs(earlier) for earlier, later in pairwise(losses))
    assert losses[-1] < losses[0] - 1.0


@families
def test_two_halves_of_a_group_average_to_the_whole(family):
    case = Case(3, 3, "adaptive", SOUND, weighted=True, **family)
    whole, events, weights = oracle_and_events(case, 60)
    first, second = (oracle_and_events(case, 60)[0] for _ in range(2))
    whole.learn_group(events, 0.3, weights)
    first.learn_group(events[:20], 0.3, weights[:20])
    second.learn_group(events[20:], 0.3, weights[20:])
    for name, s in first.s.items():
        first.s[name] = (20 * s + 40 * second.s[name]) / 60
    first.minimise()
    for name, value in whole.theta.items():
        np.testing.assert_allclose(first.theta[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@families
def test_weight_2_is_two_events_in_a_group(family):
    case = Case(2, 3, "tight", SOUND, **family)
    heavy, events, _ = oracle_and_events(case, 60)
    pair = oracle_and_events(case, 60)[0]
    for event in events:
        heavy.learn(*event, 0.1, 2.0)
        # The mean over a group halves it, and twice the mean of two equal events is their sum.
        pair.learn_group([event, event], 0.1, [2.0, 2.0])
    for name, value in heavy.theta.items():
        np.testing.assert_allclose(pair.theta[name], value, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("bound", ["tight", "adaptive"])
def test_which_class_is_the_reference_does_not_matter(bound):
    case = Case(2, 3, bound, SOUND, classes=4)
    algorithm, events, _ = oracle_and_events(case, 100)
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


class TestRecursion:
    """The recursions of the documentation give the iterates of the literal algorithms."""

    @families
    @bounds
    @pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
    @pytest.mark.sampled(one_in=4)
    def test_it_gives_the_iterates_of_the_literal_algorithm(self, weighted, bound, family):
        case = Case(3, 3, bound, SOUND, weighted=weighted, **family)
        agreement = run(case, 100, twins=1, make=PlainModel)
        assert agreement.decides
        assert agreement.finite
        assert agreement.difference <= agreement.target(case), agreement

    @families
    @bounds
    @pytest.mark.parametrize("K", [1, 4])
    @pytest.mark.sampled(one_in=4)
    def test_also_under_hostile_steps_with_a_prior(self, K, bound, family):
        case = Case(K, 3, bound, HOSTILE, prior=1.0, weighted=True, **family)
        agreement = run(case, 100, twins=1, make=PlainModel)
        assert agreement.decides
        assert agreement.finite
        assert agreement.difference <= agreement.target(case), agreement

    @families
    @pytest.mark.parametrize(("bound", "other"), [("tight", "paper"), ("adaptive", "tight"), ("paper", "adaptive")])
    @pytest.mark.sampled(one_in=4)
    def test_another_bound_is_noticed(self, bound, other, family):
        case = Case(4, 3, bound, SOUND, **family)
        assert run(case, 60, twins=1, kernel_bound=other, make=PlainModel).difference > 1e-4

    def test_a_start_stands_for_the_estimator_of_one_output_too(self):
        case = Case(3, 3, "paper", SOUND)
        events = stream(case, 200)
        model, plain = (make(case, start_of(case, events), case.bound) for make in (estimator, PlainModel))
        for each in (model, plain):
            each.learn_array(events.X, events.y, feature_names=model.feature_names)
        for name in ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams"):
            np.testing.assert_allclose(model.parameters()[name], plain.parameters()[name], rtol=1e-9, atol=1e-11)
