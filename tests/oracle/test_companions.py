"""The single experts that predict together in a warm-up, held to the formulas, and how they are mixed."""

import itertools

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian
from tests.oracle.agreement import one_expert
from tests.oracle.literal import ALGORITHMS, log_softmax, relative_weights
from tests.oracle.test_portfolio import Trust

MODELS = {
    "gaussian 1": (MoERegressor, {}),
    "gaussian_full 2": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
    "student_t 1": (MoERegressor, {"expert": "student_t"}),
    "categorical 3": (MoEClassifier, {"classes": (0, 1, 2)}),
}
P, BURN_IN, COUNT = 3, 300, 60


class LiteralExpert:
    """One expert on features of its own, and the average by which it predicts."""

    def __init__(self, family, arrays, name, strength, alpha, features):
        start = f"warmup.{name}."
        state = {each.removeprefix(start): array for each, array in arrays.items() if each.startswith(start)}
        self.classes = family == "categorical"
        bound = "adaptive" if self.classes else "tight"
        self.slow = one_expert(ALGORITHMS[family], state, bound=bound, strength=strength)
        self.alpha, self.features = alpha, features
        self.n, self.j = int(state["n"][0]), int(state["n_average"][0])
        self.theta = {each: state[f"average_{each}"].copy() for each in ("experts", "variances")}

    def mean(self, row):
        r = self.features(row)
        if self.classes:
            return np.exp(log_softmax(self.slow.class_logits(r, self.theta)[0]))
        return self.theta["experts"][0] @ r

    def density(self, row, y):
        r = self.features(row)
        return float(np.exp(np.logaddexp.reduce(self.slow.log_joint(r, r, y, {**self.slow.theta, **self.theta}))))

    def learn(self, row, y, weight):
        r = self.features(row)
        self.n, self.j = self.n + 1, self.j + 1
        self.slow.learn(r, r, y, self.n**-self.alpha, weight)
        share = 3 / (self.j + 2) if self.classes else 1.0
        for name in self.theta:
            latest = self.slow.theta.get(name, self.theta[name])
            self.theta[name] = (1 - share) * self.theta[name] + share * latest


def rows(n):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, P))
    return X, (X**2).sum(axis=1) + X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=n)


def affine(row):
    return np.array([1.0, *row])


def products(row):
    return np.array([1.0, *row, *(a * b for a, b in itertools.combinations_with_replacement(row, 2))])


@pytest.mark.parametrize("name", MODELS)
def test_predictions_losses_and_weights_in_a_warm_up_are_those_of_the_formulas(name):
    kind, more = MODELS[name]
    family, M = name.split()
    X, far = rows(BURN_IN + COUNT)
    Y = {"1": far, "2": np.column_stack([far, X[:, 0]]), "3": np.digitize(far, [2.0, 4.0])}[M]
    model = kind(2, warmup=1000, standardize=True, **more)
    model.learn_array(X[:BURN_IN], Y[:BURN_IN])
    arrays = {each: array.copy() for each, array in model.arrays().items()}
    scaler = model.learner.phase.one.scaler
    a = 0.7 if M == "3" else 1.0
    experts = [LiteralExpert(family, arrays, "recursive", 1.0, 0.5 if M == "3" else 1.0, affine)]
    experts.append(LiteralExpert(family, arrays, "modest", 5.0, a, affine))
    if M == "3":
        experts.append(LiteralExpert(family, arrays, "constant", 5.0, a, lambda row: np.ones(1)))
    experts.append(LiteralExpert(family, arrays, "curved", 5.0, a, products))
    trust = Trust(arrays["warmup.trust"])
    trust.surprise = float(arrays["warmup.surprise"][0])
    weights = np.random.default_rng(1).uniform(0.5, 2.0, size=COUNT)
    relative = relative_weights(weights, BURN_IN)
    center, scale = (0.0, 1.0) if M == "3" else (scaler.target_center, scaler.target_scale)
    for i in range(COUNT):
        at = BURN_IN + i
        row = (X[at] - scaler.center) / scaler.scale
        y = int(Y[at]) if M == "3" else (np.atleast_1d(Y[at]) - center) / scale
        predict = model.predict_proba_array if M == "3" else model.predict_array
        expected = trust.weights @ np.array([each.mean(row) for each in experts]) * scale + center
        np.testing.assert_allclose(predict(X[at : at + 1])[0], expected.reshape(-1), rtol=1e-7, atol=1e-9)
        densities = np.array([each.density(row, y) for each in experts])
        loss = model.learn_array(X[at : at + 1], Y[at : at + 1], w=weights[i : i + 1])
        np.testing.assert_allclose(
            loss[0], -np.log(trust.weights @ densities) + np.sum(np.log(scale)), rtol=1e-7, atol=1e-9
        )
        trust.learn(-relative[i] * np.log(densities))
        np.testing.assert_allclose(model.arrays()["warmup.trust"], trust.weights, rtol=1e-6)
        for each in experts:
            each.learn(row, y, relative[i])
    assert trust.weights[-1] > 0.5, "the stream must be one on which the curved expert is the best"
