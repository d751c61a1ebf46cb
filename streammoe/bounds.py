"""Limits on the numbers in a model, and on its size, which depends on both its options and its columns."""

from __future__ import annotations

HEAVIEST_PRIOR = 10**9
"""Maximum weight of a prior, in events."""
LARGEST_MODEL = 2**30
"""Maximum bytes of a state; copies and checkpoints take several times as much."""
LARGEST_BUFFER = 2**32
"""Maximum bytes of the rows of a warm-up or group, with their features."""


def model_bytes(n_experts: int, n_rows: int, gate_features: int, expert_features: int) -> int:
    """Return the bytes of a state: Gram matrices with their inverses, and coefficients with their averages.

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
    """Return the bytes of raw rows together with their gate and expert features.

    >>> buffer_bytes(1_000, 100, 100)
    2400000
    """
    return 8 * rows * (gate_features + 2 * expert_features)
