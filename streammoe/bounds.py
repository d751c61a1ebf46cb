"""How large a model may become: what the combination of its options and columns costs."""

from __future__ import annotations

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
