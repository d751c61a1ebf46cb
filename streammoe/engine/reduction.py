"""Reduction of several mixtures to one of K experts, by the experts' divergence over a support sample ([DMoE] §3).

The experts ℓ = 1 … L of all models together, the *local* ones, have the shares π_ℓ(x), which add up to 1, and the
densities φ̂_ℓ(·|x). The reduced experts φ_k minimize the expected transport divergence
Σ_s Σ_ℓ π_ℓ(x_s) min_k KL(φ̂_ℓ(·|x_s) ‖ φ_k(·|x_s)) by turns: each local expert goes, at each support point, to the
nearest reduced one, and each reduced one moves to where it is nearest to what has come to it. All that is known of a
local expert is what it says at the support points, so that models of other scales, numbers of experts and orders of
labels need no common coordinates.

The gate is not the paper's, which is fitted to the mean of the models' probabilities: gates of few events that are
nearly hard differ in where their borders are, so that the mean is softer than each of them, and an event near a border
is predicted by experts that have nothing to say there. Here the logits are averaged; where each model has just one
expert for each reduced one, that is the mean of the gates' coefficients. Probabilities are averaged only between models
that have found different experts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from streammoe.engine.em import scaled_prior, state_of
from streammoe.experts import Family, Parameters
from streammoe.kernels.batch import adaptive_weights, collect_gram, fit_softmax, gate_bends, softmax_rows
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray, IntArray

TOLERANCE = 1e-4
"""Relative fall of the divergence in a round at which a reduction has settled."""
MOST_ROUNDS = 100
LEAST_SHARE = 1e-6
"""Share of the support below which a reduced expert is empty, and seeded anew."""
RIDGE = 1e-9
"""Weight of the prior that keeps fits to few support points finite, relative to the points."""
SOFTMAX_ROUNDS = 50
CLUSTERINGS = 8
"""Starts from random local experts, besides those from the models that are least far from all."""
MIDDLE = 4
"""Number of models of which the experts are starts."""
FINALISTS = 2
"""Starts from which the divergence is minimized point by point; the others are compared expert by expert."""
FEW_POINTS = 200
"""Support points for that comparison, if there are not many more features."""
LEAST_LOG = -600.0
"""Logarithm of a share that is as good as 0."""
CURVATURE = (2.0, 1.0)
"""Of the prior of fits of softmax regressions, see `fit_softmax`."""


class Local(NamedTuple):
    """What the local experts say at the S support points."""

    log_gates: FloatArray
    """(S, L) logarithms of the probabilities that its own model's gate gives each."""
    parts: FloatArray
    """(S, M) how much each model counts, 0 where it knows nothing of such an input; rows add up to 1."""
    means: FloatArray
    """(S, L, Q) means of numbers, or probabilities of the classes."""
    variances: FloatArray
    """(L, Q, Q) covariances of numbers; (L, 0, 0) for classes."""
    owners: IntArray
    """(L,) the model of each, in ascending order."""
    is_full: bool = False
    """Whether covariances of numbers have entries off the diagonal."""

    @property
    def shares(self) -> FloatArray:
        """(S, L) π_ℓ(x_s), which add up to 1."""
        found: FloatArray = np.exp(self.log_gates) * self.parts[:, self.owners]
        return found

    def of_model(self, m: int) -> IntArray:
        """Return the experts of a model."""
        return np.flatnonzero(self.owners == m)

    def at(self, points: IntArray) -> Local:
        """Return what they say at some of the points."""
        return self._replace(log_gates=self.log_gates[points], parts=self.parts[points], means=self.means[points])


class Experts(NamedTuple):
    """Reduced experts."""

    coefficients: FloatArray
    """(K, N, p): N = Q for numbers, the classes but the first, whose logit is 0, for classes."""
    variances: FloatArray
    """(K, Q, Q), or (K, 0, 0)."""

    def part(self, chosen: IntArray | slice) -> Experts:
        """Return some of them."""
        return Experts(self.coefficients[chosen], self.variances[chosen])


class Reduction(NamedTuple):
    """A reduced mixture, and how it came about."""

    experts: Experts
    gate: FloatArray
    """(K, p_w) coefficients; those of the last are 0."""
    labels: IntArray
    """(L,) the reduced expert that each local one is nearest to on the whole."""
    divergences: tuple[float, ...]
    """Mean divergence before each round, and at the end."""

    def log_shares(self, W: FloatArray) -> FloatArray:
        """Return the gate's log probabilities (n, K) at gate features (n, p_w)."""
        return log_softmax(W @ self.gate.T)

    def in_order(self, order: IntArray) -> Reduction:
        """Return the same mixture with its experts in this order."""
        gate = self.gate[order] - self.gate[order[-1]]
        return self._replace(experts=self.experts.part(order), gate=gate, labels=np.argsort(order)[self.labels])


class Problem(ABC):
    """The local experts at support points, of one kind of densities."""

    def __init__(self, local: Local, R: FloatArray) -> None:
        """Take the local experts, and the features (S, p) of reduced experts at the same points."""
        self.local, self.R = local, R
        self.shares = local.shares

    def at(self, points: IntArray) -> Self:
        """Return the problem at some of the points."""
        return type(self)(self.local.at(points), self.R[points])

    @abstractmethod
    def divergence(self, experts: Experts, k: int) -> FloatArray:
        """Return KL(φ̂_ℓ(·|x_s) ‖ φ_k(·|x_s)), (S, L)."""

    def divergences(self, experts: Experts) -> tuple[IntArray, FloatArray]:
        """Return the nearest reduced expert of each local one at each point, (S, L), and what that costs."""
        nearest, costs = np.zeros(self.shares.shape, dtype=np.int64), self.divergence(experts, 0)
        for k in range(1, len(experts.coefficients)):
            found = self.divergence(experts, k)
            closer = found < costs
            nearest[closer] = k
            np.copyto(costs, found, where=closer)
        costs *= self.shares
        return nearest, costs

    def moved(self, nearest: IntArray, experts: Experts) -> tuple[Experts, FloatArray]:
        """Return the experts of least divergence from the local ones that are nearest to each; empty ones stay.

        Returns:
            the experts, and the share of the support that each has, (K,).
        """
        moved, masses = [], []
        for k in range(len(experts.coefficients)):
            part, before = np.where(nearest == k, self.shares, 0.0), experts.part(slice(k, k + 1))
            masses.append(float(part.sum()) / len(self.R))
            moved.append(self.nearest(part, before) if masses[-1] >= LEAST_SHARE else before)
        return Experts(*(np.concatenate(arrays) for arrays in zip(*moved, strict=True))), np.array(masses)

    @abstractmethod
    def nearest(self, shares: FloatArray, before: Experts) -> Experts:
        """Return the one expert of least divergence from local ones with these shares, (S, L).

        Args:
            shares: what has come to it.
            before: the expert as it was, K = 1.
        """

    def linear(self) -> Experts:
        """Return the local experts as reduced ones."""
        said = self.coordinates()
        S, L, N = said.shape
        found = np.linalg.lstsq(self.R, said.reshape(S, L * N), rcond=None)[0]
        coefficients: FloatArray = np.ascontiguousarray(found.T).reshape(L, N, self.R.shape[1])
        return Experts(coefficients, self.local.variances)

    @abstractmethod
    def coordinates(self) -> FloatArray:
        """Return what the local experts say in the coordinates in which reduced ones are linear, (S, L, N)."""

    def one_expert(self) -> Experts:
        """Return the one expert of least divergence from all."""
        heaviest = int(self.shares.sum(axis=0).argmax())
        return self.nearest(self.shares, self.linear().part(slice(heaviest, heaviest + 1)))


class Normal(Problem):
    """Normal densities around linear means, with diagonal or full covariances."""

    def __init__(self, local: Local, R: FloatArray) -> None:
        super().__init__(local, R)
        self._sizes = np.linalg.slogdet(local.variances)[1]

    def divergence(self, experts: Experts, k: int) -> FloatArray:
        precision = np.linalg.inv(experts.variances[k])
        root, Q = np.linalg.cholesky(precision), len(precision)
        apart = (self.R @ (experts.coefficients[k].T @ root))[:, None, :] - self.local.means @ root
        np.square(apart, out=apart)
        fixed = np.linalg.slogdet(experts.variances[k])[1] - self._sizes - Q
        fixed += np.einsum("ij,lji->l", precision, self.local.variances)
        found: FloatArray = 0.5 * (apart.sum(axis=2) + fixed)
        return found

    def nearest(self, shares: FloatArray, before: Experts) -> Experts:
        R, means = self.R, self.local.means
        # Correcting the old coefficients keeps the rounding of an ill-conditioned system out of what fits already.
        apart = means - (R @ before.coefficients[0].T)[:, None, :]
        pulls = np.stack([(shares * apart[:, :, q]).sum(axis=1) for q in range(means.shape[2])], axis=1)
        gram = R.T @ (shares.sum(axis=1)[:, None] * R)
        gram[np.diag_indices_from(gram)] += RIDGE * np.maximum(gram.diagonal(), np.finfo(float).tiny)
        coefficients: FloatArray = before.coefficients[0] + np.linalg.solve(gram, R.T @ pulls).T
        apart = (R @ coefficients.T)[:, None, :] - means
        apart *= np.sqrt(shares)[:, :, None]
        apart = apart.reshape(-1, apart.shape[2])
        parts = shares.sum(axis=0)
        covariance = (np.tensordot(parts, self.local.variances, axes=1) + apart.T @ apart) / parts.sum()
        covariance = covariance if self.local.is_full else np.diag(np.diag(covariance))
        return Experts(coefficients[None], covariance[None])

    def coordinates(self) -> FloatArray:
        return self.local.means


class Classes(Problem):
    """Probabilities of classes, by softmax regressions."""

    def __init__(self, local: Local, R: FloatArray) -> None:
        super().__init__(local, R)
        self._logs = np.log(np.maximum(local.means, np.finfo(float).tiny))
        self._entropies = (local.means * self._logs).sum(axis=2)

    def divergence(self, experts: Experts, k: int) -> FloatArray:
        logits = np.column_stack([np.zeros(len(self.R)), self.R @ experts.coefficients[k].T])
        said = log_softmax(logits)
        found: FloatArray = self._entropies - np.matmul(self.local.means, said[:, :, None])[:, :, 0]
        return found

    def nearest(self, shares: FloatArray, before: Experts) -> Experts:
        targets = np.matmul(shares[:, None, :], self.local.means)[:, 0, :]
        coefficients = before.coefficients[0].copy()
        fit_to_shares(coefficients, targets, self.R, reference=0)
        return Experts(coefficients[None], before.variances)

    def coordinates(self) -> FloatArray:
        found: FloatArray = self._logs[:, :, 1:] - self._logs[:, :, :1]
        return found


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return the logarithms of the probabilities of logits, (n, K)."""
    logits = logits - logits.max(axis=1, keepdims=True)
    found: FloatArray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found


def fit_to_shares(coefficients: FloatArray, shares: FloatArray, X: FloatArray, *, reference: int) -> None:
    """Fit a softmax regression to soft targets, (S, N + 1), in place: a gate, or an expert of classes."""
    if not len(coefficients):
        return
    prior_gram = np.maximum((shares.sum(axis=1)[:, None] * X**2).sum(axis=0), np.finfo(float).tiny)
    zeros, targets, X = np.zeros_like(coefficients), np.ascontiguousarray(shares), np.ascontiguousarray(X)
    fit_softmax(coefficients, RIDGE, prior_gram, zeros, CURVATURE, targets, X, reference, SOFTMAX_ROUNDS)


def reduce(problem: Problem, W: FloatArray, n_experts: int, seed: int) -> Reduction:
    """Return the mixture of so many experts of least divergence.

    Args:
        problem: the local experts, of which there are at least so many.
        W: (S, p_w) gate features at the support points.
        n_experts: K.
        seed: of the random starts.
    """
    points = _few(*problem.R.shape)
    sketch = problem.at(points)
    found = [_rounds(sketch, start, is_whole=True) for start in _starts(problem, sketch, n_experts, seed)]
    found.sort(key=lambda done: done[1][-1])
    # Many starts lead to the same experts, which one of them stands for.
    finalists = [
        done[0]
        for at, done in enumerate(found[:FINALISTS])
        if not at or done[1][-1] - found[at - 1][1][-1] > TOLERANCE * abs(done[1][-1])
    ]
    ends = [_rounds(problem, experts, is_whole=False) for experts in finalists]
    experts, divergences = min(ends, key=lambda done: done[1][-1])
    labels = _whole(problem, experts)[0]
    return Reduction(experts, _gate(problem, experts, labels, W), labels, tuple(divergences))


def _few(S: int, p: int) -> IntArray:
    """Return some of the support points, spread evenly, since they come model by model."""
    count = min(S, max(FEW_POINTS, 4 * p))
    chosen: IntArray = np.linspace(0, S - 1, count).astype(np.int64)
    return chosen


def _starts(problem: Problem, sketch: Problem, K: int, seed: int) -> list[Experts]:
    """Return starts: the experts of models that are near to the others', and random local experts."""
    linear = problem.linear()
    owners, masses = problem.local.owners, problem.shares.sum(axis=0)
    own = [problem.local.of_model(m) for m in range(owners[-1] + 1)]
    whole = [linear.part(each) for each in own if len(each) == K]
    whole.sort(key=lambda experts: float(_whole(sketch, experts)[1].sum()))
    starts = whole[:MIDDLE]
    rng = np.random.default_rng(seed)
    for _ in range(CLUSTERINGS):
        chosen = [int(rng.choice(len(masses), p=masses / masses.sum()))]
        costs = np.full(len(masses), np.inf)
        while len(chosen) < K:
            found = (sketch.shares * sketch.divergence(linear, chosen[-1])).sum(axis=0)
            costs = np.maximum(np.minimum(costs, found), 0.0)
            costs[chosen] = 0.0
            # Locals that say the same leave nothing to choose by.
            total = costs.sum()
            odds = costs / total if total > 0.0 else np.where(np.isin(np.arange(len(costs)), chosen), 0.0, 1.0)
            chosen.append(int(rng.choice(len(masses), p=odds / odds.sum())))
        starts.append(linear.part(np.array(chosen)))
    return starts


def _whole(problem: Problem, experts: Experts) -> tuple[IntArray, FloatArray]:
    """Return the reduced expert that each local one is nearest to, (L,), and what that costs."""
    K = len(experts.coefficients)
    costs = np.stack([(problem.shares * problem.divergence(experts, k)).sum(axis=0) for k in range(K)])
    return costs.argmin(axis=0), costs.min(axis=0)


def _rounds(problem: Problem, experts: Experts, *, is_whole: bool) -> tuple[Experts, list[float]]:
    """Return the experts of least divergence that are reached from a start, and the divergences on the way.

    The divergence falls with each round, but for rounds in which an empty expert is seeded anew, with the local expert
    that is farthest from all.

    Args:
        problem: the local experts.
        experts: the start.
        is_whole: whether each local expert goes to one reduced expert at all points.
    """
    S, K = len(problem.R), len(experts.coefficients)
    divergences: list[float] = []
    is_reseeded = np.zeros(K, dtype=np.bool_)
    assign = partial(_whole, problem) if is_whole else problem.divergences
    for _ in range(MOST_ROUNDS):
        nearest, costs = assign(experts)
        divergences.append(float(costs.sum()) / S)
        moved, masses = problem.moved(nearest, experts)
        empty = np.flatnonzero((masses < LEAST_SHARE) & ~is_reseeded)
        if not len(empty) and len(divergences) > 1 and divergences[-2] - divergences[-1] <= TOLERANCE * divergences[-2]:
            return experts, divergences
        left = costs if costs.ndim == 1 else costs.sum(axis=0)
        for k in empty:
            worst = int(left.argmax())
            part = np.where(np.arange(len(left)) == worst, problem.shares, 0.0)
            seeded = problem.nearest(part, experts.part(slice(k, k + 1)))
            for array, new in zip(moved, seeded, strict=True):
                array[k] = new[0]
            left[worst] = 0.0
            is_reseeded[k] = True
        experts = moved
    divergences.append(float(assign(experts)[1].sum()) / S)
    return experts, divergences


def _gate(problem: Problem, experts: Experts, labels: IntArray, W: FloatArray) -> FloatArray:
    """Return the gate's coefficients (K, p_w), of the mean of the models' logits."""
    K = len(experts.coefficients)
    gate: FloatArray = np.zeros((K - 1, W.shape[1]))
    if len(np.unique(labels)) < K:
        nearest, _ = problem.divergences(experts)
        shares = np.stack([np.where(nearest == k, problem.shares, 0.0).sum(axis=1) for k in range(K)], axis=1)
        fit_to_shares(gate, shares, W, reference=K - 1)
    else:
        logs, is_linear = _pooled(problem.local, labels, K)
        gate[:] = np.linalg.lstsq(W, logs[:, :-1] - logs[:, -1:], rcond=None)[0].T
        if not is_linear:
            fit_to_shares(gate, np.exp(logs), W, reference=K - 1)
    return np.vstack([gate, np.zeros((1, W.shape[1]))])


def _pooled(local: Local, labels: IntArray, K: int) -> tuple[FloatArray, bool]:
    """Return logarithms of the shares of reduced experts, (S, K), and whether they are those of one linear gate.

    Logits are averaged over models that have the same of the reduced experts, and probabilities over the groups of such
    models: an expert that only some have, since only they have seen its region, has no more than their part.
    """
    M = local.parts.shape[1]
    sets: dict[tuple[int, ...], list[int]] = {}
    is_linear = True
    for m in range(M):
        own = labels[local.of_model(m)]
        sets.setdefault(tuple(np.unique(own).tolist()), []).append(m)
        is_linear = is_linear and len(own) == K
    parts, logs = [], []
    for has, models in sets.items():
        weights = local.parts[:, models]
        logits = np.zeros((len(weights), len(has)))
        for m, part in zip(models, weights.T, strict=True):
            own = local.of_model(m)
            of = [np.logaddexp.reduce(local.log_gates[:, own[labels[own] == k]], axis=1) for k in has]
            logits += part[:, None] * np.stack(of, axis=1)
        part = weights.sum(axis=1)
        found = np.full((len(weights), K), -np.inf)
        found[:, has] = log_softmax(logits / np.maximum(part, np.finfo(float).tiny)[:, None])
        parts.append(part)
        logs.append(found)
    is_linear = is_linear and len(sets) == 1 and bool((local.parts == local.parts[:1]).all())
    with np.errstate(divide="ignore"):
        together = np.logaddexp.reduce([np.log(part)[:, None] + each for part, each in zip(parts, logs, strict=True)])
    return np.maximum(together, LEAST_LOG), is_linear


def divergence_between(problem: Problem, found: Reduction, W: FloatArray) -> FloatArray:
    """Return the mean divergence of each model from a reduced mixture, (M,), in nats per event.

    It is that of the gates and of each local expert from the reduced one that it is nearest to: a bound on the
    divergence of the mixtures.

    Args:
        problem: the local experts.
        found: the reduced mixture.
        W: (S, p_w) gate features at the support points.
    """
    local, labels = problem.local, found.labels
    said = found.log_shares(W)
    costs = np.empty(problem.shares.shape)
    for k in range(len(found.gate)):
        costs[:, labels == k] = problem.divergence(found.experts, k)[:, labels == k]
    divergences = np.zeros(int(local.owners[-1]) + 1)
    for m in range(len(divergences)):
        own, points = local.of_model(m), np.flatnonzero(local.parts[:, m] > 0.0)
        logs = local.log_gates[np.ix_(points, own)]
        total = float((np.exp(logs) * costs[np.ix_(points, own)]).sum())
        for k in np.unique(labels[own]):
            part = np.logaddexp.reduce(logs[:, labels[own] == k], axis=1)
            total += float((np.exp(part) * (part - said[points, k])).sum())
        divergences[m] = max(total / max(len(points), 1), 0.0)
    return divergences


def statistics_of(
    family: Family,
    options: LearningOptions,
    theta: Parameters,
    W: FloatArray,
    R: FloatArray,
    *,
    one: Experts,
    n: int,
) -> MMState:
    """Return the state of a mixture that has learned n events, spread like the support points.

    Args:
        family: family of the experts.
        options: those of its steps.
        theta: the mixture.
        W, R: (S, p_w) and (S, p_v) features of the support points.
        one: the one expert that the prior draws to.
        n: number of events.
    """
    S, K, Q = len(W), len(theta.experts), theta.variances.shape[1]
    n_outputs = Q if family.is_metric else theta.experts.shape[1] + 1
    prior = scaled_prior(family, options, W, R, n_outputs)
    coefficients = np.zeros_like(prior.experts)
    coefficients[:, : one.coefficients.shape[2]] = one.coefficients[0]
    prior = prior._replace(
        experts=coefficients,
        variances=np.diag(one.variances[0]).copy() if family.is_metric else prior.variances,
    )
    logits = np.column_stack([W @ theta.gate.T, np.zeros(S)])
    shares, each = np.exp(log_softmax(logits)), n / S
    total = n + prior.strength
    bends = np.ones(S)
    if options.adaptive and K > 1:
        gate_bends(shares, options.bound_share, bends)
    gate_gram = np.empty((W.shape[1], W.shape[1]))
    collect_gram(W, each * bends, prior.strength, prior.gate_gram, total, gate_gram)
    expert_grams = np.empty((K, R.shape[1], R.shape[1]))
    for k in range(K):
        weights = each * shares[:, k]
        if not family.is_metric and options.adaptive:
            probabilities = np.empty((S, n_outputs))
            softmax_rows(theta.experts[k], R, 0, probabilities)
            adaptive_weights(probabilities, bends)
            weights = weights * bends
        collect_gram(R, weights, prior.strength / K, prior.expert_gram, total, expert_grams[k])
    return state_of(theta, prior, n, each * shares.sum(axis=0), gate_gram, expert_grams)
