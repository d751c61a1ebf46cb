"""Estimates of the multiply-adds that fits take, up to a constant factor."""

from __future__ import annotations

from typing import NamedTuple

from streammoe.experts import Family
from streammoe.kernels.batch import CONJUGATE_ROUNDS, is_conjugate

EXPONENTIAL = 20
"""Multiply-adds that take as long as an exponential function."""
SWEEPS = 4
"""How often a step of a softmax regression passes over all features and coefficients, apart from its curvature."""


class Shape(NamedTuple):
    """The sizes that a fit's cost depends on: K experts, N rows of coefficients each, p_w and p_v features."""

    n_experts: int
    n_rows: int
    p_w: int
    p_v: int


def row_cost(family: Family, shape: Shape, *, has_matrices: bool = False) -> float:
    """Estimate the multiply-adds of one row in one round of EM, up to a constant factor.

    Args:
        family: family of the experts.
        shape: the size of the mixture.
        has_matrices: whether it is a round that builds every Gram matrix, as the end of a fit does.
    """
    K, N, p_w, p_v = shape
    experts = K * p_v**2 if family.n_variances(1) else K * _softmax_cost(N, p_v, has_matrices)
    return max(experts + _softmax_cost(K - 1, p_w, has_matrices), 1.0)


def _softmax_cost(free: int, p: int, has_matrix: bool) -> float:
    if not is_conjugate(free, p):
        return (free * p) ** 2 + free * (EXPONENTIAL + SWEEPS * p)
    if has_matrix:
        return 2 * p**2 + free * (EXPONENTIAL + SWEEPS * p)
    return free * (EXPONENTIAL + (SWEEPS + 2 * CONJUGATE_ROUNDS) * p)
