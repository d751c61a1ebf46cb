"""How each expert of a mixture does: its share, its loss, and whether it is starved or a duplicate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.experts import Family
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import BoolArray, FloatArray, IntArray

STARVED_BELOW = 0.1
"""An expert whose share is below this, divided by K, is starved."""
DUPLICATE_BELOW = 0.02
"""Divergence in nats below which two experts are duplicates."""


class Diagnostics(NamedTuple):
    """The condition of K experts, one entry each."""

    shares: FloatArray
    """m_k / Σ m."""
    losses: FloatArray
    """Mean −log e_k(y|x) over the events that the expert is responsible for, in the model's own units."""
    nearest: IntArray
    """The most similar other expert; −1 if there is none."""
    divergences: FloatArray
    """Mean symmetric divergence from the nearest expert in nats; infinite if there is none."""
    starved: BoolArray
    duplicate: BoolArray
    """Whether it duplicates an expert with a larger share; neither of them is starved."""


def diagnose(family: Family, state: MMState, options: LearningOptions) -> Diagnostics:
    """Diagnose every expert of a state, in O(K² p²)."""
    K = len(state.masses)
    shares = state.masses / state.masses.sum()
    apart = family.divergences(state, options)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1) if K > 1 else np.array([-1])
    starved = shares < STARVED_BELOW / K
    ranks = np.argsort(np.argsort(-shares, kind="stable"), kind="stable")
    alike = (apart < DUPLICATE_BELOW) & ~starved & (ranks < ranks[:, None])
    return Diagnostics(
        shares,
        family.expert_losses(state),
        nearest,
        apart[np.arange(K), nearest] if K > 1 else np.array([np.inf]),
        starved if K > 1 else np.zeros(1, np.bool_),
        alike.any(axis=1) & ~starved,
    )
