"""Least and largest values of the sizes that estimators and settings take, and what their combination may cost."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """Both are allowed."""

    least: float
    most: float


BOUNDS = {
    "n_experts": Bounds(1, 1_000),
    "max_experts": Bounds(2, 1_000),
    "top_k": Bounds(1, 1_000),
    "batch_size": Bounds(1, 100_000),
    "degree": Bounds(1, 20),
    "gate_degree": Bounds(1, 20),
    "prior_strength": Bounds(0, 10**9),
    "seed": Bounds(0, 2**128 - 1),
    "drift_restart": Bounds(1, 10**12),
    "warmup": Bounds(0, 10_000_000),
    "warmup_restarts": Bounds(1, 1_000),
    "max_classes": Bounds(2, 10_000),
    "max_levels": Bounds(1, 10_000),
    "max_columns": Bounds(1, 10_000),
}
"""By the names of arguments and settings. Values beyond them are mistakes, or more than a machine bears."""

LARGEST_MODEL = 2**30
"""Bytes of a state; in use are several times as many, for copies and checkpoints."""
LARGEST_BUFFER = 2**32
"""Bytes of a warm-up's rows, or of a group's, with their features."""


def model_bytes(n_experts: int, n_rows: int, gate_features: int, expert_features: int) -> int:
    """Bytes of a state: Gram matrices with their inverses, and coefficients with their averages.

    Args:
        n_experts: K.
        n_rows: rows of coefficients of each expert.
        gate_features: p_w.
        expert_features: p_v.

    >>> model_bytes(4, 1, 100, 100)
    812800
    """
    grams = gate_features**2 + n_experts * expert_features**2
    coefficients = n_experts * (gate_features + n_rows * expert_features)
    return 16 * (grams + coefficients)


def buffer_bytes(rows: int, gate_features: int, expert_features: int) -> int:
    """Bytes of rows as they came, and as features of gate and experts.

    >>> buffer_bytes(1_000, 100, 100)
    2400000
    """
    return 8 * rows * (gate_features + 2 * expert_features)
