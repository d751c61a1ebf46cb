"""The served portfolio, held to the formulas: what each member predicts, how they are mixed, and how trust moves."""

import numpy as np
import pytest

from streammoe.distributions import Gaussian
from streammoe.engine.members.one_expert import STEP, merged
from tests.oracle.agreement import (
    FAMILIES,
    STEPS,
    Case,
    Events,
    estimator,
    names,
    one_expert,
    oracle,
    powers,
    start_of,
    stream,
)
from tests.oracle.literal import log_softmax, relative_weights

BURN_IN, COUNT = 400, 160
KEPT, FLOOR = 0.998, 1e-8
MOST, REMEMBERED = 3.0, 0.95
CREDENCE, CERTAIN, ADVANTAGE = 0.5, 6.0, 6.0


class Trust:
    """Weights of members, of which one event counts for so much only, unless others like it came shortly before.

    Args:
        weights: those that it begins with.
    """

    def __init__(self, weights):
        self.weights, self.surprise = np.array(weights), 0.0

    def learn(self, costs, lead=0.0):
        """Costs are those of an event in nats, times its weight; lead is added to the logarithms of the weights."""
        behind = costs - costs.min()
        logs = KEPT * np.log(self.weights) + lead - np.minimum(behind, MOST + self.surprise)
        self.surprise = min(REMEMBERED * self.surprise + max(self.weights @ behind - MOST, 0.0), 100.0)
        trust = np.exp(logs - logs.max())
        floored = np.maximum(trust / trust.sum(), FLOOR)
        self.weights = floored / floored.sum()


class LiteralPortfolio:
    """The mixture's average, its latest iterate, and one expert, by their densities.

    Args:
        mixture: the literal algorithm of the mixture.
        one: that of the one expert.
    """

    def __init__(self, mixture, one):
        self.mixture, self.one = mixture, one
        self.iterates = []
        self.trust = Trust([1 - 2 * FLOOR, FLOOR, FLOOR])
        self.trust_in_means = Trust([1 - 3 * FLOOR, FLOOR, FLOOR, FLOOR])
        self.squares, self.count = None, 0

    def thetas(self):
        latest = self.mixture.theta
        average = {name: np.mean([each[name] for each in self.iterates], axis=0) for name in self.iterates[0]}
        if "variances" in average:
            average["variances"] = self.variances
        return [(self.mixture, average), (self.mixture, latest), (self.one, self.one.theta)]

    def densities(self, w, r, y):
        return np.array([np.exp(np.logaddexp.reduce(a.log_joint(w, r, y, theta))) for a, theta in self.thetas()])

    def means(self, w, r):
        """Each member's mean, or its probabilities of the classes."""
        found = []
        for algorithm, theta in self.thetas():
            shares = np.exp(log_softmax(algorithm.logits(w, theta)))
            if "variances" in theta:
                found.append(shares @ (theta["experts"] @ r))
            else:
                found.append(shares @ np.exp([log_softmax(each) for each in algorithm.class_logits(r, theta)]))
        return np.array(found)

    def predicted(self, w, r):
        """The point prediction, or the probabilities of the classes."""
        means = self.means(w, r)
        own = self.trust.weights @ means
        return self.trust_in_means.weights @ np.vstack([own, means]) if self.is_metric else own

    @property
    def is_metric(self):
        return "variances" in self.iterates[0]

    def trust_means(self, w, r, y, weight):
        """Trust those more that were near: Bayes' rule with normal densities of one variance and logarithmic tails."""
        means = self.means(w, r)
        candidates = np.vstack([self.trust.weights @ means, means])
        error = (y - self.trust_in_means.weights @ candidates) ** 2
        scale = error if self.squares is None else self.squares
        ratios, limit = (y - candidates) ** 2 / scale, CERTAIN**2
        costs = np.where(ratios <= limit, ratios, limit * (1 + np.log(np.maximum(ratios, limit) / limit))).sum(axis=1)
        behind = np.where(np.arange(len(costs)) > 0, ADVANTAGE, 0.0)
        self.trust_in_means.learn(0.5 * CREDENCE * weight * costs, -(1.0 - KEPT) * behind)
        self.count += 1
        before, step = np.zeros_like(scale) if self.squares is None else scale, max(1 / self.count, 1 - KEPT)
        self.squares = before + step * min(weight, 1) * (np.minimum(error, limit * scale) - before)

    def learn(self, w, r, y, gamma, weight):
        density = self.densities(w, r, y)
        loss = -np.log(self.trust.weights @ density)
        if self.is_metric:
            self.trust_means(w, r, y, weight)
        self.trust.learn(-weight * np.log(density))
        self.mixture.learn(w, r, y, gamma, weight)
        # A single expert of classes counts what it holds for next to impossible as 3 nats would be counted.
        share = 1.0 if self.is_metric else min(MOST / -np.log(density[2]), 1.0)
        self.one.learn(w, r, y, STEP, share * weight)
        self.iterates.append({name: self.mixture.theta[name] for name in self.iterates[0]})
        if "variances" in self.iterates[0]:
            share = max(1 / len(self.iterates), gamma)
            self.variances = (1 - share) * self.variances + share * self.mixture.theta["variances"]
        return loss


def literal(case, start, model):
    """The literal portfolio at the parameters of a model that has learned nothing; the one expert is the model's."""
    state = {name.rpartition(".")[2]: each for name, each in model.arrays().items() if ".one_expert." in name}
    found = LiteralPortfolio(oracle(case, start), one_expert(case.algorithm, state, bound=case.bound))
    average = {name: start[name] for name in ("gate", "experts", "variances") if name in start}
    found.iterates.append(average)
    found.variances = average.get("variances")
    return found


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name == "gaussian" else pytest.mark.slow) for name in FAMILIES]
)
def test_predictions_losses_and_weights_are_those_of_the_formulas(family):
    case = Case(3, 4, "adaptive", next(iter(STEPS)), prior=0.5, weighted=True, **FAMILIES[family])
    events = stream(case, BURN_IN + COUNT)
    first = Events(*(each[:BURN_IN] for each in events))
    burnt = estimator(case, start_of(case, first))
    burnt.learn_array(first.X, first.y, feature_names=names(case))
    start = burnt.parameters()
    events = Events(*(each[BURN_IN:] for each in events))
    events.y[COUNT // 2 :] = (events.y[COUNT // 2 :] + 1) % case.classes if case.classes else -events.y[COUNT // 2 :]
    model = estimator(case, start, averaging="polyak", serve="portfolio")
    slow = literal(case, model.parameters(), model)
    gammas = STEPS[case.steps].steps(BURN_IN + 1, COUNT)
    X, Y = powers(events.X, 1), events.y if case.classes else events.y.reshape(COUNT, case.outputs)
    if not case.classes:  # else the mean of the density, which follows, would keep all of it
        model.learner.phase.portfolio.means.weights[:] = slow.trust_in_means.weights[:] = 1 / 4
    largest, weights = np.zeros(3), relative_weights(events.weights, BURN_IN)
    for i in range(COUNT):
        row = slice(i, i + 1)
        predict = model.predict_proba_array if case.classes else model.predict_array
        prediction = predict(events.X[row], feature_names=names(case)).reshape(-1)
        np.testing.assert_allclose(prediction, slow.predicted(X[i], X[i]), rtol=1e-7, atol=1e-9)
        loss = model.learn_array(events.X[row], events.y[row], w=events.weights[row], feature_names=names(case))
        expected = slow.learn(X[i], X[i], Y[i], gammas[i], weights[i])
        np.testing.assert_allclose(loss[0], expected, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(list(model.member_weights.values()), slow.trust.weights, rtol=1e-6)
        if not case.classes:
            np.testing.assert_allclose(model.arrays()["portfolio.mean_weights"], slow.trust_in_means.weights, rtol=1e-6)
        largest = np.maximum(largest, slow.trust.weights)
    assert (largest > 0.4).sum() >= 2, "the stream must make several members matter"


@pytest.mark.parametrize("family", ["gaussian 3", "full 3"])
def test_the_one_expert_begins_with_the_statistics_of_all_experts(family):
    case = Case(3, 4, "adaptive", next(iter(STEPS)), prior=0.5, **FAMILIES[family])
    events = stream(case, COUNT)
    model = estimator(case, start_of(case, events))
    model.learn_array(events.X, events.y, feature_names=names(case))
    algorithm = oracle(case, model.parameters())
    s = algorithm.mm.statistics
    total = {name: s[name].sum(axis=0, keepdims=True) for name in ("s3", "s4", "s5", "s6")}
    expected = algorithm.minimize_experts(total)
    found = merged(model.learner.state)
    for name in ("experts", "variances"):
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-9, atol=1e-9)


def test_components_of_the_predicted_distribution_are_the_experts_of_all_members():
    case = Case(3, 4, "adaptive", next(iter(STEPS)), prior=0.5, outputs=2, covariance="full")
    events = stream(case, COUNT)
    model = estimator(case, start_of(case, events), averaging="polyak", serve="portfolio", expert=Gaussian("full"))
    model.learn_array(events.X, events.y, feature_names=names(case))
    x = dict(zip(names(case), events.X[0].tolist(), strict=True))
    found = model.predict_distribution_one(x)
    assert len(found.shares) == 7
    trust = list(model.member_weights.values())
    np.testing.assert_allclose([found.shares[:3].sum(), found.shares[3:6].sum(), found.shares[6]], trust, rtol=1e-9)
    means = found.shares[:, None] * found.means
    own = (
        np.array([means[part].sum(axis=0) for part in (slice(0, 3), slice(3, 6), slice(6, 7))])
        / np.array(trust)[:, None]
    )
    near = model.arrays()["portfolio.mean_weights"]
    expected = near[0] * found.mean() + near[1:] @ own
    np.testing.assert_allclose(list(model.predict_one(x).values()), expected, rtol=1e-9)
    density = np.exp(model.log_likelihood_array(events.X[:1], events.y[:1], feature_names=names(case)))
    np.testing.assert_allclose(found.pdf(events.y[0]), density, rtol=1e-9)
