"""K-means, from which a mixture may start."""

from __future__ import annotations

import numpy as np

from streammoe.kernels.compile import jit, part
from streammoe.types import FloatArray


@jit
def kmeans(points: FloatArray, first: int, draws: FloatArray, K: int, rounds: int, tau: FloatArray) -> float:
    """K-means++ and Lloyd's rounds on rows of `points`; hard labels go to `tau` (n, K). Returns the distortion.

    Args:
        points: (n, d).
        first: index of the first centre.
        draws: (K,) uniform numbers in [0, 1) that choose the others.
    """
    n, d = points.shape
    centres = np.empty((K, d))
    nearest = np.full(n, np.inf)
    labels = np.zeros(n, np.int64)
    chosen = first
    for k in range(K):
        if k > 0:
            total = 0.0
            for i in range(n):
                total += nearest[i]
            target = draws[k] * total
            chosen = n - 1
            for i in range(n):
                target -= nearest[i]
                if target < 0.0:
                    chosen = i
                    break
        for j in range(d):
            centres[k, j] = points[chosen, j]
        for i in range(n):
            nearest[i] = min(nearest[i], squared_distance(points[i], centres[k]))
    distortion = np.inf
    for _ in range(rounds):
        total = 0.0
        for i in range(n):
            best = np.inf
            for k in range(K):
                distance = squared_distance(points[i], centres[k])
                if distance < best:
                    best = distance
                    labels[i] = k
            total += best
        if not total < distortion:
            break
        distortion = total
        for k in range(K):
            count = 0
            for i in range(n):
                count += labels[i] == k
            if count == 0:
                continue
            centres[k] = 0.0
            for i in range(n):
                if labels[i] == k:
                    for j in range(d):
                        centres[k, j] += points[i, j] / count
    tau[:, :] = 0.0
    for i in range(n):
        tau[i, labels[i]] = 1.0
    return distortion


@part
def squared_distance(a: FloatArray, b: FloatArray) -> float:
    """‖a − b‖²."""
    total = 0.0
    for j in range(a.shape[0]):
        total += (a[j] - b[j]) * (a[j] - b[j])
    return total
