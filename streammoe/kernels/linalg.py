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
        for i in range(p):
            out[i] = 0.0
    else:
        v0, v1, v2, v3 = vector[0], vector[1], vector[2], vector[3]
        for i in range(p):
            out[i] = v0 * matrix[0, i] + v1 * matrix[1, i] + v2 * matrix[2, i] + v3 * matrix[3, i]
    for j in range(4, blocked, 4):
        v0, v1, v2, v3 = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
        for i in range(p):
            out[i] += v0 * matrix[j, i] + v1 * matrix[j + 1, i] + v2 * matrix[j + 2, i] + v3 * matrix[j + 3, i]
    for j in range(blocked, p):
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
def add_product(matrix: FloatArray, vector: FloatArray, out: FloatArray) -> None:
    """``out += matrix @ vector`` for a symmetric matrix."""
    for j in range(vector.shape[0]):
        weight = vector[j]
        for i in range(out.shape[0]):
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
    for k in range(p):
        for i in range(k + 1):
            weight = factor[k, i]
            for j in range(i + 1):
                out[i, j] += weight * factor[k, j]
    for i in range(p):
        for j in range(i + 1):
            value = out[i, j] * scale[i] * scale[j]
            out[i, j] = value
            out[j, i] = value
    return damping == 0.0


@jit
def solve_spd(matrix: FloatArray, rows: FloatArray, factor: FloatArray) -> None:
    """Replace each row b of `rows`, (m, p), by ``matrix⁻¹ b``, with the scaling and damping of `invert_spd`.

    For few rows it takes a quarter of the time of an inverse.
    """
    p = matrix.shape[0]
    scale = np.empty(p)
    _factor(matrix, scale, factor)
    for row in rows:
        for i in range(p):
            row[i] *= scale[i]
        for k in range(p):
            row[k] /= factor[k, k]
            for i in range(k + 1, p):
                row[i] -= factor[k, i] * row[k]
        for i in range(p - 1, -1, -1):
            row[i] = (row[i] - dot(factor[i, i + 1 :], row[i + 1 :])) / factor[i, i]
        for i in range(p):
            row[i] *= scale[i]


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
    for k in range(p):
        pivot = factor[k, k]
        if not pivot > smallest:
            return False
        root = math.sqrt(pivot)
        factor[k, k] = root
        for j in range(k + 1, p):
            factor[k, j] /= root
        for i in range(k + 1, p):
            weight = factor[k, i]
            for j in range(i, p):
                factor[i, j] -= weight * factor[k, j]
    return True


@allocating
def _invert_upper(factor: FloatArray) -> None:
    """Replace an upper triangular matrix by its inverse, in place, row by row from the bottom."""
    p = factor.shape[0]
    row = np.empty(p)
    for i in range(p - 1, -1, -1):
        diagonal = 1.0 / factor[i, i]
        for j in range(i, p):
            row[j] = 0.0
        for k in range(i + 1, p):
            weight = factor[i, k]
            for j in range(k, p):
                row[j] += weight * factor[k, j]
        for j in range(i + 1, p):
            factor[i, j] = -row[j] * diagonal
        factor[i, i] = diagonal
