"""Softmax regression by majorization: the gate, and categorical experts, are the same filter.

Shapes: N free logits, p features; coefficients (N, p). The reference class has logit 0: for the gate the last expert,
for categorical experts the first class.
"""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline, part
from streammoe.kernels.linalg import add_outer, add_product, dot, symmetric_product
from streammoe.types import FloatArray


@inline
def softmax(values: FloatArray) -> float:
    """Replace logits by their softmax, in place, and return log Σ exp of them."""
    largest: float = values[0]
    for k in range(1, values.shape[0]):
        largest = max(largest, values[k])
    total = 0.0
    for k in range(values.shape[0]):
        values[k] = math.exp(values[k] - largest)
        total += values[k]
    inverse = 1.0 / total
    for k in range(values.shape[0]):
        values[k] *= inverse
    return largest + math.log(total)


@inline
def bound_mix(curvature: tuple[float, float], free: int) -> float:
    """The c of A d = (d − c Σd) / a, the inverse of A⁻¹ d = a (d + b Σd) over `free` logits."""
    return curvature[1] / (1.0 + curvature[1] * free)


@inline
def adaptive_weight(probabilities: FloatArray) -> float:
    """How much of the constant bound suffices here: a = 2 tanh(ξ/2)/ξ, ξ the log-odds of the largest probability.

    1 where the largest is below ½. For two classes this is Jaakkola and Jordan's bound; for more see
    docs/algorithm.md, "Adaptive curvature".
    """
    largest: float = probabilities[0]
    rest = 0.0
    for k in range(1, probabilities.shape[0]):
        if probabilities[k] > largest:
            rest += largest
            largest = probabilities[k]
        else:
            rest += probabilities[k]
    apart = largest - rest
    if apart <= 0.0:
        return 1.0
    if apart < 1e-4:  # the quotient below becomes 0/0
        return 1.0 - apart * apart / 3.0
    return 2.0 * apart / math.log(largest / max(rest, 1e-300))


@inline
def gate_bend(shares: FloatArray, bound_share: float) -> tuple[float, float]:
    """The weight a of an event's curvature in the gate, and how far a step may move the event's own logits.

    With `bound_share` β below 1 the curvature is the local one, 4 p (1 − p) at the largest share p, or β times the
    adaptive bound if that is more; with β = 1 it is the bound, which limits steps by itself. See docs/algorithm.md,
    "Curvature below the bound".

    Returns:
        a, and the limit in units of A⁻¹ push: where the adaptive bound has its minimum.
    """
    bound = adaptive_weight(shares)
    if bound_share >= 1.0:
        return bound, math.inf
    largest: float = shares[0]
    for k in range(1, shares.shape[0]):
        largest = max(largest, shares[k])
    local = 4.0 * largest * (1.0 - largest) if largest > 0.5 else 1.0
    return max(local, bound_share * bound), 1.0 / bound


@inline
def step_softmax(
    coefficients: FloatArray,
    gram: FloatArray,
    inverse: FloatArray,
    x: FloatArray,
    push: FloatArray,
    gain: FloatArray,
    weight: float,
    size: float,
    curvature: tuple[float, float],
) -> None:
    """C ← C − size · A⁻¹ push (R⁺⁻¹ x)ᵀ with R⁺ = R + weight · x xᵀ; all in stored units.

    Args:
        coefficients: (N, p), changed in place.
        gram, inverse: (p, p), changed in place.
        x: (p,).
        push: (N,) or longer; probabilities less targets.
        gain: (p,) scratch.
        weight: of this event in the Gram matrix.
        size: of the step.
        curvature: (a, b) with A⁻¹ d = a (d + b Σd).
    """
    free = coefficients.shape[0]
    quadratic = symmetric_product(inverse, x, gain)
    shrink = 1.0 / (1.0 + weight * quadratic)
    add_outer(inverse, gain, -weight * shrink)
    add_outer(gram, x, weight)
    total = 0.0
    for m in range(free):
        total += push[m]
    for m in range(free):
        step = size * shrink * curvature[0] * (push[m] + curvature[1] * total)
        for j in range(x.shape[0]):
            coefficients[m, j] -= step * gain[j]


@inline
def shorten_step(
    coefficients: FloatArray,
    x: FloatArray,
    push: FloatArray,
    gain: FloatArray,
    weight: float,
    size: float,
    limit: float,
    curvature: tuple[float, float],
) -> None:
    """Take back from a step of `step_softmax` what moved the logits of x further than `limit` · A⁻¹ push.

    `gain` is what that left there; the other arguments are those that it had.
    """
    quadratic = dot(gain, x)
    reach = size * quadratic / (1.0 + weight * quadratic)
    if reach <= limit:
        return
    free = coefficients.shape[0]
    total = 0.0
    for k in range(free):
        total += push[k]
    for k in range(free):
        back = (reach - limit) / quadratic * curvature[0] * (push[k] + curvature[1] * total)
        for j in range(x.shape[0]):
            coefficients[k, j] += back * gain[j]


@part
def residual_of_gram(
    gram: FloatArray,
    decay: float,
    x: FloatArray,
    weight: float,
    squares: FloatArray,
    residual: FloatArray,
    at: int,
    share: float,
) -> tuple[int, float]:
    """Take S̄ − s of one Gram matrix, where s is weight · x xᵀ, into running means, written from index `at` on.

    `squares`: (p,) scratch.

    Returns:
        Where the next block begins, and ‖S̄ − s‖² of this one.
    """
    p = x.shape[0]
    for j in range(p):
        squares[j] = 0.0
    for i in range(p):
        scaled = weight * x[i]
        means = residual[at : at + p]
        # A sum for each column, since one alone would wait for itself at every addition.
        for j in range(p):
            entry = scaled * x[j] - decay * gram[i, j]
            means[j] += share * (entry - means[j])
            squares[j] += entry * entry
        at += p
    total = 0.0
    for j in range(p):
        total += squares[j]
    return at, total


@part
def multiply_gram(gram: FloatArray, decay: float, vector: FloatArray, out: FloatArray) -> None:
    """Write ``decay * gram @ vector`` to `out`, for a symmetric matrix."""
    for i in range(vector.shape[0]):
        out[i] = 0.0
    add_product(gram, vector, out)
    for i in range(vector.shape[0]):
        out[i] *= decay


@inline
def residual_of_softmax(
    coefficients: FloatArray,
    gram: FloatArray,
    decay: float,
    x: FloatArray,
    push: FloatArray,
    weight: float,
    curvature: tuple[float, float],
    linear: FloatArray,
    residual: FloatArray,
    at: int,
    share: float,
) -> tuple[int, float]:
    """Take S̄ − s of one Gram matrix and its linear part into running means; see `MMState` for the shapes.

    Args:
        push: (N,) or longer; τ-weighted probabilities less targets.
        weight: of x xᵀ in this event's statistic.
        linear: (N + 1, p) or larger, scratch.
        residual: running means, written from index `at` on.
        share: weight of this event in the running means.

    Returns:
        Where the next block begins, and ‖S̄ − s‖² of this one.
    """
    free, p = coefficients.shape
    mix = bound_mix(curvature, free)
    at, square = residual_of_gram(gram, decay, x, weight, linear[free], residual, at, share)
    for k in range(free):
        multiply_gram(gram, decay, coefficients[k], linear[k])
        size = weight * dot(coefficients[k], x)
        for i in range(p):
            linear[k, i] = size * x[i] - linear[k, i]
    for i in range(p):
        total = 0.0
        for k in range(free):
            total += linear[k, i]
        for k in range(free):
            bent = (linear[k, i] - mix * total) / curvature[0]
            entry = push[k] * x[i] - bent
            residual[at] += share * (entry - residual[at])
            square += entry * entry
            at += 1
    return at, square
