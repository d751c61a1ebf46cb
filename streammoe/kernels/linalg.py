"""Symmetric positive definite matrices, p × p: the inverse beside its Gram matrix.

Inner loops run along rows and accumulate whole rows at a time. That order can be vectorised without reordering a
single sum, so the results are the same bit for bit on every call, whatever a BLAS with threads would do.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import allocating, inline, jit, part
from streammoe.types import FloatArray

VANISHED = 1e-100
"""A diagonal entry below this has nothing left to say, and its inverse would overflow with the next events."""

TILE = 16
COLUMNS = 64
"""How many rows, and columns, large matrices are worked on at a time, so that they stay in the cache."""


@inline
def dot(a: FloatArray, b: FloatArray) -> float:
    """A · b, in four partial sums: one alone would wait for itself at every addition."""
    blocked = a.shape[0] - a.shape[0] % 4
    t0, t1, t2, t3 = 0.0, 0.0, 0.0, 0.0
    for j in range(0, blocked, 4):
        t0 += a[j] * b[j]
        t1 += a[j + 1] * b[j + 1]
        t2 += a[j + 2] * b[j + 2]
        t3 += a[j + 3] * b[j + 3]
    for j in range(blocked, a.shape[0]):
        t0 += a[j] * b[j]
    return (t0 + t1) + (t2 + t3)


@inline
def symmetric_product(matrix: FloatArray, vector: FloatArray, out: FloatArray) -> float:
    """Write ``matrix @ vector`` for a symmetric matrix to `out` and return ``vector @ matrix @ vector``."""
    p = vector.shape[0]
    blocked = p - p % 4
    # Four rows a sweep: `out` is then loaded and stored a quarter as often, which is what limits small matrices.
    if blocked == 0:
        v0 = vector[0]
        for i in range(p):
            out[i] = 0.0 + v0 * matrix[0, i]
    else:
        v0, v1, v2, v3 = vector[0], vector[1], vector[2], vector[3]
        for i in range(p):
            out[i] = v0 * matrix[0, i] + v1 * matrix[1, i] + v2 * matrix[2, i] + v3 * matrix[3, i]
    for j in range(4, blocked, 4):
        v0, v1, v2, v3 = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
        for i in range(p):
            out[i] += v0 * matrix[j, i] + v1 * matrix[j + 1, i] + v2 * matrix[j + 2, i] + v3 * matrix[j + 3, i]
    for j in range(max(blocked, 1), p):
        v0 = vector[j]
        for i in range(p):
            out[i] += v0 * matrix[j, i]
    return dot(vector, out)


@inline
def add_outer(matrix: FloatArray, vector: FloatArray, weight: float) -> None:
    """``matrix += weight * outer(vector, vector)``, in place."""
    p = vector.shape[0]
    for i in range(p):
        scaled = weight * vector[i]
        for j in range(p):
            matrix[i, j] += scaled * vector[j]


@part
def add_outers_in_turn(matrix: FloatArray, rows: FloatArray, weights: FloatArray, lower: bool) -> None:
    """Do `add_outer` for rows, (n, p), of weights, (n,), one after the other.

    `lower`: in the lower triangle alone. Four rows a sweep, each of them added by itself as in single calls, whose
    result this is bit for bit.
    """
    n, p = rows.shape
    blocked = n - n % 4
    for first in range(0, p, TILE):
        for e in range(0, blocked, 4):
            r0, r1, r2, r3 = rows[e], rows[e + 1], rows[e + 2], rows[e + 3]
            w0, w1, w2, w3 = weights[e], weights[e + 1], weights[e + 2], weights[e + 3]
            for i in range(first, min(first + TILE, p)):
                row = matrix[i]
                a0, a1, a2, a3 = w0 * r0[i], w1 * r1[i], w2 * r2[i], w3 * r3[i]
                for j in range(i + 1 if lower else p):
                    row[j] = row[j] + a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]
        for e in range(blocked, n):
            row = rows[e]
            for i in range(first, min(first + TILE, p)):
                scaled = weights[e] * row[i]
                for j in range(i + 1 if lower else p):
                    matrix[i, j] += scaled * row[j]


@part
def add_product(matrix: FloatArray, vector: FloatArray, out: FloatArray) -> None:
    """``out += matrix @ vector`` for a symmetric matrix."""
    p = vector.shape[0]
    for j in range(p):
        weight = vector[j]
        for i in range(p):
            out[i] += weight * matrix[j, i]


@jit
def invert_spd(matrix: FloatArray, out: FloatArray, factor: FloatArray) -> bool:
    """Write the inverse of a symmetric positive definite matrix to `out`; `factor` is p × p scratch.

    Only the lower triangle is read. Rows and columns are scaled to a unit diagonal first, so that features of very
    different size cost no accuracy. Where the scaled matrix is singular to working precision, a small multiple of
    its diagonal is added, ten times more each time it fails: that is a proximal damping, which keeps a surrogate a
    majorizer. Returns whether the matrix was sound as given.
    """
    p = matrix.shape[0]
    scale = np.empty(p)
    damping = _factor(matrix, scale, factor)
    _invert_upper(factor)
    # inverse = V Vᵀ with V = U⁻¹; its columns are gathered as rows, so that the inner loop runs along memory.
    for i in range(p):
        for j in range(i):
            factor[i, j] = factor[j, i]
    for i in range(p):
        for j in range(p):
            out[i, j] = 0.0
    _add_gram_lower(factor, out)
    for i in range(p):
        for j in range(i + 1):
            value = out[i, j] * scale[i] * scale[j]
            out[i, j] = value
            out[j, i] = value
    return damping == 0.0


def inverses_of(matrices: FloatArray) -> FloatArray:
    """Return the inverses of matrices, (…, p, p), by `invert_spd`."""
    shape = (math.prod(matrices.shape[:-2]), *matrices.shape[-2:])
    inverses = np.empty(matrices.shape)
    for matrix, inverse in zip(matrices.reshape(shape), inverses.reshape(shape), strict=True):
        invert_spd(matrix, inverse, np.empty_like(matrix))
    return inverses


@part
def _factor(matrix: FloatArray, scale: FloatArray, factor: FloatArray) -> float:
    """Write 1/√diagonal to `scale` and U with UᵀU = the scaled matrix to `factor`; return how much was added to it."""
    p = matrix.shape[0]
    for i in range(p):
        scale[i] = 1.0 / math.sqrt(matrix[i, i]) if matrix[i, i] > VANISHED else 1.0
    damping = 0.0
    for _ in range(16):
        if _cholesky_upper(matrix, scale, damping, factor):
            break
        damping = 1e-14 * p if damping == 0.0 else 10.0 * damping
    return damping


@part
def _cholesky_upper(matrix: FloatArray, scale: FloatArray, damping: float, factor: FloatArray) -> bool:
    """Factor ``S matrix S + damping I = Uᵀ U`` into the upper triangle of `factor`; False where a pivot vanishes."""
    p = matrix.shape[0]
    for i in range(p):
        for j in range(i, p):
            factor[i, j] = matrix[j, i] * scale[i] * scale[j]
        # A feature that has always been 0, or as good as, stands apart; any inverse will do, and 1 is a harmless one.
        factor[i, i] = factor[i, i] + damping if matrix[i, i] > VANISHED else 1.0
    smallest = 4e-16 * p
    for first in range(0, p, TILE):
        stop = min(first + TILE, p)
        for k in range(0, first, 4):
            _subtract_outers(factor, k, first, stop)
        inner = stop - (stop - first) % 4
        for k in range(first, inner, 4):
            for at in range(k, k + 4):
                if not _finish_row(factor, at, k, smallest):
                    return False
            _subtract_outers(factor, k, k + 4, stop)
        for k in range(inner, stop):
            if not _finish_row(factor, k, inner, smallest):
                return False
    return True


@inline
def _subtract_outers(factor: FloatArray, k: int, start: int, stop: int) -> None:
    """Subtract what rows k to k + 3 explain of rows `start` to `stop`, one after the other, in one sweep."""
    for i in range(start, stop):
        row = factor[i, i:]
        f0, f1, f2, f3 = factor[k, i:], factor[k + 1, i:], factor[k + 2, i:], factor[k + 3, i:]
        w0, w1, w2, w3 = f0[0], f1[0], f2[0], f3[0]
        for j in range(row.shape[0]):
            row[j] = row[j] - w0 * f0[j] - w1 * f1[j] - w2 * f2[j] - w3 * f3[j]


@inline
def _finish_row(factor: FloatArray, k: int, first: int, smallest: float) -> bool:
    """Subtract what rows `first` to k explain of row k, and divide it by its root; False where the pivot vanishes."""
    row = factor[k, k:]
    for i in range(first, k):
        other = factor[i, k:]
        weight = other[0]
        for j in range(row.shape[0]):
            row[j] -= weight * other[j]
    pivot = row[0]
    if not pivot > smallest:
        return False
    root = math.sqrt(pivot)
    row[0] = root
    for j in range(1, row.shape[0]):
        row[j] /= root
    return True


@part
def _add_gram_lower(rows: FloatArray, out: FloatArray) -> None:
    """Add Σ_k row_k row_kᵀ of the rows of a lower triangular matrix to the lower triangle of `out`."""
    p = rows.shape[0]
    blocked = p - p % 4
    for first in range(0, p, TILE):
        stop = min(first + TILE, p)
        for k in range(first, blocked, 4):
            r0, r1, r2, r3 = rows[k], rows[k + 1], rows[k + 2], rows[k + 3]
            for i in range(first, min(k + 1, stop)):
                row = out[i]
                w0, w1, w2, w3 = r0[i], r1[i], r2[i], r3[i]
                for j in range(i + 1):
                    row[j] = row[j] + w0 * r0[j] + w1 * r1[j] + w2 * r2[j] + w3 * r3[j]
            for i in range(k + 1, min(k + 4, stop)):
                for at in range(i, k + 4):
                    _add_row(rows, at, i, out)
        for k in range(blocked, p):
            for i in range(first, min(k + 1, stop)):
                _add_row(rows, k, i, out)


@inline
def _add_row(rows: FloatArray, k: int, i: int, out: FloatArray) -> None:
    weight = rows[k, i]
    for j in range(i + 1):
        out[i, j] += weight * rows[k, j]


@allocating
def _invert_upper(factor: FloatArray) -> None:
    """Replace an upper triangular matrix by its inverse, in place, row by row from the bottom."""
    p = factor.shape[0]
    row = np.empty(p)
    # By columns from the right, since row i of the factor is needed up to them.
    for first in range((p - 1) // COLUMNS * COLUMNS, -1, -COLUMNS):
        _invert_columns(factor, first, min(first + COLUMNS, p), row)


@part
def _invert_columns(factor: FloatArray, first: int, stop: int, row: FloatArray) -> None:
    """Replace columns `first` to `stop` of an upper triangular matrix by those of its inverse; `row` is scratch."""
    for i in range(stop - 1, -1, -1):
        start = max(i, first)
        diagonal = 1.0 / factor[i, i]
        for j in range(start, stop):
            row[j] = 0.0
        blocked = stop - (stop - 1 - i) % 4
        for k in range(i + 1, blocked, 4):
            w0, w1, w2, w3 = factor[i, k], factor[i, k + 1], factor[i, k + 2], factor[i, k + 3]
            if k >= first:
                row[k] += w0 * factor[k, k]
            if k + 1 >= first:
                row[k + 1] = row[k + 1] + w0 * factor[k, k + 1] + w1 * factor[k + 1, k + 1]
            if k + 2 >= first:
                row[k + 2] = row[k + 2] + w0 * factor[k, k + 2] + w1 * factor[k + 1, k + 2] + w2 * factor[k + 2, k + 2]
            at = max(k + 3, first)
            rest = row[at:stop]
            f0, f1, f2, f3 = factor[k, at:], factor[k + 1, at:], factor[k + 2, at:], factor[k + 3, at:]
            for j in range(rest.shape[0]):
                rest[j] = rest[j] + w0 * f0[j] + w1 * f1[j] + w2 * f2[j] + w3 * f3[j]
        for k in range(blocked, stop):
            weight = factor[i, k]
            for j in range(max(k, first), stop):
                row[j] += weight * factor[k, j]
        for j in range(max(i + 1, first), stop):
            factor[i, j] = -row[j] * diagonal
        if i >= first:
            factor[i, i] = diagonal
