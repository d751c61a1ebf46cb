"""Batch fits of Gaussian experts on a buffer of events: EM ([MD] Algorithm 1) with a prior, and K-means for its start.

Compiled and single-threaded rather than left to a BLAS: the same buffer then gives the same fit bit for bit, so that a
stopped and restarted warm-up ends where an uninterrupted one does.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import jit
from streammoe.kernels.gate import bound_mix, softmax
from streammoe.kernels.gaussian import Prior, evaluate
from streammoe.kernels.linalg import add_outer, add_product, invert_spd
from streammoe.types import FloatArray

NEWTON_LIMIT = 300
"""Free gate parameters up to which the gate is fitted by Newton steps; beyond, by majorization steps."""


@jit
def run_em(
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,
    prior: Prior,
    curvature: tuple[float, float],
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    rounds: int,
    tolerance: float,
) -> float:
    """EM rounds in place until the penalised log-likelihood of an event gains less than `tolerance`; return it."""
    n = W.shape[0]
    K, Q = variances.shape
    tau = np.empty((n, K))
    shares = np.empty(K)
    means = np.empty((K, Q))
    best: float = -np.inf
    for _ in range(rounds):
        total: float = log_prior(gate, experts, variances, prior, curvature)
        for i in range(n):
            total -= evaluate(gate, experts, variances, W[i], R[i], Y[i], shares, means, tau[i])
        total /= n
        if not total - best > tolerance:
            return max(total, best)
        best = total
        fit_experts(experts, variances, prior, tau, R, Y)
        if K > 1:
            fit_gate(gate, prior, curvature, tau, W, 2)
    return best


@jit
def log_prior(
    gate: FloatArray, experts: FloatArray, variances: FloatArray, prior: Prior, curvature: tuple[float, float]
) -> float:
    """Log density of the prior's pseudo-events, up to a constant; what EM with this prior climbs besides the data."""
    K, Q = variances.shape
    share = prior.strength / K
    total = -0.5 * prior.strength * bent_square(gate, prior.gate_gram, curvature)
    for k in range(K):
        for q in range(Q):
            square = prior.variances[q]
            for j in range(experts.shape[2]):
                apart = experts[k, q, j] - prior.experts[q, j]
                square += prior.expert_gram[j] * apart * apart
            total -= 0.5 * share * (math.log(variances[k, q]) + square / variances[k, q])
    return total


@jit
def bent_square(gate: FloatArray, gram: FloatArray, curvature: tuple[float, float]) -> float:
    """ω (A ⊗ Λ) ω for a diagonal Λ; A d = (d − c Σd) / a is the inverse of A⁻¹ d = a (d + b Σd)."""
    free = gate.shape[0]
    mix = bound_mix(curvature, free)
    total = 0.0
    for j in range(gram.shape[0]):
        column = 0.0
        square = 0.0
        for k in range(free):
            column += gate[k, j]
            square += gate[k, j] * gate[k, j]
        total += gram[j] * (square - mix * column * column) / curvature[0]
    return total


@jit
def fit_experts(
    experts: FloatArray, variances: FloatArray, prior: Prior, tau: FloatArray, R: FloatArray, Y: FloatArray
) -> None:
    """Weighted least squares of each expert under responsibilities `tau`, in place."""
    K, Q, p = experts.shape
    share = prior.strength / K
    gram = np.empty((p, p))
    inverse = np.empty((p, p))
    scratch = np.empty((p, p))
    pull = np.empty(p)
    for k in range(K):
        mass = share
        gram[:, :] = 0.0
        for j in range(p):
            gram[j, j] = share * prior.expert_gram[j]
        for i in range(R.shape[0]):
            add_outer(gram, R[i], tau[i, k])
            mass += tau[i, k]
        invert_spd(gram, inverse, scratch)
        for q in range(Q):
            theta = experts[k, q]
            # Correcting the old coefficients keeps the rounding of an ill-conditioned inverse out of what fits already.
            for j in range(p):
                pull[j] = share * prior.expert_gram[j] * (prior.experts[q, j] - theta[j])
            for i in range(R.shape[0]):
                weight = tau[i, k] * error_of(theta, R[i], Y[i, q])
                for j in range(p):
                    pull[j] += weight * R[i, j]
            add_product(inverse, pull, theta)
            total = share * prior.variances[q]
            for j in range(p):
                apart = theta[j] - prior.experts[q, j]
                total += share * prior.expert_gram[j] * apart * apart
            for i in range(R.shape[0]):
                error = error_of(theta, R[i], Y[i, q])
                total += tau[i, k] * error * error
            variances[k, q] = max(total / mass, prior.variance_floor * prior.variances[q])


@jit
def error_of(theta: FloatArray, r: FloatArray, y: float) -> float:
    """Y − Υ r."""
    mean = 0.0
    for j in range(r.shape[0]):
        mean += theta[j] * r[j]
    return y - mean


@jit
def gate_objective(
    gate: FloatArray, prior: Prior, curvature: tuple[float, float], tau: FloatArray, W: FloatArray
) -> float:
    """Σ_i Σ_k τ_ik log g_k(x_i) with the gate's prior."""
    K = gate.shape[0] + 1
    logits = np.empty(K)
    total = -0.5 * prior.strength * bent_square(gate, prior.gate_gram, curvature)
    for i in range(W.shape[0]):
        weight = tau[i, K - 1]
        for k in range(K - 1):
            logits[k] = -error_of(gate[k], W[i], 0.0)
            total += tau[i, k] * logits[k]
            weight += tau[i, k]
        logits[K - 1] = 0.0
        total -= weight * softmax(logits)
    return total


@jit
def fit_gate(
    gate: FloatArray, prior: Prior, curvature: tuple[float, float], tau: FloatArray, W: FloatArray, rounds: int
) -> None:
    """Raise the gate's part of the likelihood under responsibilities `tau`, in place, by a few safe steps."""
    free, p = gate.shape
    size = free * p
    newton = size <= NEWTON_LIMIT
    dimension = size if newton else p
    hessian = np.empty((dimension, dimension))
    inverse = np.empty((dimension, dimension))
    scratch = np.empty((dimension, dimension))
    gradient = np.empty((free, p))
    move = np.empty((free, p))
    trial = np.empty((free, p))
    shares = np.empty(free + 1)
    mix = bound_mix(curvature, free)
    old = gate_objective(gate, prior, curvature, tau, W)
    for _ in range(rounds):
        hessian[:, :] = 0.0
        for j in range(p):
            column = 0.0
            for k in range(free):
                column += gate[k, j]
            weight = prior.strength * prior.gate_gram[j]
            for k in range(free):
                gradient[k, j] = -weight * (gate[k, j] - mix * column) / curvature[0]
                if newton:
                    for m in range(free):
                        hessian[k * p + j, m * p + j] = weight * ((k == m) - mix) / curvature[0]
            if not newton:
                hessian[j, j] = weight
        for i in range(W.shape[0]):
            w = W[i]
            for k in range(free):
                shares[k] = -error_of(gate[k], w, 0.0)
            shares[free] = 0.0
            softmax(shares)
            for k in range(free):
                push = tau[i, k] - shares[k]
                for j in range(p):
                    gradient[k, j] += push * w[j]
                if newton:
                    for m in range(k + 1):
                        bend = shares[k] * ((k == m) - shares[m])
                        for j in range(p):
                            scaled = bend * w[j]
                            for c in range(p):
                                hessian[k * p + j, m * p + c] += scaled * w[c]
            if not newton:
                add_outer(hessian, w, 1.0)
        invert_spd(hessian, inverse, scratch)
        move[:, :] = 0.0
        if newton:
            add_product(inverse, gradient.ravel(), move.ravel())
        else:
            for k in range(free):
                add_product(inverse, gradient[k], move[k])
            for j in range(p):
                column = 0.0
                for k in range(free):
                    column += move[k, j]
                for k in range(free):
                    move[k, j] = curvature[0] * (move[k, j] + curvature[1] * column)
        step = 1.0
        for _half in range(12):
            for k in range(free):
                for j in range(p):
                    trial[k, j] = gate[k, j] + step * move[k, j]
            new = gate_objective(trial, prior, curvature, tau, W)
            if new >= old:
                break
            step *= 0.5
        if not new >= old:
            return
        for k in range(free):
            for j in range(p):
                gate[k, j] = trial[k, j]
        old = new


@jit
def kmeans(points: FloatArray, first: int, draws: FloatArray, K: int, rounds: int, tau: FloatArray) -> float:
    """K-means++ and Lloyd's rounds on rows of `points`; hard labels go to `tau` (n, K). Returns the distortion.

    Args:
        points: (n, d).
        first: index of the first centre.
        draws: (K,) uniform numbers in [0, 1) that choose the others.
    """
    n, d = points.shape
    centres = np.empty((K, d))
    nearest = np.full(n, np.inf)
    labels = np.zeros(n, np.int64)
    chosen = first
    for k in range(K):
        if k > 0:
            total = 0.0
            for i in range(n):
                total += nearest[i]
            target = draws[k] * total
            chosen = n - 1
            for i in range(n):
                target -= nearest[i]
                if target < 0.0:
                    chosen = i
                    break
        for j in range(d):
            centres[k, j] = points[chosen, j]
        for i in range(n):
            nearest[i] = min(nearest[i], squared_distance(points[i], centres[k]))
    distortion = np.inf
    for _ in range(rounds):
        total = 0.0
        for i in range(n):
            best = np.inf
            for k in range(K):
                distance = squared_distance(points[i], centres[k])
                if distance < best:
                    best = distance
                    labels[i] = k
            total += best
        if not total < distortion:
            break
        distortion = total
        for k in range(K):
            count = 0
            for i in range(n):
                count += labels[i] == k
            if count == 0:
                continue
            centres[k] = 0.0
            for i in range(n):
                if labels[i] == k:
                    for j in range(d):
                        centres[k, j] += points[i, j] / count
    tau[:, :] = 0.0
    for i in range(n):
        tau[i, labels[i]] = 1.0
    return distortion


@jit
def squared_distance(a: FloatArray, b: FloatArray) -> float:
    """‖a − b‖²."""
    total = 0.0
    for j in range(a.shape[0]):
        total += (a[j] - b[j]) * (a[j] - b[j])
    return total


@jit
def collect_statistics(
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,
    prior: Prior,
    curvature: tuple[float, float],
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    masses: FloatArray,
    gate_gram: FloatArray,
    expert_grams: FloatArray,
) -> None:
    """Form s_0, the average of S̄ over the rows at these parameters, and move them to θ̄(s_0), all in place.

    The prior counts as `prior.strength` more rows. Gram matrices and masses are written as averages.
    """
    n = W.shape[0]
    K, Q = variances.shape
    p_w = W.shape[1]
    tau = np.empty((n, K))
    shares = np.empty((n, K))
    means = np.empty((K, Q))
    total = n + prior.strength
    gate_gram[:, :] = 0.0
    for j in range(p_w):
        gate_gram[j, j] = prior.strength * prior.gate_gram[j] / total
    for i in range(n):
        evaluate(gate, experts, variances, W[i], R[i], Y[i], shares[i], means, tau[i])
        add_outer(gate_gram, W[i], 1.0 / total)
    fit_experts(experts, variances, prior, tau, R, Y)
    for k in range(K):
        expert_grams[k, :, :] = 0.0
        for j in range(R.shape[1]):
            expert_grams[k, j, j] = prior.strength / K * prior.expert_gram[j] / total
        masses[k] = prior.strength / K / total
        for i in range(n):
            add_outer(expert_grams[k], R[i], tau[i, k] / total)
            masses[k] += tau[i, k] / total
    if K == 1:
        return
    inverse = np.empty((p_w, p_w))
    scratch = np.empty((p_w, p_w))
    invert_spd(gate_gram, inverse, scratch)
    # ω ← ω − A⁻¹ [E(g − τ) wᵀ] G⁻¹ − (s/total) ω Λ G⁻¹: one majorization step, the prior pulling towards 0.
    gradient = np.zeros((K - 1, p_w))
    move = np.zeros((K - 1, p_w))
    for i in range(n):
        for k in range(K - 1):
            push = (shares[i, k] - tau[i, k]) / total
            for j in range(p_w):
                gradient[k, j] += push * W[i, j]
    for j in range(p_w):
        column = 0.0
        for k in range(K - 1):
            column += gradient[k, j]
        for k in range(K - 1):
            gradient[k, j] = curvature[0] * (gradient[k, j] + curvature[1] * column)
            gradient[k, j] += prior.strength / total * gate[k, j] * prior.gate_gram[j]
    for k in range(K - 1):
        add_product(inverse, gradient[k], move[k])
        for j in range(p_w):
            gate[k, j] -= move[k, j]
