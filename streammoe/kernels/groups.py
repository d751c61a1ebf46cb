"""Mini-batches: one step for a group of events, all of them judged by the parameters before it.

s moves towards the mean of S̄ over the group, by the step Γ = 1 − Π(1−γ) that its events would have made one by one
(docs/algorithm.md, "Mini-batches"). Gram matrices take the whole group, and are then factored once for what is to be
solved, which is what makes it fast; inverses stay what the last refresh has left, and nothing reads them. Events wait
in the state until their group is full, so that where a batch was cut leaves no trace.

Shapes: B events, K experts, N rows of coefficients, p features.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.kernels.compile import allocating, inline, jit, part
from streammoe.kernels.linalg import VANISHED, dot, invert_spd, solve_spd, symmetric_product
from streammoe.kernels.shared import average_weight
from streammoe.kernels.softmax import adaptive_weight, bound_mix, gate_bend
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray

LEAST_KEPT = 1e-12
"""Of what was learned before a group, as of what was before an event."""
LARGEST_IN_GROUP = 1e30
"""Beyond this a feature or a target would distort a step that other events share, so it is rejected when it comes."""
FAR = 1e8
"""An event is far if it weighs so many times as much, in the Gram matrix's entry of any feature, as a mean one so far:
beside it the other directions of a group's Gram matrix would be lost to rounding."""


@part
def n_waiting(state: MMState) -> int:
    """How many events wait for their group: the rows up to the first empty one."""
    start, stop = 0, state.group.shape[0]
    while start < stop:
        middle = (start + stop) // 2
        if state.group[middle, -2] > 0.0:
            start = middle + 1
        else:
            stop = middle
    return start


@part
def gather(state: MMState, at: int, w: FloatArray, r: FloatArray, y: FloatArray, weight: float, gamma: float) -> bool:
    """Let an event wait in row `at` of its group; False if it must not, and the state is to be thrown away."""
    row = state.group[at]
    sound = True
    column = 0
    for values in (w, r, y):
        for value in values:
            row[column] = value
            sound = sound and abs(value) <= LARGEST_IN_GROUP
            column += 1
    row[column] = weight
    row[column + 1] = gamma
    state.n[0] += 1
    return sound


@inline
def set_far_limits(state: MMState, limits: FloatArray) -> None:
    """Write how large the square of a feature, times the weight, may be in a group; see `FAR`.

    They stay as they are until the next step, so that they are not looked for at each event.

    Args:
        state: after a step.
        limits: (p_w + p_v,).
    """
    p_w, p_v = state.gate_gram.shape[0], state.experts.shape[2]
    for j in range(p_w):
        limits[j] = state.gate_gram[j, j]
    for j in range(p_v):
        limits[p_w + j] = 0.0
    for k in range(state.expert_grams.shape[0]):
        for j in range(p_v):
            limits[p_w + j] += state.expert_grams[k, j, j]
    for j in range(p_w + p_v):
        limits[j] *= FAR * state.decay[0]


@part
def is_far(limits: FloatArray, w: FloatArray, r: FloatArray, weight: float) -> bool:
    """Whether an event has to make a step of its own, which no rounding harms."""
    column = 0
    for values in (w, r):
        for value in values:
            if weight * value * value > limits[column]:
                return True
            column += 1
    return False


@allocating
def stand_alone(state: MMState) -> None:
    """Bring the inverses up to date, which groups leave alone, for an event that makes a step of its own."""
    if state.gate.shape[0] > 0:
        invert_spd(state.gate_gram, state.gate_inverse, np.empty_like(state.gate_gram))
    scratch = np.empty_like(state.expert_grams[0])
    for k in range(state.expert_grams.shape[0]):
        invert_spd(state.expert_grams[k], state.expert_inverses[k], scratch)


class Group(NamedTuple):
    """Events that make one step together."""

    W: FloatArray
    """(B, p_w)"""
    R: FloatArray
    """(B, p_v)"""
    Y: FloatArray
    """(B, Q), or (B, 1) class indexes."""
    weights: FloatArray
    """(B,)"""
    gammas: FloatArray
    """(B,) their steps."""


@allocating
def group_of(state: MMState, waiting: int) -> Group:
    """The events that wait, as kernels like them: each part by itself."""
    p_w, p_v = state.gate_gram.shape[0], state.experts.shape[2]
    rows = state.group[:waiting]
    return Group(
        rows[:, :p_w].copy(),
        rows[:, p_w : p_w + p_v].copy(),
        rows[:, p_w + p_v : -2].copy(),
        rows[:, -2].copy(),
        rows[:, -1].copy(),
    )


@part
def kept_by(gammas: FloatArray) -> float:
    """1 − Γ, what is left of the statistics before the group."""
    keep = 1.0
    for gamma in gammas:
        keep *= 1.0 - gamma
    return max(keep, LEAST_KEPT)


@allocating
def amounts_of(state: MMState, group: Group, keep: float) -> FloatArray:
    """(B,) γ times the weight of each event, over the new decay; γ is its part of the group's step."""
    B = group.weights.shape[0]
    amounts = np.empty(B)
    for i in range(B):
        amounts[i] = (1.0 - keep) / B * group.weights[i] / (state.decay[0] * keep)
    return amounts


@jit
def add_outers(matrix: FloatArray, rows: FloatArray, weights: FloatArray) -> None:
    """``matrix += rows.T @ diag(weights) @ rows``, in place, for a symmetric matrix.

    Four rows a sweep, so that the matrix is loaded and stored a quarter as often.
    """
    n, p = rows.shape
    blocked = n - n % 4
    for i in range(0, blocked, 4):
        if weights[i] == 0.0 and weights[i + 1] == 0.0 and weights[i + 2] == 0.0 and weights[i + 3] == 0.0:
            continue  # most events do not concern an expert with sparse routing
        for j in range(p):
            a0, a1 = weights[i] * rows[i, j], weights[i + 1] * rows[i + 1, j]
            a2, a3 = weights[i + 2] * rows[i + 2, j], weights[i + 3] * rows[i + 3, j]
            for c in range(j + 1):
                matrix[j, c] += a0 * rows[i, c] + a1 * rows[i + 1, c] + a2 * rows[i + 2, c] + a3 * rows[i + 3, c]
    for i in range(blocked, n):
        for j in range(p):
            scaled = weights[i] * rows[i, j]
            for c in range(j + 1):
                matrix[j, c] += scaled * rows[i, c]
    for j in range(p):
        for c in range(j):
            matrix[c, j] = matrix[j, c]


@jit
def pulls_of(rows: FloatArray, pushes: FloatArray, sizes: FloatArray, N: int) -> FloatArray:
    """(N, p) Σ size · push rᵀ over `rows` (B, p), of the first N columns of `pushes`; `sizes` (B,)."""
    n, p = rows.shape
    pulls = np.zeros((N, p))
    for i in range(n):
        for k in range(N):
            size = sizes[i] * pushes[i, k]
            for j in range(p):
                pulls[k, j] += size * rows[i, j]
    return pulls


@allocating
def settle_softmax(
    coefficients: FloatArray,
    gram: FloatArray,
    rows: FloatArray,
    pushes: FloatArray,
    weights: FloatArray,
    sizes: FloatArray,
    curvature: tuple[float, float],
) -> FloatArray:
    """C ← C − A⁻¹ Σ size · push (R⁺⁻¹ x)ᵀ, where R⁺ = R + Σ weight · x xᵀ is updated first; all in stored units.

    Args:
        coefficients: (N, p), changed in place; so is `gram`, (p, p).
        rows: (B, p).
        pushes: (B, N) or wider; probabilities less targets.
        weights: (B,) of each event in the Gram matrix.
        sizes: (B,) of its step.
        curvature: (a, b) with A⁻¹ d = a (d + b Σd).

    Returns:
        (N, p) by how much C has become less.
    """
    free, p = coefficients.shape
    add_outers(gram, rows, weights)
    pulls = pulls_of(rows, pushes, sizes, free)
    if free == 0:
        return pulls
    solve_spd(gram, pulls, np.empty((p, p)))
    total = np.zeros(p)
    for k in range(free):
        for j in range(p):
            total[j] += pulls[k, j]
    for k in range(free):
        for j in range(p):
            pulls[k, j] = curvature[0] * (pulls[k, j] + curvature[1] * total[j])
            coefficients[k, j] -= pulls[k, j]
    return pulls


@part
def safe_share(
    moves: FloatArray,
    rows: FloatArray,
    pushes: FloatArray,
    sizes: FloatArray,
    bounds: FloatArray,
    curvature: tuple[float, float],
) -> float:
    """How much of the step −`moves`, (N, p), a group may make: up to where its adaptive bound is least.

    `bounds`, (B,), are the weights of the events' curvatures by that bound; others as `settle_softmax` has them.
    """
    free = moves.shape[0]
    mix = bound_mix(curvature, free)
    gain = bent = 0.0
    for i in range(rows.shape[0]):
        total = square = slope = 0.0
        for k in range(free):
            move = dot(moves[k], rows[i])
            slope += pushes[i, k] * move
            total += move
            square += move * move
        gain += sizes[i] * slope
        bent += sizes[i] * bounds[i] * (square - mix * total * total) / curvature[0]
    if bent <= gain:
        return 1.0
    return max(gain, 0.0) / bent


@allocating
def settle_gate(
    state: MMState,
    options: LearningOptions,
    group: Group,
    amounts: FloatArray,
    shares: FloatArray,
    tau: FloatArray,
) -> None:
    """The gate's part of a group; `shares` and `tau` (B, K)."""
    weights = amounts.copy()
    sharp = options.bound_share < 1.0 and shares.shape[1] > 1
    bounds = np.empty(weights.shape[0])
    if options.adaptive and shares.shape[1] > 1:
        for i in range(weights.shape[0]):
            weights[i] *= gate_bend(shares[i], options.bound_share)[0]
            bounds[i] = adaptive_weight(shares[i])
    pushes = shares - tau
    moves = settle_softmax(state.gate, state.gate_gram, group.W, pushes, weights, amounts, options.curvature)
    if not sharp:
        return
    excess = 1.0 - safe_share(moves, group.W, pushes, amounts, bounds, options.curvature)
    if excess > 0.0:
        for k in range(moves.shape[0]):
            for j in range(moves.shape[1]):
                state.gate[k, j] += excess * moves[k, j]


@part
def weigh(
    group: Group,
    k: int,
    amounts: FloatArray,
    trusted: FloatArray,
    means: FloatArray,
    weights: FloatArray,
    errors: FloatArray,
) -> bool:
    """Write with what weight each event enters linear expert k, (B,), and its errors, (B, Q); whether any does.

    `amounts` (B,), `trusted` (B, K) and `means` (B, K, Q) are those of `streammoe.kernels.loop.Noise.settle_expert`.
    """
    total = 0.0
    for i in range(weights.shape[0]):
        weights[i] = amounts[i] * trusted[i, k]
        total += weights[i]
        for q in range(errors.shape[1]):
            errors[i, q] = group.Y[i, q] - means[i, k, q]
    return total > 0.0


@allocating
def settle_linear(state: MMState, k: int, rows: FloatArray, weights: FloatArray, errors: FloatArray) -> FloatArray:
    """Υ_k ← Υ_k + Σ weight · ρ (R⁺⁻¹ r)ᵀ, where R⁺ = R + Σ weight · r rᵀ is updated first; all in stored units.

    Args:
        state: changed in place.
        k: which expert.
        rows: (B, p).
        weights: (B,) of each event.
        errors: (B, Q) ρ, under the parameters before.

    Returns:
        (Q, Q) what the step leaves unexplained: Σ weight · ρ⁺ ρ⁺ᵀ + (Υ_k⁺ − Υ_k) R (Υ_k⁺ − Υ_k)ᵀ with the errors ρ⁺
        after it and the R before it. Both are sums of squares, so that no rounding can make them negative.
    """
    experts = state.experts
    before = state.expert_grams[k].copy()
    Q, p = experts.shape[1:]
    add_outers(state.expert_grams[k], rows, weights)
    moves = pulls_of(rows, errors, weights, Q)
    solve_spd(state.expert_grams[k], moves, np.empty((p, p)))
    left = np.zeros((Q, Q))
    for q in range(Q):
        for j in range(p):
            experts[k, q, j] += moves[q, j]
    half, after = np.empty(p), np.empty(Q)
    for q in range(Q):
        symmetric_product(before, moves[q], half)
        for c in range(Q):
            left[q, c] += dot(half, moves[c])
    for i in range(rows.shape[0]):
        if weights[i] == 0.0:
            continue
        for q in range(Q):
            after[q] = errors[i, q] - dot(moves[q], rows[i])
        for q in range(Q):
            for c in range(Q):
                left[q, c] += weights[i] * after[q] * after[c]
    return left


@part
def mass_after(state: MMState, k: int, keep: float, group: Group, tau: FloatArray) -> float:
    """m_k after a group whose responsibilities are `tau`, (B, K)."""
    B = tau.shape[0]
    mass: float = keep * state.masses[k]
    for i in range(B):
        mass += (1.0 - keep) / B * group.weights[i] * tau[i, k]
    return max(mass, VANISHED)


@part
def finish_group(state: MMState, keep: float) -> None:
    """The weight of all before the group has shrunk; the next one begins empty."""
    state.decay[0] *= keep
    state.prior_weight[0] *= keep
    for row in state.group:
        row[-2] = 0.0


@part
def average_weight_of(state: MMState, options: LearningOptions, gammas: FloatArray) -> float:
    """How far the served parameters move towards the iterate of this group: as far as for so many equal iterates."""
    kept: float = 1.0
    for gamma in gammas:
        kept *= 1.0 - average_weight(state, options, gamma)
    return 1.0 - kept
