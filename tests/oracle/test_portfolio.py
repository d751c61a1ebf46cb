"""The served portfolio, held to the formulas: what each member predicts, how they are mixed, and how trust moves."""

import itertools

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian
from streammoe.distributions.mixtures import FULL, LEVELS, MOST_STRETCH
from streammoe.engine.members import CURVED, KINDS, SERIES
from streammoe.engine.portfolio import OF_MIXTURE
from streammoe.kernels import calibration, portfolio
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
from tests.oracle.literal import ALGORITHMS, log_softmax, relative_weights

BURN_IN, COUNT = 400, 160
SINGLES = (*KINDS, SERIES)
LAGS = 3
KEPT, FLOOR = portfolio.DISCOUNT, portfolio.LEAST_WEIGHT
MOST, REMEMBERED, ENDLESS = portfolio.MOST, portfolio.REMEMBERED, portfolio.MOST_REMEMBERED
SURE = 3.0
"""Nats beyond which a class that is surely wrong counts less for a single expert."""
CREDENCE, CERTAIN = portfolio.CREDENCE, portfolio.CERTAIN
PARTS, EVEN = calibration.PARTS, calibration.PRIOR / calibration.PARTS


class Trust:
    """Weights of members, of which one event counts for so much only, unless others like it came shortly before.

    Args:
        weights: those that it begins with.
    """

    def __init__(self, weights):
        self.weights, self.surprise = np.array(weights), 0.0

    def learn(self, costs):
        """Costs are those of an event in nats, times its weight."""
        behind = costs - costs.min()
        logs = KEPT * np.log(self.weights) - np.minimum(behind, MOST + self.surprise)
        self.surprise = min(REMEMBERED * self.surprise + max(self.weights @ behind - MOST, 0.0), ENDLESS)
        trust = np.exp(logs - logs.max())
        floored = np.maximum(trust / trust.sum(), FLOOR)
        self.weights = floored / floored.sum()


def products(row):
    """The features of the member of products, by the plain ones."""
    return np.array([*row, *(a * b for i, a in enumerate(row[1:], 1) for b in row[1 : i + 1])])


FEATURES = {"all": lambda row: row, "nothing": lambda row: row[:1], "products": products, "series": lambda row: row}


class Single:
    """One expert without gate; the first steps are those of a mean.

    Args:
        kind: its row of the table of members.
        state: arrays to begin with, by name.
        step: its least step.
    """

    def __init__(self, algorithm, kind, state, bound, step):
        self.slow = one_expert(algorithm, state, bound=bound, strength=kind.prior_strength)
        self.expand, self.n, self.step = FEATURES[kind.sees], int(state["n"][0]), step
        self.before = 0
        """Number of events that others have learned, and it has not."""
        self.past = []
        """The targets of its events so far, if it sees the last ones."""
        self.is_series = kind.sees == "series"

    def features(self, row):
        """The features of a row; the last targets stand behind the first one, by output or class, the latest first."""
        if not self.is_series:
            return self.expand(row)
        n_last = self.slow.theta["experts"].shape[-1] - len(row)
        last = np.zeros((n_last // LAGS, LAGS))
        for lag, y in enumerate(self.past[: -LAGS - 1 : -1] if self.n + self.before > 3 else []):
            if "variances" in self.slow.theta:
                last[:, lag] = y
            else:
                last[y, lag] = 1.0
        return np.concatenate([row[:1], last.ravel(), row[1:]])

    def log_density(self, row, y):
        r = self.features(row)
        return float(np.logaddexp.reduce(self.slow.log_joint(r, r, y, self.slow.theta)))

    def mean(self, row):
        r, theta = self.features(row), self.slow.theta
        if "variances" in theta:
            return theta["experts"][0] @ r
        return np.exp(log_softmax(self.slow.class_logits(r, theta)[0]))

    def learn(self, row, y, weight):
        r = self.features(row)
        # A class that it holds for next to impossible counts less.
        share = 1.0 if "variances" in self.slow.theta else min(SURE / -self.log_density(row, y), 1.0)
        self.n += 1
        # Where all events of a stream of classes count, steps are longer.
        alpha = 1.0 if "variances" in self.slow.theta or self.step else 0.85
        self.slow.learn(r, r, y, max(self.n**-alpha, self.step), share * weight)
        self.past.append(y)


class LiteralPortfolio:
    """The mixture by its average, as it was fitted and by its latest iterate, and single experts."""

    def __init__(self, mixture, singles, noise):
        self.mixture, self.singles, self.noise = mixture, singles, noise
        self.iterates = []
        others = len(OF_MIXTURE) - 1 + len(singles)
        self.trust = Trust([1 - others * FLOOR, *[FLOOR] * others])
        self.trust_in_means = Trust([1 - (1 + others) * FLOOR, *[FLOOR] * (1 + others)])
        self.squares, self.count, self.ranks = None, 0, None

    def thetas(self):
        latest = self.mixture.theta
        average = {name: np.mean([each[name] for each in self.iterates], axis=0) for name in self.iterates[0]}
        if "variances" in average:
            average["variances"] = self.variances
        return [average, self.iterates[0] | self.fitted_variances, latest]

    def log_densities(self, r, y):
        own = [np.logaddexp.reduce(self.mixture.log_joint(r, r, y, theta)) for theta in self.thetas()]
        return np.array(own + [single.log_density(r, y) for single in self.singles])

    def means(self, r):
        """Each member's mean, or its probabilities of the classes."""
        found = []
        for theta in self.thetas():
            shares = np.exp(log_softmax(self.mixture.logits(r, theta)))
            if "variances" in theta:
                found.append(shares @ (theta["experts"] @ r))
            else:
                found.append(shares @ np.exp([log_softmax(each) for each in self.mixture.class_logits(r, theta)]))
        return np.array(found + [single.mean(r) for single in self.singles])

    def predicted(self, r):
        """The point prediction, or the probabilities of the classes."""
        means = self.means(r)
        own = self.trust.weights @ means
        return self.trust_in_means.weights @ np.vstack([own, means]) if self.is_metric else own

    @property
    def is_metric(self):
        return "variances" in self.iterates[0]

    def trust_means(self, r, y, weight):
        """Trust those more that were near: Bayes' rule with normal densities of one variance and logarithmic tails."""
        means = self.means(r)
        candidates = np.vstack([self.trust.weights @ means, means])
        error = (y - self.trust_in_means.weights @ candidates) ** 2
        scale = error if self.squares is None else self.squares
        ratios, limit = (y - candidates) ** 2 / scale, CERTAIN**2
        costs = np.where(ratios <= limit, ratios, limit * (1 + np.log(np.maximum(ratios, limit) / limit))).sum(axis=1)
        self.trust_in_means.learn(0.5 * CREDENCE * weight * costs)
        self.count += 1
        before, step = np.zeros_like(scale) if self.squares is None else scale, max(1 / self.count, 1 - KEPT)
        self.squares = before + step * min(weight, 1) * (np.minimum(error, limit * scale) - before)

    def below(self, r, y):
        """The probability below each target by what is served, (Q,)."""
        parts = [(np.exp(log_softmax(self.mixture.logits(r, theta))), r, theta) for theta in self.thetas()]
        parts += [(np.ones(1), single.features(r), single.slow.theta) for single in self.singles]
        found = np.zeros(len(y))
        for weight, (shares, features, theta) in zip(self.trust.weights, parts, strict=True):
            for share, expert, variances in zip(shares, theta["experts"], theta["variances"], strict=True):
                own = np.diagonal(variances) if variances.ndim == 2 else variances
                found += weight * share * self.noise.cdf((y - expert @ features) / np.sqrt(own))
        return found

    def calibrate(self, r, y, weight):
        """Count in which parts of the distribution targets fall; return what that takes off the loss of one output."""
        if self.ranks is None:
            self.ranks, self.belief = np.full((len(y), PARTS), EVEN), np.full(len(y), calibration.DOUBT)
            self.stretch = np.ones((len(y), 2, len(LEVELS)))
        at = (np.arange(len(y)), (self.below(r, y) * PARTS).astype(int))
        for q, rank in enumerate(self.below(r, y)):
            self.move_ends(q, rank, min(weight, 1))
        heights, share = self.ranks[at] * PARTS / self.ranks.sum(axis=1), min(weight, 1)
        gains = np.log(1 - self.belief + self.belief * heights)
        ahead, even = self.belief**KEPT * heights**share, (1 - self.belief) ** KEPT
        self.belief = np.clip(ahead / (ahead + even), calibration.LEAST, 1 - calibration.LEAST)
        self.ranks += share / calibration.MEMORY * (EVEN - self.ranks)
        self.ranks[at] += share
        return gains[0] if len(y) == 1 else 0.0

    def move_ends(self, q, rank, share):
        """Move the ends of intervals of an output by where a target is, given the probability below it."""
        parts = (1 - self.belief[q]) / PARTS + self.belief[q] * self.ranks[q] / self.ranks[q].sum()
        at = int(rank * PARTS)
        below = above = parts[at]
        if parts[at] * PARTS <= FULL or at == 0:
            below = parts[at] * (rank * PARTS - at)
        if parts[at] * PARTS <= FULL or at == PARTS - 1:
            above = parts[at] * (at + 1 - rank * PARTS)
        tails = 0.5 * (1 - np.array(LEVELS))
        for side, beyond in enumerate([parts[:at].sum() + below, parts[at + 1 :].sum() + above]):
            ends = np.minimum.accumulate(self.stretch[q, side] * np.log(tails / (1 - tails)))
            missed = np.log(beyond / (1 - beyond)) < ends
            moved = self.stretch[q, side] + calibration.STRETCH_STEP * share * (missed - tails)
            self.stretch[q, side] = np.clip(moved, calibration.LEAST_STRETCH, MOST_STRETCH)

    def learn(self, r, y, gamma, weight):
        logs = self.log_densities(r, y)
        loss = -np.logaddexp.reduce(np.log(self.trust.weights) + logs)
        if self.is_metric:
            loss -= self.calibrate(r, y, weight)
            self.trust_means(r, y, weight)
        self.trust.learn(-weight * logs)
        self.mixture.learn(r, r, y, gamma, weight)
        for single in self.singles:
            single.learn(r, y, weight)
        self.iterates.append({name: self.mixture.theta[name] for name in self.iterates[0]})
        if "variances" in self.iterates[0]:
            share = max(1 / len(self.iterates), gamma)
            self.variances = (1 - share) * self.variances + share * self.mixture.theta["variances"]
        return loss


def literal(case, start, model):
    """The literal portfolio at the parameters of a model; its single experts have learned nothing."""
    singles = []
    for kind in SINGLES:
        place = f"portfolio.{kind.name}."
        state = {name.removeprefix(place): each for name, each in model.arrays().items() if name.startswith(place)}
        singles.append(Single(case.algorithm, kind, state, case.bound, kind.step))
        singles[-1].before = BURN_IN
    found = LiteralPortfolio(oracle(case, start), singles, getattr(model.learner.context.family, "noise", None))
    average = {name: start[name] for name in ("gate", "experts", "variances") if name in start}
    found.iterates.append(average)
    found.variances = average.get("variances")
    found.fitted_variances = {} if found.variances is None else {"variances": found.variances}
    return found


def predicted_next(model, x):
    """The prediction of the next event, as if the one before had been predicted right before it was learned."""
    model.learner.context.past.is_timely = True
    found = model.predict_proba_one(x) if isinstance(model, MoEClassifier) else model.predict_one(x)
    return np.array(list(found.values())) if isinstance(found, dict) else np.array([found])


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
    gammas = [STEPS[case.steps](n) for n in range(BURN_IN + 1, BURN_IN + COUNT + 1)]
    X, Y = powers(events.X, 1), events.y if case.classes else events.y.reshape(COUNT, case.outputs)
    if not case.classes:  # else the mean of the density, which follows, would keep all of it
        model.learner.phase.portfolio.trust.mean_weights[:] = slow.trust_in_means.weights[:] = 1 / (
            1 + len(OF_MIXTURE) + len(SINGLES)
        )
    largest, weights = np.zeros(len(OF_MIXTURE) + len(SINGLES)), relative_weights(events.weights, BURN_IN)
    for i in range(COUNT):
        row = slice(i, i + 1)
        prediction = predicted_next(model, dict(zip(names(case), events.X[i].tolist(), strict=True)))
        np.testing.assert_allclose(prediction, slow.predicted(X[i]), rtol=1e-7, atol=1e-9)
        loss = model.learn_array(events.X[row], events.y[row], w=events.weights[row], feature_names=names(case))
        expected = slow.learn(X[i], Y[i], gammas[i], weights[i])
        np.testing.assert_allclose(loss[0], expected, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(list(model.member_weights.values()), slow.trust.weights, rtol=1e-6)
        if not case.classes:
            np.testing.assert_allclose(model.arrays()["portfolio.mean_weights"], slow.trust_in_means.weights, rtol=1e-6)
            np.testing.assert_allclose(model.arrays()["portfolio.ranks"], slow.ranks, rtol=1e-12)
            np.testing.assert_allclose(model.arrays()["portfolio.belief"], slow.belief, rtol=1e-7)
            np.testing.assert_allclose(model.arrays()["portfolio.stretch"], slow.stretch, rtol=1e-12)
        largest = np.maximum(largest, slow.trust.weights)
    assert (largest > 0.4).sum() >= 2, "the stream must make several members matter"


MODELS = {
    "gaussian": (MoERegressor, {}),
    "gaussian_full": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}),
    "student_t": (MoERegressor, {"expert": "student_t"}),
    "categorical": (MoEClassifier, {"classes": (0, 1, 2)}),
}


@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, CURVED) for family in MODELS]
    + list(zip(itertools.cycle(MODELS), (*KINDS, SERIES, SERIES), strict=False)),
    ids=lambda each: getattr(each, "name", each),
)
def test_a_single_expert_learns_by_the_formulas(family, kind):
    """Also after so many events that its steps are the least ones."""
    made, arguments = MODELS[family]
    n, P = 200, 3
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n + 60, P))
    far = (X**2).sum(axis=1) + X[:, 0] * X[:, 1] + 0.5 * rng.normal(size=len(X))
    Y = {MoEMultiTargetRegressor: np.column_stack([far, X[:, 0]]), MoERegressor: far[:, None]}.get(made)
    Y = np.digitize(far, np.quantile(far, [0.3, 0.7]))[:, None] if Y is None else Y
    model = made(2, **arguments)
    model.learn_array(X[:n], Y[:n] if made is MoEMultiTargetRegressor else Y[:n, 0])
    (member,) = (each for each in model.learner.phase.portfolio.singles if each.name == kind.name)
    encoder = model.learner.encoder
    R = encoder.design(encoder.hold(X[n:])[0])[1]
    targets = (Y[n:] - encoder.scaler.target_center) / encoder.scaler.target_scale
    slow = Single(ALGORITHMS[family], kind, member.state._asdict(), "adaptive", member.step)
    weights = rng.uniform(0.5, 2.0, size=60)
    for at, begins in enumerate((n, 5, 100_000)):
        part = slice(20 * at, 20 * at + 20)
        member.state.n[0] = slow.n = begins
        slow.past = []
        found = member.learn(
            R[part], targets[part], weights[part], n_outputs=3 if made is MoEClassifier else Y.shape[1]
        )
        for i, r in enumerate(R[part]):
            y = targets[part][i] if made is not MoEClassifier else int(targets[part][i, 0])
            np.testing.assert_allclose(found.predictions[i], slow.mean(r), rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(found.losses[i], -slow.log_density(r, y), rtol=1e-7, atol=1e-9)
            slow.learn(r, y, weights[part][i])


def test_components_of_the_predicted_distribution_are_the_experts_of_all_members():
    case = Case(3, 4, "adaptive", next(iter(STEPS)), prior=0.5, outputs=2, covariance="full")
    events = stream(case, COUNT)
    model = estimator(case, start_of(case, events), averaging="polyak", serve="portfolio", expert=Gaussian("full"))
    model.learn_array(events.X, events.y, feature_names=names(case))
    x = dict(zip(names(case), events.X[0].tolist(), strict=True))
    beside = model.predict_distribution_one(x)  # not as the next event: its last targets are not known
    density = np.exp(model.log_likelihood_array(events.X[:1], events.y[:1], feature_names=names(case)))
    np.testing.assert_allclose(beside.pdf(events.y[0]), density, rtol=1e-9)
    prediction, found = predicted_next(model, x), model.predict_distribution_one(x)
    last = 3 * len(OF_MIXTURE)
    parts = [slice(at, at + 3) for at in range(0, last, 3)]
    parts += [slice(at, at + 1) for at in range(last, last + len(SINGLES))]
    trust = np.array(list(model.member_weights.values()))
    assert len(found.shares) == last + len(SINGLES)
    np.testing.assert_allclose([found.shares[part].sum() for part in parts], trust, rtol=1e-9)
    means = found.shares[:, None] * found.means
    own = np.array([means[part].sum(axis=0) for part in parts]) / trust[:, None]
    near = model.arrays()["portfolio.mean_weights"]
    expected = near[0] * found.mean() + near[1:] @ own
    np.testing.assert_allclose(prediction, expected, rtol=1e-9)
