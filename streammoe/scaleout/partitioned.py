"""EM over rows that lie in several parts, wherever those are, of which only sums are brought together.

A round is one pass over the parts: of the responsibilities each returns sums, and the M-step is taken from the total,
with the prior counted once. Experts in closed form are fitted as by `streammoe.engine.em`; softmax blocks move by one
Newton step a round, half as far until the likelihood does not fall (Lange, JRSS B 57, 1995, has shown that this is as
fast as to run them to convergence in each round, and the end is the same).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from streammoe.engine.batch import Descent, Listener, Point, descend, point_at
from streammoe.engine.em import Em, shortened, state_of
from streammoe.engine.interruption import uncancellable
from streammoe.engine.state import UnsoundError, sound
from streammoe.experts import Family, Parameters
from streammoe.experts.on_sums import Sums, gate_prior, softmax_step, sums_of_softmax
from streammoe.kernels.batch import (
    HALVINGS,
    collect_gram,
    gate_bends,
    majorize_softmax,
    softmax_objective,
    softmax_rows,
)
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.types import FloatArray


class Parts(Protocol):
    """Rows in parts, none of which is empty, with EM under a prior of strength 0 on each."""

    n: int
    """Number of rows."""

    def total(self, sums: Callable[..., Sums], *arguments: Any) -> Sums:
        """Call a function of this module with EM on each part and the arguments, and return the sum of the results.

        They are added in an order that depends on the number of the parts alone.
        """


# -- Sums of a part ----------------------------------------------------------------------------------------------------


def round_sums(em: Em, theta: Parameters) -> Sums:
    """Return the log-likelihood, and what steps of the gate and the experts need."""
    (_, R, Y, _), family = em.buffer, em.family
    theta = Parameters(*theta)
    objective, tau = em.e_step(theta)
    tau *= em.buffer.weights[:, None]
    return (
        np.array([len(tau) * objective]),
        *sums_of_softmax(theta.gate, tau, em.buffer.W, len(theta.gate)),
        *family.step_sums(theta, tau, R, Y),
    )


def settle_sums(em: Em, theta: Parameters) -> Sums:
    """Return what `statistics` needs: of the gate, of how often features are not 0, and of the experts."""
    family, (W, R, Y, weights), _, options = em
    theta = Parameters(*theta)
    K, p = len(theta.experts), W.shape[1]
    tau = em.e_step(theta)[1] * weights[:, None]
    shares = np.empty_like(tau)
    softmax_rows(theta.gate, W, K - 1, shares)
    curvatures = np.ones(len(W))
    if options.adaptive and K > 1:
        gate_bends(shares, options.bound_share, curvatures)
    gram = np.empty((p, p))
    collect_gram(W, curvatures * weights, 0.0, np.zeros(p), 1.0, gram)
    pushes = np.einsum("ik,ij->kj", (shares * weights[:, None] - tau)[:, :-1], W)
    counts = [(X != 0.0).sum(axis=0).astype(np.float64) for X in (W, R)]
    return (gram, pushes, tau.sum(axis=0), *counts, *family.settle_sums(theta, options, tau, R, Y))


def gate_objective(em: Em, theta: Parameters, gate: FloatArray) -> Sums:
    """Return what a gate explains of the responsibilities at θ."""
    tau = em.e_step(Parameters(*theta))[1] * em.buffer.weights[:, None]
    no_prior = 0.0, np.zeros(gate.shape[1]), np.zeros_like(gate), em.options.curvature
    return (np.array([softmax_objective(gate, *no_prior, tau, em.buffer.W, len(gate))]),)


# -- EM on all parts ---------------------------------------------------------------------------------------------------


class PartitionedEm(NamedTuple):
    """EM as `streammoe.engine.em.Em`, on rows in parts."""

    family: Family
    parts: Parts
    prior: Prior
    options: LearningOptions

    def work(self, n_experts: int) -> float:
        """Return 0: others do the work, and waiting for them can be interrupted as it is."""
        return 0.0

    def e_step(self, theta: Parameters) -> tuple[float, tuple[Sums, Sums]]:
        """Return the penalized log-likelihood per event, and what steps of gate and experts need."""
        family, parts, prior, options = self
        (total,), *sums = parts.total(round_sums, tuple(theta))
        penalty = family.log_prior(theta, prior, options) - gate_prior(prior, options, theta.gate).penalty(theta.gate)
        return (penalty + float(total)) / parts.n, (tuple(sums[:2]), tuple(sums[2:]))


def one_pass(em: PartitionedEm, point: Any) -> Point | None:
    """Take one step of the gate, and of experts of classes, in a round, with no pass over the rows but the E-step."""
    (gate, experts), theta = point.tau, point.theta.copied()
    softmax_step(theta.gate, gate_prior(em.prior, em.options, theta.gate), gate)
    em.family.step_on_sums(theta, em.prior, em.options, experts)
    for _ in range(HALVINGS):
        after = point_at(em, theta.copied())
        if after.objective >= point.objective:
            return after
        # Steps in closed form never lower the likelihood.
        theta.gate[:] = 0.5 * (theta.gate + point.theta.gate)
        if not em.family.is_metric:
            theta.experts[:] = 0.5 * (theta.experts + point.theta.experts)
    return None


def fit(
    em: PartitionedEm, theta: Parameters, *, rounds: int, tolerance: float, on_round: Listener | None = None
) -> tuple[Descent, MMState]:
    """Run EM from one start; arguments and result as in `streammoe.engine.batch.fit`.

    Raises:
        UnsoundError: the fit is not finite.
    """
    with np.errstate(all="ignore"):  # the result is checked instead
        descent = descend(em, theta, one_pass, rounds=rounds, tolerance=tolerance, on_round=on_round)
        if descent is None:
            raise UnsoundError(["likelihood of every start"])
        streamed = em._replace(prior=em.prior._replace(strength=em.options.prior_strength))
        with uncancellable():
            state = statistics(streamed, descent.theta.copied())
    return descent, sound(state)


def statistics(em: PartitionedEm, theta: Parameters) -> MMState:
    """Return the state at s_0, as `streammoe.engine.em.statistics_at` does; θ is changed in place."""
    family, parts, prior, options = em
    n, K = parts.n, len(theta.experts)
    total = n + prior.strength
    start = theta.copied()
    gram, pushes, masses, in_gate, in_experts, *sums = parts.total(settle_sums, tuple(start))
    expert_grams = family.settle_on_sums(theta, prior, options, tuple(sums), n)
    gate_gram = (gram + np.diag(prior.strength * prior.gate_gram)) / total
    own = gate_prior(prior, options, theta.gate)
    # The sums of pushes times features take the place of rows: each is a row of weight 1 of one logit.
    majorize_softmax(theta.gate, gate_gram, *own, np.eye(K - 1), pushes, total)

    def objective(gate: FloatArray) -> float:
        return float(parts.total(gate_objective, tuple(start), gate)[0][0]) - own.penalty(gate)

    if options.bound_share < 1.0:
        shortened(start.gate, theta.gate, objective)
    features = int(np.sum(in_gate > 0)), int(np.sum(in_experts > 0))
    return state_of(theta, prior, n, masses, gate_gram, expert_grams, features)
