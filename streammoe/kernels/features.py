"""Rows of numbers to rows of features, and the guard that keeps poison out."""

from __future__ import annotations

import math

from streammoe.kernels.compile import jit
from streammoe.types import FloatArray, IntArray


@jit
def expand_rows(
    X: FloatArray, fill: FloatArray, center: FloatArray, scale: FloatArray, degree: int, out: FloatArray
) -> None:
    """Write φ(x) = (1, z, z², …, z^degree) with z = (x − center)/scale ([MM] §4.1.1); NaN takes the column's `fill`.

    Shapes: X (n, P); fill, center, scale (P,); out (n, 1 + degree · P), all of degree 1 before all of degree 2.
    """
    P = X.shape[1]
    for i in range(X.shape[0]):
        out[i, 0] = 1.0
        for j in range(P):
            value = fill[j] if math.isnan(X[i, j]) else X[i, j]
            z = (value - center[j]) / scale[j]
            power = 1.0
            for d in range(degree):
                power *= z
                out[i, 1 + d * P + j] = power


@jit
def screen_rows(
    X: FloatArray,
    Y: FloatArray,
    largest: FloatArray,
    target_largest: FloatArray,
    factor: float,
    limit: float,
    verdicts: IntArray,
) -> int:
    """Find values out of range, row by row, and let accepted rows widen the range; return how many rows are refused.

    A value is out of range when |v| > `limit`, or, in a row that has a target, when `factor` > 0 and
    |v| > factor · max(1, largest |v| accepted so far in its column). `verdicts` gets −1, or the column at fault,
    outputs counted after the P features. NaN in X is a missing value; a row whose Y is NaN has no target and widens
    nothing.
    """
    P, Q = X.shape[1], Y.shape[1]
    refused = 0
    for i in range(X.shape[0]):
        learns = not math.isnan(Y[i, 0])
        verdicts[i] = -1
        for j in range(P):
            size = abs(X[i, j])
            if size > limit or (learns and factor > 0.0 and size > factor * max(1.0, largest[j])):
                verdicts[i] = j
                break
        if verdicts[i] < 0 and learns:
            for q in range(Q):
                size = abs(Y[i, q])
                if size > limit or (factor > 0.0 and size > factor * max(1.0, target_largest[q])):
                    verdicts[i] = P + q
                    break
        if verdicts[i] >= 0:
            refused += 1
        elif learns:
            for j in range(P):
                largest[j] = max(largest[j], abs(X[i, j]))
            for q in range(Q):
                target_largest[q] = max(target_largest[q], abs(Y[i, q]))
    return refused
