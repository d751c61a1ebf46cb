"""Every family of experts keeps the promises of `streammoe.experts.Family`, on its own and within its estimator.

That its steps are those of a literal algorithm is in tests/oracle, that no round lowers the likelihood in
tests/property, and that cuts, restarts and bad events leave no trace in tests/invariants.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian
from streammoe.experts import Family, families
from streammoe.reduction import reduce

N, WARM_UP = 240, 60
GATE = np.array([[6.0, 0.0, 0.0], [-3.0, 5.0, 0.0], [-3.0, -5.0, 0.0]])
EXPERTS = np.random.default_rng(0).normal(scale=2.0, size=(3, 5, 4))
LABELS = ("c0", "c1", "c2", "c3")


@pytest.fixture(scope="module", autouse=True)
def brief_fits():
    """Let warm-ups end with few starts and rounds: the contract does not ask how good a fit is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streammoe.engine.search.WORK_LIMIT", 0.0)
        yield


@dataclass(frozen=True)
class Sample:
    """A family, and models and events of it."""

    family: Family
    kind: type = MoERegressor
    arguments: dict[str, Any] = field(default_factory=dict)
    n_targets: int = 1

    def __str__(self):
        return self.family.name

    def events(self, n, seed):
        """Inputs, and targets that three experts under a steep gate explain better than one."""
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 3))
        chosen = (X @ GATE.T + rng.gumbel(size=(n, 3))).argmax(axis=1)
        values = np.einsum("nqp,np->nq", EXPERTS[chosen], np.column_stack([np.ones(n), X]))
        if self.kind is MoEClassifier:
            index = (2.0 * values[:, :4] + rng.gumbel(size=(n, 4))).argmax(axis=1)
            index[:4] = np.arange(4)  # labels count in the order in which they are met
            return X, np.array(LABELS)[index]
        noise = 0.3 * rng.normal(size=(n, 1)) + 0.3 * rng.normal(size=(n, self.n_targets))
        rare = 0.02 if self.family.name.startswith("gaussian") else 0.1
        Y = values[:, : self.n_targets] + noise * np.where(rng.random((n, 1)) < rare, 30.0, 1.0)
        return X, Y if self.n_targets > 1 else Y[:, 0]

    def learned(self, X, y, bound="tight", **more):
        given = {"warmup": WARM_UP, "standardize": False, **self.arguments, **more}
        model = self.kind(3, bound=bound, **given)
        model.learn_array(X, y)
        return model

    def at(self, parameters, names, **more):
        """A model at these parameters."""
        classes = {"classes": LABELS} if self.kind is MoEClassifier else {}
        return self.kind.from_parameters(parameters, feature_names=names, **classes, **self.arguments, **more)

    def predictions(self, model, X):
        return model.predict_proba_array(X) if self.kind is MoEClassifier else model.predict_array(X)


def assert_close(actual, expected, rtol=1e-9):
    """Compare arrays of the same name, relative to the largest entry of the array."""
    names = [name for name, value in expected.items() if isinstance(value, np.ndarray) and name in actual]
    assert names
    for name in names:
        ours, theirs = np.asarray(actual[name]), expected[name]
        assert ours.shape == theirs.shape, name
        assert np.abs(ours - theirs).max(initial=0.0) <= rtol * np.abs(theirs).max(initial=0.0), name


def permuted(parameters, order):
    """Reorder the experts; the gate's logits become differences to those of the new last expert."""
    gate = np.concatenate([parameters["gate"], np.zeros((1, parameters["gate"].shape[1]))])[order]
    own = [name for name in ("experts", "variances", "masses", "expert_grams") if name in parameters]
    return {**parameters, **{name: parameters[name][order] for name in own}, "gate": gate[:-1] - gate[-1]}


SAMPLES = [
    Sample(families()["gaussian"]),
    Sample(families()["gaussian_full"], MoEMultiTargetRegressor, {"expert": Gaussian("full")}, 3),
    Sample(families()["student_t"], MoEMultiTargetRegressor, {"expert": "student_t"}, 3),
    Sample(families()["laplace"], arguments={"expert": "laplace"}),
    Sample(families()["categorical"], MoEClassifier),
]
samples = pytest.mark.parametrize("sample", SAMPLES, ids=str)


def test_every_family_is_held_to_the_contract():
    assert {sample.family.name: sample.family for sample in SAMPLES} == families()


# --- the family -------------------------------------------------------------------------------------------------------


# --- its models -------------------------------------------------------------------------------------------------------


@samples
def test_one_model_is_reduced_to_itself(sample):
    X, y = sample.events(N, 18)
    model = sample.learned(X, y, serve="polyak")
    reduced = reduce([model], support=X)
    assert_close({"": sample.predictions(reduced, X)}, {"": sample.predictions(model, X)}, rtol=1e-5)
    losses = {"": reduced.log_likelihood_array(X, y)}
    assert_close(losses, {"": model.log_likelihood_array(X, y)}, rtol=1e-5)
    assert reduced.n == model.n
    reduced.learn_array(X, y)
    reduced.arrays()  # raises if a number in it is not finite


@samples
def test_orders_of_models_and_experts_do_not_change_a_reduction(sample):
    streams = [sample.events(N, seed) for seed in (19, 20, 21)]
    support = streams[0][0]
    models = [sample.learned(*each, serve="polyak") for each in streams]
    reduced = reduce(models, support=support)
    assert reduce(models[1:] + models[:1], support=support).state_digest() == reduced.state_digest()
    parameters, names = models[0].parameters(averaged=True), models[0].feature_names
    shuffled, same = (
        sample.at(each, names, bound="tight", serve="polyak")
        for each in (permuted(parameters, np.array([2, 0, 1])), parameters)
    )
    found, expected = (
        sample.predictions(reduce([first, *models[1:]], support=support), support) for first in (shuffled, same)
    )
    assert_close({"": found}, {"": expected}, rtol=1e-6)


@samples
def test_experts_are_exchangeable(sample):
    """Not under the bound of the paper, which treats the reference logit differently."""
    X, y = sample.events(N, 4)
    order = np.array([2, 0, 1])
    for bound in ("tight", "adaptive"):
        start = sample.learned(X[:100], y[:100], bound)
        parameters, given = start.parameters(), {"bound": bound, "prior_strength": 0.5, "averaging": None}
        model, other = (
            sample.at(each, start.feature_names, **given) for each in (parameters, permuted(parameters, order))
        )
        assert_close({"": sample.predictions(other, X)}, {"": sample.predictions(model, X)})
        losses, found = (each.learn_array(X[100:], y[100:]) for each in (model, other))
        assert_close({"": found}, {"": losses})
        assert_close(other.parameters(), permuted(model.parameters(), order))


@samples
def test_duplicate_experts_are_detected(sample):
    start = sample.learned(*sample.events(N, 16))
    given = {name: each.copy() if isinstance(each, np.ndarray) else each for name, each in start.parameters().items()}
    given["gate"][0, 0] -= math.log(2.0)  # each has half of the mass of the first
    for name in ("masses", "expert_grams"):
        given[name][0] *= 0.5
    for name in ("gate", "experts", "variances", "masses", "expert_grams"):
        if name in given:
            given[name][1] = given[name][0]
    first, second, other = sample.at(given, start.feature_names, bound="tight", averaging=None).experts()
    assert (first["nearest"], second["nearest"]) == (1, 0)
    assert abs(first["divergence"]) < 1e-9 > abs(second["divergence"])
    assert {first["condition"], second["condition"]} == {"alive", "duplicate"}
    assert other["divergence"] > 1e-3


@samples
def test_losses_are_prequential_and_a_seed_is_all_of_the_chance(sample):
    X, y = sample.events(N, 8)
    model, same, other = (sample.learned(X[:150], y[:150], seed=seed, warmup=0, lags="off") for seed in (7, 7, 8))
    assert model.state_digest() == same.state_digest() != other.state_digest()
    for row in range(150, N):
        expected = -model.log_likelihood_array(X[row : row + 1], y[row : row + 1])
        assert model.learn_array(X[row : row + 1], y[row : row + 1]).tobytes() == expected.tobytes()
