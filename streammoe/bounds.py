"""Limits on the size of a model, which depends on its options and its columns, and on the strength of its prior."""

from __future__ import annotations

MAX_PRIOR_STRENGTH = 10**9
"""Maximum weight of the prior, in events."""
MAX_STATE_BYTES = 2**30
"""Maximum size of a state in bytes; with copies and checkpoints, a model takes several times as much memory."""
MAX_BUFFER_BYTES = 2**32
"""Maximum size in bytes of rows that are buffered during the warm-up, and of their features."""


def model_bytes(n_experts: int, n_rows: int, gate_features: int, expert_features: int) -> int:
    """Return the size of a state in bytes: Gram matrices with their inverses, and coefficients with their averages.

    Args:
        n_experts: K.
        n_rows: rows of each expert's matrix of coefficients: one per output, or one per class but the first.
        gate_features: p_w, the number of features of the gate.
        expert_features: p_v, that of the experts.

    >>> model_bytes(4, 1, 100, 100)
    812800
    """
    grams = gate_features**2 + n_experts * expert_features**2
    coefficients = n_experts * (gate_features + n_rows * expert_features)
    return 16 * (grams + coefficients)


def buffer_bytes(rows: int, gate_features: int, expert_features: int) -> int:
    """Return the size in bytes of raw rows together with their gate and expert features.

    >>> buffer_bytes(1_000, 100, 100)
    2400000
    """
    return 8 * rows * (gate_features + 2 * expert_features)
