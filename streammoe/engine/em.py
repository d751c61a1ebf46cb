"""EM on a buffer, and the statistics from which streaming continues."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streammoe.columns.outliers import MAX_ERROR_SHARE, winsorised
from streammoe.engine.cost import Shape, row_cost
from streammoe.engine.interruption import interruptible
from streammoe.engine.jobs import Job, run_job
from streammoe.engine.mixture import NO_TRACE
from streammoe.engine.state import state_at
from streammoe.experts import Family, Parameters
from streammoe.experts.on_sums import gate_prior
from streammoe.kernels.batch import (
    HALVINGS,
    collect_gram,
    fit_softmax,
    gate_bends,
    majorize_softmax,
    softmax_objective,
    softmax_rows,
)
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.types import BoolArray, FloatArray

TOLERANCE = 1e-7
PRIOR_ROUNDS = 20
"""Rounds of the one-expert fit that gives the prior its coefficients and variances."""
UNDER_ROUNDS = 6
"""Rounds of a fit of experts to given responsibilities."""
COLDEST = 0.3
"""Initial power of the responsibilities in an annealed start; it rises to 1 over 60 % of the rounds."""
PIECE = 2e7
"""Multiply-adds of a round from which its experts are fitted one by one, as pieces of a job."""
ITERATES_A_ROW = 0.5
"""How many iterates a fit counts for in the served average, per row beyond its parameters: it is more precise than the
raw iterates that follow, which vary with single events, unless it had hardly more rows than parameters."""


class Buffer(NamedTuple):
    """Rows to fit."""

    W: FloatArray
    """(n, p_w) gate features."""
    R: FloatArray
    """(n, p_v) expert features."""
    Y: FloatArray
    """(n, Q) targets, or (n, 1) class indexes."""
    weights: FloatArray
    """(n,)"""

    def rows(self, chosen: BoolArray) -> Buffer:
        """Return the selected rows."""
        return Buffer(*(np.ascontiguousarray(array[chosen]) for array in self))


def scaled_prior(family: Family, options: LearningOptions, W: FloatArray, R: FloatArray, n_outputs: int) -> Prior:
    """Return the prior of a model that has seen nothing but the scale of these features."""
    prior = family.unit_prior(options.prior_strength, W.shape[1], R.shape[1], n_outputs)
    gate, experts = (np.mean(X * X, axis=0) for X in (W, R))
    return prior._replace(
        gate_gram=np.where(gate > VANISHED, gate, 1.0), expert_gram=np.where(experts > VANISHED, experts, 1.0)
    )


def one_expert_prior(family: Family, buffer: Buffer, n_outputs: int, options: LearningOptions) -> Job[Prior]:
    """Derive the prior from a buffer: the scale of the features, and a fit of one expert to the targets.

    The prior does not fade, so a single absurd value in the buffer must not affect it: columns are winsorized first.
    """
    R, weights = winsorised(buffer.R), buffer.weights
    W = R if buffer.W is buffer.R else winsorised(buffer.W)
    Y = winsorised(buffer.Y, share=MAX_ERROR_SHARE) if family.is_metric else buffer.Y
    prior = scaled_prior(family, options, W, R, n_outputs)._replace(variance_floor=options.variance_floor)
    one = Parameters(
        np.zeros((0, W.shape[1])),
        np.zeros((1, *prior.experts.shape)),
        family.variances_of(family.first_variances(Y), 1),
    )
    tau = np.ascontiguousarray(weights[:, None])
    work = len(W) * row_cost(family, Shape(1, len(prior.experts), W.shape[1], R.shape[1]))
    # The same fit, if some more rounds at its end that hardly move anything.
    at_once = max(min(int(PIECE / work), PRIOR_ROUNDS), 1)
    for at in range(0, PRIOR_ROUNDS, at_once):
        rounds = min(at_once, PRIOR_ROUNDS - at)
        interruptible(rounds * work, family.fit_experts, one, family.start_prior(prior), options, tau, R, Y, rounds)
        yield rounds * work
    variances = one.variances[0]
    # The prior keeps only the diagonal of a covariance: it must not vanish where outputs depend on each other.
    variances = np.diag(variances).copy() if variances.ndim == 2 else variances
    return prior._replace(experts=one.experts[0], variances=variances)


class Em(NamedTuple):
    """EM ([MD] Algorithm 1) with a prior, on a buffer; every step can be interrupted by a signal."""

    family: Family
    buffer: Buffer
    prior: Prior
    options: LearningOptions

    def work(self, n_experts: int, *, has_matrices: bool = False) -> float:
        """Estimate the multiply-adds of a round with so many experts, or of `statistics`; see `row_cost`."""
        shape = Shape(n_experts, len(self.prior.experts), self.buffer.W.shape[1], self.buffer.R.shape[1])
        return float(len(self.buffer.R) * row_cost(self.family, shape, has_matrices=has_matrices))

    def e_step(self, theta: Parameters) -> tuple[float, FloatArray]:
        """Return the penalized log-likelihood per event, and responsibilities (n, K)."""
        losses, tau = self._score(theta)
        penalty = gate_prior(self.prior, self.options, theta.gate).penalty(theta.gate)
        total = self.family.log_prior(theta, self.prior, self.options) - penalty
        return (total - float(np.sum(self.buffer.weights * losses))) / len(losses), tau

    def losses(self, theta: Parameters) -> FloatArray:
        """Return −log s(y|x) of each row, (n,), without the prior."""
        return self._score(theta)[0]

    def _score(self, theta: Parameters) -> tuple[FloatArray, FloatArray]:
        """Return `losses`, and responsibilities (n, K)."""
        return interruptible(self.work(len(theta.experts)), self._score_now, theta)

    def _score_now(self, theta: Parameters) -> tuple[FloatArray, FloatArray]:
        W, R, Y, _ = self.buffer
        n = len(W)
        losses = np.empty(n)
        tau = np.empty((n, len(theta.experts)))
        predictions = np.empty((n, Y.shape[1] if self.family.is_metric else theta.experts.shape[1] + 1))
        self.family.score_rows(*theta, W, R, Y, losses, predictions, tau, NO_TRACE)
        return losses, tau

    def m_step(self, theta: Parameters, tau: FloatArray, rounds: int = 1) -> None:
        """Fit experts and gate to responsibilities, in place."""
        interruptible(rounds * self.work(len(theta.experts)), self._m_step_now, theta, tau, rounds)

    def _m_step_now(self, theta: Parameters, tau: FloatArray, rounds: int) -> None:
        tau = tau * self.buffer.weights[:, None]
        self.family.fit_experts(theta, self.prior, self.options, tau, self.buffer.R, self.buffer.Y, rounds)
        self.fit_gate(theta, tau, rounds)

    def fit_gate(self, theta: Parameters, tau: FloatArray, rounds: int) -> None:
        """Fit the gate alone to responsibilities times weights, in place."""
        work, gate = rounds * self.work(len(theta.experts)), theta.gate
        own = gate_prior(self.prior, self.options, gate)
        interruptible(work, fit_softmax, gate, *own, tau, self.buffer.W, len(gate), rounds)

    def run(self, theta: Parameters, rounds: int) -> float:
        """Run rounds in place until the gain per event is below `TOLERANCE`; return the penalized log-likelihood."""
        return run_job(self.rounds(theta, rounds))

    def rounds(self, theta: Parameters, rounds: int, tolerance: float = TOLERANCE) -> Job[float]:
        """Run rounds as `run` does, in pieces, until the gain per event is below a tolerance."""
        best = -np.inf
        for _ in range(rounds):
            total, tau = self.e_step(theta)
            if not total - best > tolerance:
                yield self.work(len(theta.experts))
                return max(total, best)
            best = total
            yield from self.m_step_in_pieces(theta, tau)
        return best

    def m_step_in_pieces(self, theta: Parameters, tau: FloatArray) -> Job[None]:
        """Fit experts and gate to responsibilities, in place; in a large round, one after the other."""
        K = len(theta.experts)
        work = self.work(K)
        if work <= PIECE:
            self.m_step(theta, tau)
            yield work
            return
        tau = tau * self.buffer.weights[:, None]
        yield from self._fit_each(theta, tau, 1)
        self.fit_gate(theta, tau, 1)
        yield work / (K + 1)

    def _fit_each(self, theta: Parameters, tau: FloatArray, rounds: int) -> Job[None]:
        """Fit the experts one after the other to responsibilities times weights, in place."""
        K = len(theta.experts)
        work = self.work(K) / (K + 1)
        share = self.prior._replace(strength=self.prior.strength / K)
        for k in range(K):
            one = Parameters(theta.gate[:0], theta.experts[k : k + 1], theta.variances[k : k + 1])
            own = np.ascontiguousarray(tau[:, k : k + 1])
            for _ in range(rounds):
                interruptible(
                    work, self.family.fit_experts, one, share, self.options, own, self.buffer.R, self.buffer.Y, 1
                )
                yield work

    def anneal(self, theta: Parameters, rounds: int) -> Job[None]:
        """Run rounds in place with softened responsibilities, so that no expert commits itself early."""
        for at in range(rounds):
            power = min(COLDEST + (1.0 - COLDEST) * at / (0.6 * rounds), 1.0)
            _, tau = self.e_step(theta)
            tau **= power
            tau /= tau.sum(axis=1, keepdims=True)
            yield from self.m_step_in_pieces(theta, tau)

    def fitted_to(self, tau: FloatArray) -> Job[Parameters]:
        """Return experts fitted to responsibilities, with a gate of zeros."""
        K = tau.shape[1]
        work = UNDER_ROUNDS * self.work(K)
        prior = self.prior
        theta = Parameters(
            np.zeros((K - 1, self.buffer.W.shape[1])),
            np.repeat(prior.experts[None], K, axis=0),
            self.family.variances_of(prior.variances, K),
        )
        tau = tau * self.buffer.weights[:, None]
        if work > PIECE:
            yield from self._fit_each(theta, tau, UNDER_ROUNDS)
            return theta
        self.family.fit_experts(theta, prior, self.options, tau, self.buffer.R, self.buffer.Y, UNDER_ROUNDS)
        yield work
        return theta


def statistics_at(em: Em, theta: Parameters) -> MMState:
    """Return the state at s_0: the average of S̄ over the buffer at θ, with the prior as `prior.strength` more rows."""
    return run_job(statistics(em, theta))


def statistics(em: Em, theta: Parameters) -> Job[MMState]:
    """Return the state as `statistics_at` does, in pieces: in a large round, one for each expert and the gate."""
    K = len(theta.experts)
    _, tau = em.e_step(theta)
    tau *= em.buffer.weights[:, None]
    shares = np.empty_like(tau)
    softmax_rows(theta.gate, em.buffer.W, K - 1, shares)
    work = em.work(K, has_matrices=True)
    if work <= PIECE:
        expert_grams = em.family.settle(theta, em.prior, em.options, tau, em.buffer.R, em.buffer.Y)
        state = _settled(em, theta, tau, shares, expert_grams)
        yield work
        return state
    work /= K + 1
    expert_grams = yield from _settle_each(em, theta, tau, work)
    state = interruptible(work, _settled, em, theta, tau, shares, expert_grams)
    yield work
    return state


def _settle_each(em: Em, theta: Parameters, tau: FloatArray, work: float) -> Job[FloatArray]:
    """Return what the family's `settle` does, one expert after the other, which is so much work each."""
    family, (_, R, Y, _), prior, options = em
    n, K = tau.shape
    share = prior._replace(strength=prior.strength / K)
    grams = []
    for k in range(K):
        one = Parameters(theta.gate[:0], theta.experts[k : k + 1], theta.variances[k : k + 1])
        own = np.ascontiguousarray(tau[:, k : k + 1])
        grams.append(interruptible(work, family.settle, one, share, options, own, R, Y)[0])
        yield work
    # One expert alone divides by the rows and its own share of the prior.
    found: FloatArray = np.stack(grams) * ((n + share.strength) / (n + prior.strength))
    return found


def _settled(em: Em, theta: Parameters, tau: FloatArray, shares: FloatArray, expert_grams: FloatArray) -> MMState:
    """Take the gate's step, and return the state; the experts' step has been taken.

    Args:
        em: the rows and the prior.
        theta: changed in place.
        tau: (n, K) responsibilities times weights, and `shares`, (n, K), the gate's, both before any step.
        expert_grams: (K, p_v, p_v)
    """
    _, (W, _, _, weights), prior, options = em
    n, K = tau.shape
    total = n + prior.strength
    curvatures = np.ones(n)
    if options.adaptive and K > 1:
        gate_bends(shares, options.bound_share, curvatures)
    gate_gram = np.empty((W.shape[1], W.shape[1]))
    collect_gram(W, curvatures * weights, prior.strength, prior.gate_gram, total, gate_gram)
    pushes = np.ascontiguousarray((shares * weights[:, None] - tau)[:, :-1])
    before, own = theta.gate.copy(), gate_prior(prior, options, theta.gate)
    majorize_softmax(theta.gate, gate_gram, *own, pushes, W, total)

    def objective(gate: FloatArray) -> float:
        return float(softmax_objective(gate, *own, tau, W, len(gate)))

    if options.bound_share < 1.0:
        shortened(before, theta.gate, objective)
    p_w, p_v = (int(np.any(X != 0.0, axis=0).sum()) for X in (W, em.buffer.R))
    return state_of(theta, prior, n, tau.sum(axis=0), gate_gram, expert_grams, (p_w, p_v))


def state_of(
    theta: Parameters,
    prior: Prior,
    n: int,
    masses: FloatArray,
    gate_gram: FloatArray,
    expert_grams: FloatArray,
    features: tuple[int, int] = (0, 0),
) -> MMState:
    """Return the state at θ that has learned n rows, with the prior as `prior.strength` more.

    Args:
        theta: θ.
        prior: the prior.
        n: number of rows.
        masses: (K,) sums of responsibilities times weights.
        gate_gram, expert_grams: averages of the curvature, with the prior.
        features: numbers of features of gate and experts that are not always 0; others add no parameters.
    """
    (K, N, _), (p_w, p_v), total = theta.experts.shape, features, n + prior.strength
    n_free = (K - 1) * p_w + K * N * p_v + theta.variances.size
    state = state_at(
        gate=theta.gate,
        experts=theta.experts,
        variances=theta.variances,
        masses=(masses + prior.strength / K) / total,
        gate_gram=gate_gram,
        expert_grams=expert_grams,
        prior=prior,
        n=n,
        prior_weight=prior.strength / total,
    )
    return state._replace(n_average=np.array([max(int(ITERATES_A_ROW * (n - n_free)), 1)]))


def shortened(before: FloatArray, gate: FloatArray, objective: Callable[[FloatArray], float]) -> None:
    """Halve the step from `before` to `gate`, in place, until it does not lower what the gate explains.

    A curvature below the bound promises no gain of the full step, but its direction is one of ascent.
    """
    least = objective(before)
    for _ in range(HALVINGS):
        if objective(gate) >= least:
            return
        gate += 0.5 * (before - gate)
    gate[:] = before
