"""How each expert fares: its share, its loss, its nearest, and whether it is starved or a duplicate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.experts import Family
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import BoolArray, FloatArray, IntArray

STARVED_BELOW = 0.1
"""An expert whose share is below this, over K, is starved."""
DUPLICATE_BELOW = 0.02
"""Nats below which two experts say the same."""


class Life(NamedTuple):
    """Of K experts, one entry each."""

    shares: FloatArray
    """m_k / Σ m."""
    losses: FloatArray
    """Mean −log e_k(y|x) of the events that it answers for, in the model's own units."""
    nearest: IntArray
    """The expert that says most nearly the same; −1 where there is no other."""
    divergences: FloatArray
    """How much it says otherwise than the nearest: mean symmetric divergence in nats; infinite where there is none."""
    starved: BoolArray
    duplicate: BoolArray
    """Whether it says the same as one that answers for more; neither of them is starved."""


def life(family: Family, state: MMState, options: LearningOptions) -> Life:
    """Judge every expert of a state, at O(K² p²)."""
    K = len(state.masses)
    shares = state.masses / state.masses.sum()
    apart = family.divergences(state, options)
    np.fill_diagonal(apart, np.inf)
    nearest = apart.argmin(axis=1) if K > 1 else np.array([-1])
    starved = shares < STARVED_BELOW / K
    ranks = np.argsort(np.argsort(-shares, kind="stable"), kind="stable")
    alike = (apart < DUPLICATE_BELOW) & ~starved & (ranks < ranks[:, None])
    return Life(
        shares,
        family.expert_losses(state),
        nearest,
        apart[np.arange(K), nearest] if K > 1 else np.array([np.inf]),
        starved if K > 1 else np.zeros(1, np.bool_),
        alike.any(axis=1) & ~starved,
    )


def idle(found: Life) -> int | None:
    """The expert that is needed least: the most starved one, or else of the duplicates the nearest to another."""
    if found.starved.any():
        return int(np.where(found.starved, found.shares, np.inf).argmin())
    if found.duplicate.any():
        return int(np.where(found.duplicate, found.divergences, np.inf).argmin())
    return None


def costliest(found: Life, expert: int) -> list[int]:
    """All experts but one, the worst first: by what their loss above that of the best costs the whole mixture."""
    others = [k for k in range(len(found.shares)) if k != expert]
    best = min(found.losses[others])
    cost = found.shares * (found.losses - best)
    return sorted(others, key=lambda k: (-cost[k], -found.shares[k], k))
