"""Linear experts whose noise has heavier tails than a Gaussian's: the hot loop of learning and scoring.

The density of an event hangs on its squared distance δ² = Σ_q (y_q − Υ_kq r)² / σ_kq² alone, as exp(−E(δ²)) / Π_q σ_kq
with an E that is concave, so that a tangent in δ² lies above it: the event enters as a Gaussian one whose weight is
u = 2 E′(δ²), and everything else is the step of `streammoe.kernels.gaussian` (docs/algorithm.md, "Heavy tails").
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streammoe.kernels import laplace, student_t
from streammoe.kernels.compile import inline, jit
from streammoe.kernels.gaussian import WIDE, record, step, step_group, track_residual
from streammoe.kernels.groups import far_limits, gather, group_of, is_far, n_waiting, stand_alone
from streammoe.kernels.linear import shares_and_means
from streammoe.kernels.shared import RESIDUAL_EVERY, average_weight, blend, blend_all, mix, route
from streammoe.kernels.soundness import is_sound_after
from streammoe.kernels.state import LearningOptions, MMState, Trace
from streammoe.types import FloatArray


class Tails(NamedTuple):
    """Which noise it is. Kernels of one signature serve all of them, and are compiled once."""

    degrees: float
    """ν of Student's t; 0 is Laplace's noise, of one output."""


@inline
def energy(tails: Tails, square: float, Q: int) -> float:
    """E(δ²)."""
    return student_t.energy(square, tails.degrees, Q) if tails.degrees > 0.0 else laplace.energy(square)


@inline
def irls_weight(tails: Tails, square: float, Q: int) -> float:
    """The event's weight u = 2 E′(δ²)."""
    return student_t.irls_weight(square, tails.degrees, Q) if tails.degrees > 0.0 else laplace.irls_weight(square)


@inline
def log_constant(tails: Tails, Q: int) -> float:
    """−log of the density at σ = 1 and δ² = 0, less E(0)."""
    return student_t.log_constant(tails.degrees, Q) if tails.degrees > 0.0 else laplace.LOG_AREA


@inline
def evaluate(
    tails: Tails,
    constant: float,
    gate: FloatArray,
    experts: FloatArray,
    squared_scales: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    shares: FloatArray,
    means: FloatArray,
    joint: FloatArray,
    squares: FloatArray,
    roots: FloatArray,
) -> float:
    """Write g_k(x), Υ_k r, the responsibilities τ_k ([MM] eq. 15) and δ²_k, and return −log s(y|x).

    Where y is NaN the responsibilities are the gate's shares and the result is NaN. `roots` is scratch, (K,).
    """
    K, Q = squared_scales.shape
    log_gate = shares_and_means(gate, experts, w, r, shares, means, joint)
    if math.isnan(y[0]):
        for k in range(K):
            joint[k] = shares[k]
        return np.nan
    largest: float = -np.inf
    for k in range(K):
        square = 0.0
        product = 1.0
        for q in range(Q):
            error = y[q] - means[k, q]
            square += error * error / squared_scales[k, q]
            product *= squared_scales[k, q]
            if Q > 1 and not 1.0 / WIDE < product < WIDE:
                joint[k] -= 0.5 * math.log(product)
                product = 1.0
        roots[k] = product
        squares[k] = square
        joint[k] -= energy(tails, square, Q)
        largest = max(largest, joint[k])
    total = 0.0
    for k in range(K):
        joint[k] = math.exp(joint[k] - largest) / math.sqrt(roots[k])
        total += joint[k]
    inverse = 1.0 / total
    for k in range(K):
        joint[k] *= inverse
    loss: float = log_gate - largest - math.log(total) + constant
    return loss


@jit
def score_rows(
    tails: Tails,
    gate: FloatArray,
    experts: FloatArray,
    squared_scales: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    responsibilities: FloatArray,
    trace: Trace,
) -> None:
    """Score rows without learning: −log s(y|x), the predicted mean, and τ (or the gate's g where y is NaN)."""
    K, Q = squared_scales.shape
    constant = log_constant(tails, Q)
    shares, squares, roots = np.empty(K), np.empty(K), np.empty(K)
    means = np.empty((K, Q))
    for i in range(W.shape[0]):
        losses[i] = evaluate(
            tails,
            constant,
            gate,
            experts,
            squared_scales,
            W[i],
            R[i],
            Y[i],
            shares,
            means,
            responsibilities[i],
            squares,
            roots,
        )
        mix(shares, means, predictions[i])
        record(trace, i, shares, means, squared_scales)


@jit
def learn_rows(
    tails: Tails,
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    gammas: FloatArray,
    weights: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    trace: Trace,
) -> bool:
    """Predict, score and learn each row in turn, in place; a row whose y is NaN is predicted only.

    Arguments, but for `tails`, and result are those of `streammoe.kernels.gaussian.learn_rows`; the variances of the
    state are squared scales.
    """
    K, Q = state.variances.shape
    constant = log_constant(tails, Q)
    shares, tau, trusted, scratch = np.empty(K), np.empty(K), np.empty(K), np.empty(K)
    means = np.empty((K, Q))
    gate_gain, gain = np.empty(W.shape[1]), np.empty(R.shape[1])
    size = state.group.shape[0]
    waiting = n_waiting(state)
    limits = far_limits(state)
    learned = 0
    for i in range(W.shape[0]):
        w, r, y = W[i], R[i], Y[i]
        losses[i] = evaluate(
            tails,
            constant,
            state.average_gate,
            state.average_experts,
            state.average_variances,
            w,
            r,
            y,
            shares,
            means,
            tau,
            trusted,
            scratch,
        )
        mix(shares, means, predictions[i])
        record(trace, i, shares, means, state.average_variances)
        if math.isnan(y[0]):
            continue
        gamma = gammas[learned]
        learned += 1
        if size > 0:
            far = is_far(limits, w, r, weights[i])
            if not far:
                if not gather(state, waiting, w, r, y, weights[i], gamma):
                    return False
                waiting += 1
            if waiting == size or (far and waiting > 0):
                learn_group(tails, constant, state, residual, options, waiting)
                waiting = 0
                limits = far_limits(state)
            if not far:
                continue
            stand_alone(state)
        evaluate(
            tails,
            constant,
            state.gate,
            state.experts,
            state.variances,
            w,
            r,
            y,
            shares,
            means,
            tau,
            trusted,
            scratch,
        )
        route(tau, options.top_k)
        for k in range(K):
            trusted[k] = tau[k] * irls_weight(tails, trusted[k], Q)
        if state.n[0] % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, weights[i], shares, tau, trusted, w, r, y)
        step(state, options, gamma, weights[i], shares, tau, trusted, means, w, r, y, gate_gain, gain, scratch)
        weight = average_weight(state, options, gamma)
        blend(state.average_gate, state.gate, weight)
        blend_all(state.average_experts, state.experts, weight)
        blend(state.average_variances, state.variances, weight)
        if size > 0:
            limits = far_limits(state)
    return is_sound_after(state, Y, losses, predictions)


@jit
def learn_group(
    tails: Tails,
    constant: float,
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    B: int,
) -> None:
    """Learn the B events that wait by one step."""
    K, Q = state.variances.shape
    group = group_of(state, B)
    shares, tau, trusted, means = np.empty((B, K)), np.empty((B, K)), np.empty((B, K)), np.empty((B, K, Q))
    scratch = np.empty(K)
    for i in range(B):
        evaluate(
            tails,
            constant,
            state.gate,
            state.experts,
            state.variances,
            group.W[i],
            group.R[i],
            group.Y[i],
            shares[i],
            means[i],
            tau[i],
            trusted[i],
            scratch,
        )
        route(tau[i], options.top_k)
        for k in range(K):
            trusted[i, k] = tau[i, k] * irls_weight(tails, trusted[i, k], Q)
    step_group(state, residual, options, group, shares, tau, trusted, means)


@jit
def irls_weight_rows(
    tails: Tails,
    experts: FloatArray,
    squared_scales: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    tau: FloatArray,
    trusted: FloatArray,
) -> None:
    """Write τ u of each row and expert to `trusted`, (n, K)."""
    K, Q, p = experts.shape
    for i in range(R.shape[0]):
        for k in range(K):
            square = 0.0
            for q in range(Q):
                error = Y[i, q]
                for j in range(p):
                    error -= experts[k, q, j] * R[i, j]
                square += error * error / squared_scales[k, q]
            trusted[i, k] = tau[i, k] * irls_weight(tails, square, Q)
