"""The gradient of the penalized likelihood, and steps along it that always lead to valid parameters.

By Fisher's identity the gradient of log s_θ at θ is that of the complete-data objectives under θ's own
responsibilities, which fall apart into one for the gate and one for each expert.

A direction has the shapes of the parameters. Gate and coefficients are their own coordinates; variances move in
coordinates in which they stay positive, see `Family.moved_variances`.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.engine.em import Em
from streammoe.engine.mixture import no_trace
from streammoe.experts import Parameters
from streammoe.kernels.batch import softmax_gradient, softmax_objective
from streammoe.types import FloatArray


def gradient(em: Em, theta: Parameters, tau: FloatArray) -> Parameters:
    """Return the gradient of `Em.e_step`'s objective, per event, given the responsibilities (n, K) at θ."""
    n = len(tau)
    targets = tau * em.buffer.weights[:, None]
    by_gate = np.empty_like(theta.gate)
    softmax_gradient(
        theta.gate,
        em.prior.strength,
        em.prior.gate_gram,
        np.zeros_like(theta.gate),
        em.options.curvature,
        targets,
        em.buffer.W,
        len(theta.gate),
        by_gate,
    )
    by_experts, by_variances = em.family.gradient(theta, em.prior, em.options, targets, em.buffer.R, em.buffer.Y)
    return Parameters(by_gate / n, by_experts / n, by_variances / n)


def gate_objective(em: Em, gate: FloatArray, tau: FloatArray) -> float:
    """Return the gate's complete-data objective under responsibilities (n, K), per event."""
    total = softmax_objective(
        gate,
        em.prior.strength,
        em.prior.gate_gram,
        np.zeros_like(gate),
        em.options.curvature,
        tau * em.buffer.weights[:, None],
        em.buffer.W,
        len(gate),
    )
    return float(total) / len(tau)


def expert_objective(em: Em, theta: Parameters, k: int, tau: FloatArray) -> float:
    """Return the complete-data objective of expert k under responsibilities (n, K), per event."""
    family, (W, R, Y, weights), prior, options = em
    n, K = len(tau), tau.shape[1]
    alone = Parameters(np.empty((0, W.shape[1])), theta.experts[k : k + 1], theta.variances[k : k + 1])
    losses = np.empty(n)
    predictions = np.empty((n, Y.shape[1] if family.is_metric else theta.experts.shape[1] + 1))
    family.score_rows(*alone, W, R, Y, losses, predictions, np.empty((n, 1)), no_trace())
    # A single expert would get the whole prior; here each has a K-th of it.
    penalty = family.log_prior(alone, prior._replace(strength=prior.strength / K), options)
    return float(penalty - np.sum(tau[:, k] * weights * losses)) / n


def moved(
    em: Em, theta: Parameters, direction: Parameters, gate_step: float, expert_steps: FloatArray | float
) -> Parameters:
    """Return θ after a step along a direction; `expert_steps` is one number for all experts, or (K,)."""
    steps = np.broadcast_to(np.asarray(expert_steps, np.float64), (len(theta.experts),))
    by_variances = direction.variances * steps.reshape(-1, *[1] * (theta.variances.ndim - 1))
    return Parameters(
        theta.gate + gate_step * direction.gate,
        theta.experts + steps[:, None, None] * direction.experts,
        np.ascontiguousarray(em.family.moved_variances(theta.variances, by_variances)),
    )


def squared_norm(*parts: FloatArray) -> float:
    """Return the sum of the squares of all entries."""
    return math.fsum(float(np.sum(part * part)) for part in parts)
