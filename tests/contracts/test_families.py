"""Every family of experts fulfils the contract of `streammoe.experts.Family`."""

import math
from itertools import count

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian
from streammoe.experts import families, family_of
from tests.contracts.families import FamilyContract
from tests.oracle.literal import ALGORITHMS, Algorithm2


@pytest.fixture(scope="module", autouse=True)
def brief_fits():
    """Let warm-ups end with few starts and rounds: the contract does not ask how good a fit is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streammoe.engine.warmup.WORK_LIMIT", 0.0)
        yield


GATE = np.array([[6.0, 0.0, 0.0], [-3.0, 5.0, 0.0], [-3.0, -5.0, 0.0]])
EXPERTS = np.random.default_rng(0).normal(scale=2.0, size=(3, 5, 4))


def inputs_and_values(n, seed):
    """Inputs, and what three experts under a steep gate say of them: (n, 5)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    chosen = (X @ GATE.T + rng.gumbel(size=(n, 3))).argmax(axis=1)
    return X, np.einsum("nqp,np->nq", EXPERTS[chosen], np.column_stack([np.ones(n), X])), rng


ARGUMENTS = {
    "gaussian_full": {"expert": Gaussian("full")},
    "student_t": {"expert": "student_t"},
    "laplace": {"expert": "laplace"},
}
"""Of the families that are no estimator's default."""


class Ours(FamilyContract):
    kind = MoERegressor

    @property
    def arguments(self):
        return ARGUMENTS.get(self.family.name, {})

    def make_model(self, bound, seed, **arguments):
        return self.kind(3, bound=bound, seed=seed, standardize=False, **self.arguments, **arguments)

    def from_parameters(self, parameters, feature_names, **arguments):
        return self.kind.from_parameters(parameters, feature_names=feature_names, **self.arguments, **arguments)

    def make_reference(self, parameters, bound, prior_strength, top_k=None):
        return ALGORITHMS[self.family.name](parameters, bound=bound, prior_strength=prior_strength, top_k=top_k)

    def step_reference(self, reference, events, gammas, weights):
        return reference.learn_batch(events, gammas, weights)

    def make_events(self, n, seed, n_targets=1):
        X, values, rng = inputs_and_values(n, seed)
        noise = 0.3 * rng.normal(size=(n, 1)) + 0.3 * rng.normal(size=(n, n_targets))
        rare, far = (0.02, 30.0) if self.family.name.startswith("gaussian") else (0.1, 30.0)
        noise *= np.where(rng.random((n, 1)) < rare, far, 1.0)
        Y = values[:, :n_targets] + noise
        return X, Y if n_targets > 1 else Y[:, 0]


@pytest.mark.slow
class TestGaussian(Ours):
    family = families()["gaussian"]


class TestGaussianWithoutTails(Ours):
    family = family_of(Gaussian(tail=math.inf))
    bounds = ("adaptive",)

    @property
    def arguments(self):
        return {"expert": self.family.noise}

    def make_reference(self, parameters, bound, prior_strength, top_k=None):
        return Algorithm2(parameters, bound=bound, prior_strength=prior_strength, top_k=top_k)


@pytest.mark.slow
class TestGaussianFullWithoutTails(TestGaussianWithoutTails):
    family = family_of(Gaussian("full", tail=math.inf))
    kind = MoEMultiTargetRegressor

    def make_events(self, n, seed):
        return super().make_events(n, seed, n_targets=3)


@pytest.mark.slow
class TestLaplace(Ours):
    family = families()["laplace"]
    bounds = ("adaptive",)
    """Those of the gate are TestGaussian's matter."""


@pytest.mark.slow
class TestGaussianFull(Ours):
    family = families()["gaussian_full"]
    kind = MoEMultiTargetRegressor
    bounds = ("adaptive",)

    def make_events(self, n, seed):
        return super().make_events(n, seed, n_targets=3)


@pytest.mark.slow
class TestStudentT(TestGaussianFull):
    family = families()["student_t"]


@pytest.mark.slow
class TestCategorical(Ours):
    family = families()["categorical"]
    kind = MoEClassifier
    bounds = ("adaptive", "paper")
    labels = ("c0", "c1", "c2", "c3")

    def make_events(self, n, seed):
        M = len(self.labels)
        X, values, rng = inputs_and_values(n, seed)
        index = (2.0 * values[:, :M] + rng.gumbel(size=(n, M))).argmax(axis=1)
        index[:M] = np.arange(M)  # labels count in the order in which they are met
        return X, np.array(self.labels)[index]

    def encode_targets(self, y):
        return np.array([[float(self.labels.index(label))] for label in y])

    def n_outputs(self, y):
        return len(self.labels)

    def from_parameters(self, parameters, feature_names, **arguments):
        return super().from_parameters(parameters, feature_names, classes=self.labels, **arguments)

    def invalid_targets(self, y, row):
        for bad in (float("nan"), float("inf"), ("a", "pair"), b"bytes"):
            poisoned = y.astype(object)
            poisoned[row] = bad
            yield poisoned

    def step_reference(self, reference, events, gammas, weights):
        return super().step_reference(reference, [(w, r, int(y[0])) for w, r, y in events], gammas, weights)


def test_every_family_is_held_to_the_contract():
    suites = [TestGaussian, TestGaussianFull, TestStudentT, TestLaplace, TestCategorical]
    assert {suite.family.name: suite.family for suite in suites} == families()


class SloppyRegressor(MoERegressor):
    """Its results depend on how it is fed, on what it rejected, and on nothing that an event weighs."""

    def learn_array(self, X, y, *, w=None, feature_names=None):
        if self.learner.state is not None:
            self.learner.state.gate[0, 0] *= 1.0 + 1e-15
        return super().learn_array(np.nan_to_num(X), y, feature_names=feature_names)

    def predict_array(self, X, *, feature_names=None):
        if self.learner.state is not None:
            self.learner.state.n_average[0] += 1
        return super().predict_array(X, feature_names=feature_names)


class Sloppy(TestGaussian):
    __test__ = False
    kind = SloppyRegressor
    ticks = count()

    def make_model(self, bound, seed, **arguments):
        return super().make_model(bound, seed + next(self.ticks), **arguments)


class WithAnotherReference(TestGaussian):
    __test__ = False

    def make_reference(self, parameters, bound, prior_strength, top_k=None):
        return super().make_reference(parameters, "paper" if bound == "tight" else "tight", prior_strength)

    def step_reference(self, reference, events, gammas, weights):
        return super().step_reference(reference, events, gammas, [1.0] * len(events))


class Overshooting(type(families()["gaussian"])):
    def fit_experts(self, theta, prior, options, tau, R, Y, rounds):
        before = theta.experts.copy()
        super().fit_experts(theta, prior, options, tau, R, Y, rounds)
        theta.experts[:] += 1.5 * (theta.experts - before)

    def settle(self, theta, prior, options, tau, R, Y):
        return super().settle(theta, prior, options, tau**1.01, R, Y) * (1.0 + 0.1 / len(Y))

    def gradient(self, theta, prior, options, tau, R, Y):
        by_coefficients, by_variances = super().gradient(theta, prior, options, tau, R, Y)
        return by_coefficients, 1.01 * by_variances

    def moved_variances(self, variances, moves):
        return variances + moves


class WithAnotherFamily(TestGaussian):
    __test__ = False
    family = Overshooting()


BROKEN = {
    Sloppy: [
        "equal_seeds_and_events_give_equal_models",
        "chunking_does_not_change_the_model",
        "reading_a_model_does_not_change_it",
        "zero_weight_events_are_ignored",
        "weights_match_the_reference",
        "invalid_values_are_rejected_without_changing_the_model",
    ],
    WithAnotherReference: [
        "iterates_match_the_reference_after_a_warm_up",
        "iterates_match_the_reference_from_a_random_start",
    ],
    WithAnotherFamily: [
        "em_never_decreases_the_penalized_log_likelihood",
        "batch_mm_never_decreases_the_penalized_log_likelihood",
        "gradient_matches_finite_differences",
        "variances_stay_positive_under_any_move",
        "merged_statistics_are_those_of_all_events",
    ],
}


@pytest.mark.parametrize(("suite", "promise"), [(suite, promise) for suite in BROKEN for promise in BROKEN[suite]])
def test_a_broken_promise_is_noticed(suite, promise):
    with pytest.raises(AssertionError):
        getattr(suite(), f"test_{promise}")()
