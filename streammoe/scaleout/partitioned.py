"""Exact EM over rows that lie in several parts, wherever those are.

A round is a few sums over the parts: of the E-step, and of each step that fits the experts and the gate to its
responsibilities. The M-step is taken from the sums, with the prior counted once. So parameters after every round are
those of `streammoe.engine.em` on all rows together, up to rounding, and the same bit for bit as long as the parts are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streammoe.engine.batch import Descent, Listener, descend
from streammoe.engine.em import Em, iterates, shortened
from streammoe.engine.gradient import gradient
from streammoe.engine.interruption import uncancellable
from streammoe.engine.state import MMState, UnsoundError, is_sound, state_at, unsound_parts
from streammoe.experts import Family, Parameters
from streammoe.experts.on_sums import SoftmaxPrior, Sums, sent, softmax_fit, sums_of_softmax
from streammoe.kernels.batch import (
    collect_gram,
    gate_bends,
    majorize_softmax,
    prior_quadratic,
    softmax_gradient,
    softmax_objective,
    softmax_rows,
)
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.types import FloatArray

Step: TypeAlias = Callable[..., Any]
"""A function of this module: of EM on the rows of a part, of what an earlier step kept of it, and of arrays."""


class Parts(ABC):
    """Rows in parts, none of which is empty, with EM under a prior of strength 0 on each."""

    n: int
    """Number of rows."""

    @abstractmethod
    def kept(self, step: Step, *arguments: Any) -> Any:
        """Do a step on each part, and keep the results where the parts are; returns something that stands for them."""

    @abstractmethod
    def total(self, step: Step, kept: Any, *arguments: Any) -> Sums:
        """Do a step on each part, with what was kept of it, and return the sum of the results.

        They are added in an order that depends on the number of the parts alone.
        """


def added_in_turn(each: Sequence[Sums]) -> Sums:
    """Add sums one after the other."""
    first, *others = each
    for other in others:
        first = tuple(a + b for a, b in zip(first, other, strict=True))
    return first


# -- Steps on a part ---------------------------------------------------------------------------------------------------


def e_step(em: Em, theta: Parameters) -> tuple[FloatArray, Sums]:
    """Return responsibilities times weights, (n, K), and the sums of `first_sums`."""
    theta = Parameters(*theta)
    n = len(em.buffer.W)
    objective, tau = em.e_step(theta)
    slope = gradient(em, theta, tau)
    tau *= em.buffer.weights[:, None]
    return tau, (np.array([n * objective]), *(n * part for part in slope), *_m_sums(em, tau, theta.gate, theta))


def first_sums(_: Em, kept: tuple[FloatArray, Sums]) -> Sums:
    """Return the log-likelihood, its gradient in θ, and the sums of `gate_sums` and `expert_sums` at θ."""
    return kept[1]


def gate_sums(em: Em, kept: tuple[FloatArray, Sums], gate: FloatArray) -> Sums:
    """Return what a step of the gate needs, see `sums_of_softmax`."""
    return sums_of_softmax(gate, kept[0], em.buffer.W, len(gate))


def expert_sums(em: Em, kept: tuple[FloatArray, Sums], theta: Parameters) -> Sums:
    """Return what a step of the experts needs, see `Family.step_sums`."""
    return em.family.step_sums(Parameters(*theta), kept[0], em.buffer.R, em.buffer.Y)


def both_sums(em: Em, kept: tuple[FloatArray, Sums], gate: FloatArray, theta: Parameters) -> Sums:
    """Return `gate_sums` and `expert_sums`."""
    return _m_sums(em, kept[0], gate, Parameters(*theta))


def _m_sums(em: Em, tau: FloatArray, gate: FloatArray, theta: Parameters) -> Sums:
    return (
        *sums_of_softmax(gate, tau, em.buffer.W, len(gate)),
        *em.family.step_sums(theta, tau, em.buffer.R, em.buffer.Y),
    )


def settle_sums(em: Em, kept: tuple[FloatArray, Sums], theta: Parameters) -> Sums:
    """Return what `statistics` needs: of the gate, of how often features are not 0, and of the experts."""
    family, (W, R, Y, weights), _, options = em
    theta, tau = Parameters(*theta), kept[0]
    K, p = tau.shape[1], W.shape[1]
    shares = np.empty_like(tau)
    softmax_rows(theta.gate, W, K - 1, shares)
    curvatures = np.ones(len(W))
    if options.adaptive and K > 1:
        gate_bends(shares, options.bound_share, curvatures)
    gram = np.empty((p, p))
    collect_gram(W, curvatures * weights, 0.0, np.zeros(p), 1.0, gram)
    pushes = np.empty_like(theta.gate)
    softmax_gradient(theta.gate, 0.0, np.zeros(p), np.zeros_like(theta.gate), options.curvature, tau, W, K - 1, pushes)
    counts = [(X != 0.0).sum(axis=0).astype(np.float64) for X in (W, R)]
    return (gram, -pushes, tau.sum(axis=0), *counts, *family.settle_sums(theta, options, tau, R, Y))


def gate_objective(em: Em, kept: tuple[FloatArray, Sums], gate: FloatArray) -> Sums:
    """Return what the gate explains of the responsibilities."""
    no_prior = 0.0, np.zeros(gate.shape[1]), np.zeros_like(gate), em.options.curvature
    return (np.array([softmax_objective(gate, *no_prior, kept[0], em.buffer.W, len(gate))]),)


# -- EM on all parts ---------------------------------------------------------------------------------------------------


class Expected(NamedTuple):
    """The result of an E-step: what was kept of it where the parts are, and its sums."""

    kept: Any
    slope: Parameters
    """The gradient of the objective, per event."""
    gate: Sums
    experts: Sums


class PartitionedEm(NamedTuple):
    """EM as `streammoe.engine.em.Em`, on rows in parts."""

    family: Family
    parts: Parts
    prior: Prior
    options: LearningOptions

    def work(self, n_experts: int) -> float:
        """Return 0: others do the work, and waiting for them can be interrupted as it is."""
        return 0.0

    def e_step(self, theta: Parameters) -> tuple[float, Expected]:
        """Return the penalized log-likelihood per event, and the rest of the E-step."""
        n, parts, prior = self.parts.n, self.parts, self.prior
        kept = parts.kept(e_step, tuple(theta))
        (total,), *sums = parts.total(first_sums, kept)
        zeros = np.zeros_like(theta.gate)
        bent = prior_quadratic(theta.gate, zeros, prior.gate_gram, self.options.curvature)
        penalty = self.family.log_prior(theta, prior, self.options) - 0.5 * prior.strength * bent
        by_prior = self._prior_slope(theta)
        slope = Parameters(*((a + b) / n for a, b in zip(sums[:3], by_prior, strict=True)))
        return (penalty + float(total)) / n, Expected(kept, slope, tuple(sums[3:6]), tuple(sums[6:]))

    def _prior_slope(self, theta: Parameters) -> Parameters:
        """Return the gradient of the prior's part of the objective."""
        family, prior, options = self.family, self.prior, self.options
        K, _, p_v = theta.experts.shape
        no_tau, no_Y = np.zeros((0, K)), np.zeros((0, len(prior.variances) if family.is_metric else 1))
        by_gate, zeros = np.empty_like(theta.gate), np.zeros_like(theta.gate)
        no_W = np.zeros((0, theta.gate.shape[1]))
        softmax_gradient(
            theta.gate, prior.strength, prior.gate_gram, zeros, options.curvature, no_tau, no_W, K - 1, by_gate
        )
        return Parameters(by_gate, *family.gradient(theta, prior, options, no_tau, np.zeros((0, p_v)), no_Y))

    def m_step(self, theta: Parameters, tau: Expected, rounds: int) -> None:
        """Fit experts and gate to the responsibilities of an E-step at θ, in place.

        Neither needs the other's result, so both have their sums taken at once.
        """
        prior, parts = self.prior, self.parts
        of_gate = SoftmaxPrior(prior.strength, prior.gate_gram, np.zeros_like(theta.gate), self.options.curvature)
        gate_fit = softmax_fit(theta.gate, of_gate, rounds)
        expert_fit = self.family.fit_to_sums(theta, prior, self.options, rounds)
        gate, experts = next(gate_fit, None), next(expert_fit, None)
        sums: tuple[Sums, Sums] | None = tau.gate, tau.experts
        while gate is not None or experts is not None:
            if sums is None:
                if experts is None:
                    sums = parts.total(gate_sums, tau.kept, gate), ()
                elif gate is None:
                    sums = (), parts.total(expert_sums, tau.kept, tuple(experts))
                else:
                    both = parts.total(both_sums, tau.kept, gate, tuple(experts))
                    sums = both[:3], both[3:]
            gate = gate if gate is None else sent(gate_fit, sums[0])
            experts = experts if experts is None else sent(expert_fit, sums[1])
            sums = None


def slope_of(_em: PartitionedEm, _theta: Parameters, tau: Expected) -> Parameters:
    """Return the gradient at θ, which came with the E-step."""
    return tau.slope


def fit(
    em: PartitionedEm, theta: Parameters, *, rounds: int, tolerance: float, on_round: Listener | None = None
) -> tuple[Descent, MMState]:
    """Run EM from one start; arguments and result as in `streammoe.engine.batch.fit`.

    Raises:
        UnsoundError: the fit is not finite.
    """
    with np.errstate(all="ignore"):  # the result is checked instead
        descent = descend(em, theta, "em", rounds=rounds, tolerance=tolerance, on_round=on_round, slope_of=slope_of)
        if descent is None:
            raise UnsoundError(["likelihood of every start"])
        streamed = em._replace(prior=em.prior._replace(strength=em.options.prior_strength))
        with uncancellable():
            state = statistics(streamed, descent.theta.copied())
    if not is_sound(state):
        raise UnsoundError(unsound_parts(state))
    return descent, state


def statistics(em: PartitionedEm, theta: Parameters) -> MMState:
    """Return the state at s_0, as `streammoe.engine.em.statistics_at` does; θ is changed in place."""
    family, parts, prior, options = em
    n, K = parts.n, len(theta.experts)
    total = n + prior.strength
    kept = parts.kept(e_step, tuple(theta))
    gram, pushes, masses, in_gate, in_experts, *sums = parts.total(settle_sums, kept, tuple(theta))
    expert_grams = family.settle_on_sums(theta, prior, options, tuple(sums), n)
    gate_gram = (gram + np.diag(prior.strength * prior.gate_gram)) / total
    before, zeros = theta.gate.copy(), np.zeros_like(theta.gate)
    majorize_softmax(
        theta.gate,
        gate_gram,
        prior.strength,
        prior.gate_gram,
        zeros,
        options.curvature,
        np.eye(K - 1),
        pushes,
        total,
    )

    def objective(gate: FloatArray) -> float:
        bent = prior_quadratic(gate, zeros, prior.gate_gram, options.curvature)
        return float(parts.total(gate_objective, kept, gate)[0][0]) - 0.5 * prior.strength * bent

    if options.bound_share < 1.0:
        shortened(before, theta.gate, objective)
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
    return state._replace(
        n_average=np.array([iterates(n, int(np.sum(in_gate > 0)), int(np.sum(in_experts > 0)), theta)])
    )
