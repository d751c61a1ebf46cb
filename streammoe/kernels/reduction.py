"""Rounds of a reduction of normal experts: which reduced expert each local one is nearest to, and what comes to each.

Shapes: S support points, L local experts, K reduced ones, Q outputs. `nearest` (S, L) holds the reduced expert of each
local one at each point, `shares` (S, L) its share there.
"""

from __future__ import annotations

import numpy as np

from streammoe.kernels.compile import jit
from streammoe.types import FloatArray, IntArray


@jit
def nearest_normals(
    shares: FloatArray,
    means: FloatArray,
    said: FloatArray,
    roots: FloatArray,
    fixed: FloatArray,
    nearest: IntArray,
    costs: FloatArray,
) -> None:
    """Write the nearest reduced expert of each local one at each point, and its share times the divergence.

    Args:
        shares: (S, L).
        means: (S, L, Q) of the local experts.
        said: (S, K, Q) means of the reduced experts, times `roots`.
        roots: (K, Q, Q) factors B of the precisions, B Bᵀ.
        fixed: (K, L) what twice the divergence holds besides the squared distance.
        nearest: (S, L), written.
        costs: (S, L), written.
    """
    S, L, Q = means.shape
    K = said.shape[1]
    for s in range(S):
        best = costs[s]
        best[:] = np.inf
        for k in range(K):
            if Q == 1:
                # By itself, so that it is vectorized.
                middle, root = said[s, k, 0], roots[k, 0, 0]
                for i in range(L):
                    apart = middle - means[s, i, 0] * root
                    cost = 0.5 * (apart * apart + fixed[k, i])
                    closer = cost < best[i]
                    best[i] = cost if closer else best[i]
                    nearest[s, i] = k if closer else nearest[s, i]
                continue
            for i in range(L):
                total = 0.0
                for q in range(Q):
                    own = 0.0
                    for j in range(Q):
                        own += means[s, i, j] * roots[k, j, q]
                    total += (said[s, k, q] - own) ** 2
                cost = 0.5 * (total + fixed[k, i])
                if cost < best[i]:
                    best[i] = cost
                    nearest[s, i] = k
        for i in range(L):
            costs[s, i] *= shares[s, i]


@jit
def gather_normals(
    shares: FloatArray,
    means: FloatArray,
    nearest: IntArray,
    said: FloatArray,
    parts: FloatArray,
    masses: FloatArray,
    pulls: FloatArray,
    squares: FloatArray,
) -> None:
    """Write what has come to each reduced expert, relative to what it says.

    Args:
        shares, means, nearest: see `nearest_normals`.
        said: (S, K, Q) means of the reduced experts.
        parts: (K, L) shares of each local expert, written.
        masses: (S, K) shares at each point, written.
        pulls: (S, K, Q) weighted sums of how far means are from what is said, written.
        squares: (K, Q, Q) weighted squares of that, written.
    """
    S, L, Q = means.shape
    parts[:] = 0.0
    masses[:] = 0.0
    pulls[:] = 0.0
    squares[:] = 0.0
    for s in range(S):
        for i in range(L):
            k, share = nearest[s, i], shares[s, i]
            parts[k, i] += share
            masses[s, k] += share
            for q in range(Q):
                apart = share * (means[s, i, q] - said[s, k, q])
                pulls[s, k, q] += apart
                for j in range(Q):
                    squares[k, q, j] += apart * (means[s, i, j] - said[s, k, j])
