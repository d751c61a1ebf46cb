"""Batch fits on a buffer of events: weighted least squares and weighted softmax regression.

Compiled and single-threaded rather than left to a BLAS: the same rows then give the same fit bit for bit, so that one
which a restart runs again ends where it would have without.

Shapes: n rows, K experts, N rows of coefficients, p features. `tau` (n, K) holds responsibilities times the weight of
each event.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numba import types

from streammoe.kernels.by_address import Callee
from streammoe.kernels.compile import allocating, inline, jit, part
from streammoe.kernels.linalg import add_outers_in_turn, add_product, dot, invert_spd
from streammoe.kernels.softmax import adaptive_weight, bound_mix, gate_bend, softmax
from streammoe.types import FloatArray

NEWTON_LIMIT = 300
"""Free parameters up to which the Newton steps of a softmax regression are exact; beyond, matrices would cost more."""
MANY_ROWS = 8
"""From more rows of coefficients on they are not exact, either: those of many classes hardly depend on each other."""
CONJUGATE_ROUNDS = 4
"""Conjugate gradients of a step."""
CLOSE = 0.01
"""Part of the squared gradient that may remain after fewer of them."""
HALVINGS = 12
"""Most times that a step is halved."""
SETTLED = 1e-14
"""A softmax regression whose objective gains less, in units of itself, has come to its end."""


_MATRIX = types.Array(types.float64, 2, "C")
INVERSION = Callee(invert_spd, [_MATRIX, _MATRIX, _MATRIX], types.boolean)
"""Once for all fits: by itself each would hold a copy, half of what it takes to compile."""
_invert = INVERSION.call


@cache
def _inversion() -> int:
    """Return where the machine code is."""
    return INVERSION.address()


@jit
def linear_sums(
    experts: FloatArray,
    weights: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    grams: FloatArray,
    pulls: FloatArray,
    scatters: FloatArray,
) -> None:
    """Add Σ v r rᵀ, Σ v ρ rᵀ and Σ v ρ ρᵀ of each expert, errors ρ = y − Υ_k r and weights v (n, K), to arrays.

    Args:
        grams: (K, p, p), of which only the lower triangles are written, or (0, p, p) if they are not wanted.
        pulls: (K, Q, p).
        scatters: (K, Q, Q).
    """
    K, Q, _ = experts.shape
    own = np.empty(R.shape[0])
    errors, pushes = np.empty((Q, 4)), np.empty((4, Q))
    for k in range(K):
        for i in range(R.shape[0]):
            own[i] = weights[i, k]
        if grams.shape[0]:
            add_outers_in_turn(grams[k], R, own, True)
        for i in range(0, R.shape[0], 4):
            count = 0
            for q in range(Q):
                count = errors_of(experts[k, q], R, Y, q, i, errors[q])
            for q in range(Q):
                for at in range(count):
                    pushes[at, q] = own[i + at] * errors[q, at]
                for c in range(Q):
                    for at in range(count):
                        scatters[k, q, c] += pushes[at, q] * errors[c, at]
            add_pushes(R, i, count, pushes, pulls[k])


def linear_step(
    experts: FloatArray,
    share: float,
    prior_gram: FloatArray,
    prior_experts: FloatArray,
    grams: FloatArray,
    pulls: FloatArray,
    scatters: FloatArray,
) -> None:
    """Move each expert, (K, Q, p), to its weighted least squares, in place; the prior is worth `share` rows.

    Args:
        experts: where the sums were taken.
        share, prior_gram, prior_experts: the prior, whose Λ is (p,).
        grams, pulls, scatters: from `linear_sums`; scatters, (K, Q, Q), become those of the moved experts, prior
            included, which follow from the old ones without another pass over the rows.
    """
    _linear_step(_inversion(), experts, share, prior_gram, prior_experts, grams, pulls, scatters)


@jit
def _linear_step(
    inversion: int,
    experts: FloatArray,
    share: float,
    prior_gram: FloatArray,
    prior_experts: FloatArray,
    grams: FloatArray,
    pulls: FloatArray,
    scatters: FloatArray,
) -> None:
    K, Q, p = experts.shape
    gram, inverse, scratch = np.empty((p, p)), np.empty((p, p)), np.empty((p, p))
    pull, move, bent = np.empty((Q, p)), np.empty((Q, p)), np.empty((Q, p))
    for k in range(K):
        for j in range(p):
            for i in range(j + 1):
                gram[j, i] = gram[i, j] = grams[k, j, i]
            gram[j, j] += share * prior_gram[j]
        _invert(inversion, (gram, inverse, scratch))
        move[:, :] = 0.0
        bent[:, :] = 0.0
        for q in range(Q):
            for j in range(p):
                pull[q, j] = pulls[k, q, j] + share * prior_gram[j] * (prior_experts[q, j] - experts[k, q, j])
            # Correcting the old coefficients keeps the rounding of an ill-conditioned inverse out of what fits already.
            add_product(inverse, pull[q], move[q])
            add_product(gram, move[q], bent[q])
        for q in range(Q):
            for c in range(q + 1):
                for j in range(p):
                    apart = (prior_experts[q, j] - experts[k, q, j]) * (prior_experts[c, j] - experts[k, c, j])
                    gained = move[q, j] * (pull[c, j] - bent[c, j]) + pull[q, j] * move[c, j]
                    scatters[k, q, c] += share * prior_gram[j] * apart - gained
                scatters[k, c, q] = scatters[k, q, c]
        for q in range(Q):
            for j in range(p):
                experts[k, q, j] += move[q, j]


@part
def error_of(theta: FloatArray, r: FloatArray, y: float) -> float:
    """Y − Υ r."""
    mean = 0.0
    for j in range(r.shape[0]):
        mean += theta[j] * r[j]
    return y - mean


@part
def errors_of(theta: FloatArray, R: FloatArray, Y: FloatArray, q: int, i: int, out: FloatArray) -> int:
    """Write `error_of` rows i to i + 3, as far as there are so many, to `out`, and return how many there are.

    Four at once, since a sum by itself waits at every addition; each is what it is alone.
    """
    count: int = min(R.shape[0] - i, 4)
    if count < 4:
        for at in range(count):
            out[at] = error_of(theta, R[i + at], Y[i + at, q])
        return count
    r0, r1, r2, r3 = R[i], R[i + 1], R[i + 2], R[i + 3]
    t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
    for j in range(theta.shape[0]):
        t0 += theta[j] * r0[j]
        t1 += theta[j] * r1[j]
        t2 += theta[j] * r2[j]
        t3 += theta[j] * r3[j]
    out[0], out[1], out[2], out[3] = Y[i, q] - t0, Y[i + 1, q] - t1, Y[i + 2, q] - t2, Y[i + 3, q] - t3
    return 4


@part
def logits_of(coefficients: FloatArray, X: FloatArray, i: int, out: FloatArray) -> int:
    """Write C x of rows i to i + 3, as far as there are so many, to `out`, (4, N); return how many there are.

    Four at once, as in `errors_of`.
    """
    count: int = min(X.shape[0] - i, 4)
    for k in range(coefficients.shape[0]):
        theta = coefficients[k]
        if count < 4:
            for at in range(count):
                out[at, k] = -error_of(theta, X[i + at], 0.0)
            continue
        x0, x1, x2, x3 = X[i], X[i + 1], X[i + 2], X[i + 3]
        t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
        for j in range(theta.shape[0]):
            t0 += theta[j] * x0[j]
            t1 += theta[j] * x1[j]
            t2 += theta[j] * x2[j]
            t3 += theta[j] * x3[j]
        out[0, k], out[1, k], out[2, k], out[3, k] = t0, t1, t2, t3
    return count


@part
def add_softmax_curvature(
    hessian: FloatArray, X: FloatArray, i: int, count: int, weights: FloatArray, shares: FloatArray
) -> None:
    """Add the curvature of rows i to i + `count` − 1, at most four, to the lower triangle of `hessian`, (N p, N p).

    Args:
        weights: (4,) of these rows.
        shares: (4, N+1) their probabilities, the reference's last.
    """
    p = X.shape[1]
    for k in range(shares.shape[1] - 1):
        for m in range(k + 1):
            same = 1.0 if k == m else 0.0
            if count < 4:
                for at in range(count):
                    bend = weights[at] * shares[at, k] * (same - shares[at, m])
                    for j in range(p):
                        scaled = bend * X[i + at, j]
                        for c in range(j + 1 if m == k else p):
                            hessian[k * p + j, m * p + c] += scaled * X[i + at, c]
                continue
            b0 = weights[0] * shares[0, k] * (same - shares[0, m])
            b1 = weights[1] * shares[1, k] * (same - shares[1, m])
            b2 = weights[2] * shares[2, k] * (same - shares[2, m])
            b3 = weights[3] * shares[3, k] * (same - shares[3, m])
            x0, x1, x2, x3 = X[i], X[i + 1], X[i + 2], X[i + 3]
            for j in range(p):
                a0, a1, a2, a3 = b0 * x0[j], b1 * x1[j], b2 * x2[j], b3 * x3[j]
                row = hessian[k * p + j, m * p : (m + 1) * p]
                for c in range(j + 1 if m == k else p):
                    row[c] = row[c] + a0 * x0[c] + a1 * x1[c] + a2 * x2[c] + a3 * x3[c]


@jit
def prior_quadratic(
    coefficients: FloatArray, target: FloatArray, gram: FloatArray, curvature: tuple[float, float]
) -> float:
    """(C − C_0) (A ⊗ Λ) (C − C_0) for a diagonal Λ; A d = (d − c Σd) / a is the inverse of A⁻¹ d = a (d + b Σd)."""
    free = coefficients.shape[0]
    mix = bound_mix(curvature, free)
    total = 0.0
    for j in range(gram.shape[0]):
        column = 0.0
        square = 0.0
        for k in range(free):
            apart = coefficients[k, j] - target[k, j]
            column += apart
            square += apart * apart
        total += gram[j] * (square - mix * column * column) / curvature[0]
    return total


@jit
def softmax_objective(
    coefficients: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    targets: FloatArray,
    X: FloatArray,
    reference: int,
) -> float:
    """Σ_i Σ_k targets_ik log softmax_k(C x_i), with the prior; the reference logit stands at index `reference`."""
    free = coefficients.shape[0]
    logits = np.empty(free + 1)
    found = np.empty((4, free))
    total = -0.5 * prior_strength * prior_quadratic(coefficients, prior_target, prior_gram, curvature)
    for first in range(0, X.shape[0], 4):
        for row in range(logits_of(coefficients, X, first, found)):
            i = first + row
            weight = targets[i, reference]
            for k in range(free):
                at = k if k < reference else k + 1
                logits[at] = found[row, k]
                total += targets[i, at] * logits[at]
                weight += targets[i, at]
            logits[reference] = 0.0
            total -= weight * softmax(logits)
    return total


def fit_softmax(
    coefficients: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    targets: FloatArray,
    X: FloatArray,
    reference: int,
    rounds: int,
) -> None:
    """Raise the likelihood of soft targets by a few safe steps, in place: the gate, or one categorical expert.

    Args:
        coefficients: (N, p).
        prior_strength: pseudo-events of the prior, whose curvature is A ⊗ Λ around `prior_target`.
        prior_gram: (p,) Λ.
        prior_target: (N, p).
        curvature: (a, b) with A⁻¹ d = a (d + b Σd).
        targets: (n, N+1), non-negative; a row's sum is its weight.
        X: (n, p).
        reference: which of the N+1 has logit 0.
        rounds: most steps taken.
    """
    free, p = coefficients.shape
    if free == 0:
        return
    # Few fits are large enough for the second kernel, which takes seconds to compile.
    given = (coefficients, prior_strength, prior_gram, prior_target, curvature, targets, X, reference, rounds)
    if is_conjugate(free, p):
        _fit_by_conjugate_gradients(*given)
    else:
        _fit_by_newton(_inversion(), *given)


@jit
def _fit_by_newton(
    inversion: int,
    coefficients: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    targets: FloatArray,
    X: FloatArray,
    reference: int,
    rounds: int,
) -> None:
    """As `fit_softmax`, by Newton steps."""
    free, p = coefficients.shape
    size = free * p
    hessian, inverse, scratch = np.empty((size, size)), np.empty((size, size)), np.empty((size, size))
    gradient, move, trial = np.empty((free, p)), np.empty((free, p)), np.empty((free, p))
    mix = bound_mix(curvature, free)
    old = softmax_objective(coefficients, prior_strength, prior_gram, prior_target, curvature, targets, X, reference)
    for _ in range(rounds):
        pull_to_prior(coefficients, prior_strength, prior_gram, prior_target, curvature, gradient)
        hessian[:, :] = 0.0
        for j in range(p):
            for k in range(free):
                for m in range(free):
                    bend = prior_strength * prior_gram[j] * ((k == m) - mix) / curvature[0]
                    hessian[k * p + j, m * p + j] = bend
        softmax_sums(coefficients, targets, X, reference, True, gradient, hessian)
        _invert(inversion, (hessian, inverse, scratch))
        move[:, :] = 0.0
        add_product(inverse, gradient.ravel(), move.ravel())
        new = climb(
            coefficients, move, trial, old, prior_strength, prior_gram, prior_target, curvature, targets, X, reference
        )
        if new - old <= SETTLED * abs(new):
            return
        old = new


@inline
def is_conjugate(free: int, p: int) -> bool:
    """Whether conjugate gradients fit a softmax regression of so many rows of coefficients and features."""
    return free * p > NEWTON_LIMIT or free > MANY_ROWS


@jit
def _fit_by_conjugate_gradients(
    coefficients: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    targets: FloatArray,
    X: FloatArray,
    reference: int,
    rounds: int,
) -> None:
    """As `fit_softmax`, by Newton steps whose equations are solved by a few conjugate gradients, without a matrix."""
    free, p = coefficients.shape
    n = X.shape[0]
    shares, masses = np.empty((n, free)), np.empty(n)
    gradient, move, direction = np.empty((free, p)), np.empty((free, p)), np.empty((free, p))
    product, trial = np.empty((free, p)), np.empty((free, p))
    row_shares, logits = np.empty(free + 1), np.empty((4, free))
    old = softmax_objective(coefficients, prior_strength, prior_gram, prior_target, curvature, targets, X, reference)
    for _ in range(rounds):
        pull_to_prior(coefficients, prior_strength, prior_gram, prior_target, curvature, gradient)
        for first in range(0, n, 4):
            count = logits_of(coefficients, X, first, logits)
            for row in range(count):
                i = first + row
                for k in range(free):
                    row_shares[k] = logits[row, k]
                row_shares[free] = 0.0
                softmax(row_shares)
                masses[i] = mass_of(targets[i], free, reference)
                for k in range(free):
                    shares[i, k] = row_shares[k]
                    logits[row, k] = targets[i, k if k < reference else k + 1] - masses[i] * row_shares[k]
            add_pushes(X, first, count, logits, gradient)
        conjugate_move(
            gradient, shares, masses, prior_strength, prior_gram, curvature, X, direction, product, logits, move
        )
        new = climb(
            coefficients, move, trial, old, prior_strength, prior_gram, prior_target, curvature, targets, X, reference
        )
        if new - old <= SETTLED * abs(new):
            return
        old = new


@part
def conjugate_move(
    gradient: FloatArray,
    shares: FloatArray,
    masses: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    curvature: tuple[float, float],
    X: FloatArray,
    direction: FloatArray,
    product: FloatArray,
    logits: FloatArray,
    move: FloatArray,
) -> None:
    """Write the Newton step from a gradient, (N, p), to `move`, as far as a few conjugate gradients solve for it.

    The prior's Λ is the preconditioner. The gradient becomes what the equations leave unexplained; `shares` and
    `masses` as in `bend_of`; `direction`, `product` and `logits`: scratch.
    """
    free, p = move.shape
    move[:, :] = 0.0
    length = 0.0
    for k in range(free):
        for j in range(p):
            direction[k, j] = gradient[k, j] / prior_gram[j]
            length += gradient[k, j] * direction[k, j]
    first_length = length
    for _ in range(CONJUGATE_ROUNDS):
        bend_of(direction, shares, masses, prior_strength, prior_gram, curvature, X, logits, product)
        bend = 0.0
        for k in range(free):
            bend += dot(direction[k], product[k])
        if not bend > 0.0:
            return
        step = length / bend
        shorter = 0.0
        for k in range(free):
            for j in range(p):
                move[k, j] += step * direction[k, j]
                gradient[k, j] -= step * product[k, j]
                shorter += gradient[k, j] * gradient[k, j] / prior_gram[j]
        if not shorter > CLOSE * first_length:
            return
        for k in range(free):
            for j in range(p):
                direction[k, j] = gradient[k, j] / prior_gram[j] + shorter / length * direction[k, j]
        length = shorter


@allocating
def climb(
    coefficients: FloatArray,
    move: FloatArray,
    trial: FloatArray,
    old: float,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    targets: FloatArray,
    X: FloatArray,
    reference: int,
) -> float:
    """Take the largest of the step and its halves that does not lower the objective, `old`; return the new one.

    If all of them do, nothing changes, and `old` is returned. `trial`: scratch.
    """
    step = 1.0
    for _ in range(HALVINGS):
        for k in range(move.shape[0]):
            for j in range(move.shape[1]):
                trial[k, j] = coefficients[k, j] + step * move[k, j]
        new = softmax_objective(trial, prior_strength, prior_gram, prior_target, curvature, targets, X, reference)
        if new >= old:
            coefficients[:, :] = trial
            return new
        step *= 0.5
    return old


@part
def pull_to_prior(
    coefficients: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    out: FloatArray,
) -> None:
    """Write the prior's part of the gradient of `softmax_objective`, (N, p), to `out`."""
    free, p = coefficients.shape
    mix = bound_mix(curvature, free)
    for j in range(p):
        column = 0.0
        for k in range(free):
            column += coefficients[k, j] - prior_target[k, j]
        for k in range(free):
            apart = coefficients[k, j] - prior_target[k, j]
            out[k, j] = -prior_strength * prior_gram[j] * (apart - mix * column) / curvature[0]


@part
def bend_of(
    direction: FloatArray,
    shares: FloatArray,
    masses: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    curvature: tuple[float, float],
    X: FloatArray,
    logits: FloatArray,
    out: FloatArray,
) -> None:
    """Write minus the Hessian of `softmax_objective` times a direction, (N, p), to `out`.

    Args:
        shares: (n, N) probabilities of the rows, without the reference's; masses: (n,) their weights.
        logits: (4, N) scratch.
    """
    free, p = direction.shape
    mix = bound_mix(curvature, free)
    for j in range(p):
        column = 0.0
        for k in range(free):
            column += direction[k, j]
        for k in range(free):
            out[k, j] = prior_strength * prior_gram[j] * (direction[k, j] - mix * column) / curvature[0]
    for first in range(0, X.shape[0], 4):
        count = logits_of(direction, X, first, logits)
        for row in range(count):
            i = first + row
            mean = 0.0
            for k in range(free):
                mean += shares[i, k] * logits[row, k]
            for k in range(free):
                logits[row, k] = masses[i] * shares[i, k] * (logits[row, k] - mean)
        add_pushes(X, first, count, logits, out)


@part
def add_pushes(X: FloatArray, i: int, count: int, pushes: FloatArray, out: FloatArray) -> None:
    """Add pushes xᵀ of rows i to i + `count` − 1, at most four, to `out`, (N, p); pushes: (4, N)."""
    for k in range(out.shape[0]):
        row = out[k]
        if count < 4:
            for at in range(count):
                for j in range(row.shape[0]):
                    row[j] += pushes[at, k] * X[i + at, j]
            continue
        a0, a1, a2, a3 = pushes[0, k], pushes[1, k], pushes[2, k], pushes[3, k]
        x0, x1, x2, x3 = X[i], X[i + 1], X[i + 2], X[i + 3]
        for j in range(row.shape[0]):
            row[j] = row[j] + a0 * x0[j] + a1 * x1[j] + a2 * x2[j] + a3 * x3[j]


@inline
def mass_of(targets: FloatArray, free: int, reference: int) -> float:
    """The sum of a row's soft targets, the reference's first."""
    total: float = targets[reference]
    for k in range(free):
        total += targets[k if k < reference else k + 1]
    return total


@jit
def softmax_gradient(
    coefficients: FloatArray,
    prior_strength: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    targets: FloatArray,
    X: FloatArray,
    reference: int,
    out: FloatArray,
) -> None:
    """Write the gradient of `softmax_objective`, (N, p), to `out`."""
    pull_to_prior(coefficients, prior_strength, prior_gram, prior_target, curvature, out)
    softmax_sums(coefficients, targets, X, reference, False, out, np.empty((0, 0)))


@jit
def softmax_sums(
    coefficients: FloatArray,
    targets: FloatArray,
    X: FloatArray,
    reference: int,
    with_hessian: bool,
    gradient: FloatArray,
    hessian: FloatArray,
) -> float:
    """Return `softmax_objective` without a prior, and add its gradient, (N, p), and minus its Hessian, (N p, N p).

    Of the Hessian only the lower triangle is written, and nothing unless `with_hessian`.
    """
    free = coefficients.shape[0]
    shares = np.empty((4, free + 1))
    logits = np.empty((4, free))
    weights = np.empty(4)
    total = 0.0
    for first in range(0, X.shape[0], 4):
        count = logits_of(coefficients, X, first, logits)
        for row in range(count):
            i = first + row
            weights[row] = mass_of(targets[i], free, reference)
            for k in range(free):
                total += targets[i, k if k < reference else k + 1] * logits[row, k]
                shares[row, k] = logits[row, k]
            shares[row, free] = 0.0
            total -= weights[row] * softmax(shares[row])
            for k in range(free):
                logits[row, k] = targets[i, k if k < reference else k + 1] - weights[row] * shares[row, k]
        add_pushes(X, first, count, logits, gradient)
        if with_hessian:
            add_softmax_curvature(hessian, X, first, count, weights, shares)
    return total


@jit
def collect_gram(
    X: FloatArray, weights: FloatArray, prior_weight: float, prior_gram: FloatArray, total: float, gram: FloatArray
) -> None:
    """Write (Σ_i weights_i x_i x_iᵀ + prior_weight · Λ) / total to `gram`, (p, p)."""
    gram[:, :] = 0.0
    for j in range(gram.shape[0]):
        gram[j, j] = prior_weight * prior_gram[j] / total
    add_outers_in_turn(gram, X, weights / total, False)


def majorize_softmax(
    coefficients: FloatArray,
    gram: FloatArray,
    prior_weight: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    pushes: FloatArray,
    X: FloatArray,
    total: float,
) -> None:
    """C ← C − [A⁻¹ E(push xᵀ) + (prior_weight/total)(C − C_0) Λ] R⁻¹, in place: θ̄ of averaged statistics.

    Args:
        gram: (p, p) R, as `collect_gram` writes it.
        pushes: (n, N) weighted probabilities less targets.
    """
    own = np.require(gram, requirements=["C", "W"])  # what comes from other processes may be neither
    _majorize_softmax(
        _inversion(), coefficients, own, prior_weight, prior_gram, prior_target, curvature, pushes, X, total
    )


@jit
def _majorize_softmax(
    inversion: int,
    coefficients: FloatArray,
    gram: FloatArray,
    prior_weight: float,
    prior_gram: FloatArray,
    prior_target: FloatArray,
    curvature: tuple[float, float],
    pushes: FloatArray,
    X: FloatArray,
    total: float,
) -> None:
    free, p = coefficients.shape
    if free == 0:
        return
    inverse = np.empty((p, p))
    _invert(inversion, (gram, inverse, np.empty((p, p))))
    gradient = np.zeros((free, p))
    move = np.zeros((free, p))
    for i in range(X.shape[0]):
        for k in range(free):
            push = pushes[i, k] / total
            for j in range(p):
                gradient[k, j] += push * X[i, j]
    for j in range(p):
        column = 0.0
        for k in range(free):
            column += gradient[k, j]
        for k in range(free):
            gradient[k, j] = curvature[0] * (gradient[k, j] + curvature[1] * column)
            gradient[k, j] += prior_weight / total * (coefficients[k, j] - prior_target[k, j]) * prior_gram[j]
    for k in range(free):
        add_product(inverse, gradient[k], move[k])
        for j in range(p):
            coefficients[k, j] -= move[k, j]


@jit
def softmax_rows(coefficients: FloatArray, X: FloatArray, reference: int, out: FloatArray) -> None:
    """Write the probabilities of each row, (n, N+1); the reference logit stands at index `reference`."""
    for i in range(X.shape[0]):
        for k in range(coefficients.shape[0]):
            out[i, k if k < reference else k + 1] = -error_of(coefficients[k], X[i], 0.0)
        out[i, reference] = 0.0
        softmax(out[i])


@jit
def adaptive_weights(probabilities: FloatArray, out: FloatArray) -> None:
    """Write `adaptive_weight` of each row of (n, N+1) probabilities to `out`, (n,)."""
    for i in range(probabilities.shape[0]):
        out[i] = adaptive_weight(probabilities[i])


@jit
def gate_bends(shares: FloatArray, bound_share: float, out: FloatArray) -> None:
    """Write the weight that `gate_bend` gives each row of (n, K) shares to `out`, (n,)."""
    for i in range(shares.shape[0]):
        out[i] = gate_bend(shares[i], bound_share)[0]
