"""States whose curvature is in blocks, see `streammoe.kernels.blocks`: their shape, and how they begin and grow.

One array of blocks of G = E[c x xᵀ], (1, blocks, size, size), takes the place of the experts' Gram matrices, and there
is none of the gate.
"""

from __future__ import annotations

import numpy as np

from streammoe.kernels.linalg import inverses_of
from streammoe.kernels.state import MMState, is_in_blocks
from streammoe.types import FloatArray, IntArray


def blocks_shape(p: int, size: int) -> tuple[int, int, int, int]:
    """Return the shape of the blocks of p features, padding included.

    >>> blocks_shape(100, 32)
    (1, 4, 32, 32)
    """
    return 1, -(-p // size), size, size


def blocks_of(gram: FloatArray, size: int) -> FloatArray:
    """Return the diagonal blocks of a matrix, (p, p); the last one is padded with zeros."""
    p = len(gram)
    blocks = np.zeros(blocks_shape(p, size))
    for b, first in enumerate(range(0, p, size)):
        own = gram[first : first + size, first : first + size]
        blocks[0, b, : len(own), : len(own)] = own
    return blocks


def unit_blocks(p: int, size: int) -> FloatArray:
    """Return blocks that stand for a prior of weight 1 and scale 1: w_b times the identity."""
    blocks = np.zeros(blocks_shape(p, size))
    for b, first in enumerate(range(0, p, size)):
        width = min(size, p - first)
        np.fill_diagonal(blocks[0, b, :width, :width], width / p)
    return blocks


def in_blocks(state: MMState, size: int) -> MMState:
    """Return the state with its curvature in blocks of so many features; `state` itself if it has that already.

    Gate and experts must see the same features. G begins as the sum of all Gram matrices, which is no less than any of
    them; at most it is twice what it would be, and the difference fades like all that came before.
    """
    if is_in_blocks(state):
        return state
    gram = state.expert_grams.sum(axis=0)
    if len(state.gate):
        gram = gram + state.gate_gram
    blocks = blocks_of(gram, size)
    return state._replace(
        gate_gram=np.empty((0, 0)),
        gate_inverse=np.empty((0, 0)),
        expert_grams=blocks,
        expert_inverses=inverses_of(blocks),
    )


def widened_blocks(blocks: FloatArray, at: IntArray, p: int, entry: float) -> FloatArray:
    """Return blocks of p features: old ones move to `at`, and new ones are uncorrelated, with `entry` times their w_b.

    Features that were in one block and are not any more count as uncorrelated.
    """
    size = blocks.shape[-1]
    wide = np.zeros(blocks_shape(p, size))
    sources = np.full(p, -1)
    sources[at] = np.arange(len(at))
    for b, first in enumerate(range(0, p, size)):
        old = sources[first : first + size]
        known = np.flatnonzero(old >= 0)
        own = old[known] // size
        inside = old[known] % size
        alike = own[:, None] == own[None]
        wide[0, b][np.ix_(known, known)] = np.where(alike, blocks[0, own[:, None], inside[:, None], inside[None]], 0.0)
        new = np.flatnonzero(old < 0)
        wide[0, b, new, new] = entry * len(old) / p
    return wide
