"""Spectral start: directions of regressors from a moment tensor, without an initial guess ([CQT] Algorithms 1 and 2).

For x ~ N(0, I) the score functions S_2(x) = x xᵀ − I and S_3(x) = x⊗x⊗x − Σ_i sym(x⊗e_i⊗e_i) turn moments of y into
derivatives, and for certain polynomials in y, for linear experts y² and y³ − 3 E[y²] y, the gate's contribution to
them vanishes. What remains is Σ_i E[g_i] a_i⊗a_i⊗a_i, whose components the tensor power method finds. That holds for
|a_i| = 1 and gate directions orthogonal to the regressors; elsewhere the directions are off by a few per cent, which EM
corrects.
"""

from __future__ import annotations

import numpy as np

from streammoe.types import FloatArray

POWER_STARTS = 20
"""Random starting points of the power method; the strongest result counts."""
POWER_ROUNDS = 60
"""Iterations of the power method."""
LEAST_SHARE = 1e-3
"""Eigenvalues of the second moment below this fraction of the largest are noise; then there are fewer regressors."""


def regressors(Z: FloatArray, y: FloatArray, K: int, rng: np.random.Generator) -> FloatArray | None:
    """Estimate directions of K regressors, (K, d) of length 1; return ``None`` if the moments show fewer.

    The tensor of d³ numbers is never formed: x is projected onto K dimensions first.

    Args:
        Z: (n, d) whitened inputs.
        y: (n,) outputs of mean 0 and mean square 1.
        K: number of regressors, at most d.
        rng: source of the power method's starting points.
    """
    n, d = Z.shape
    second = y * y
    T2 = (Z.T * second) @ Z / n - second.mean() * np.eye(d)
    values, vectors = np.linalg.eigh(T2)
    order = np.argsort(values)[::-1][:K]
    values, vectors = values[order], vectors[:, order]
    if len(values) < K or not values[-1] > LEAST_SHARE * values[0]:
        return None
    whitening = vectors / np.sqrt(values)
    third = y * (y * y - 3.0)
    T3 = _projected(Z @ whitening, third, whitening.T @ whitening)
    components = np.stack([_power_method(T3, rng) for _ in range(K)])
    directions: FloatArray = components @ (vectors * np.sqrt(values)).T
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return directions


def _projected(U: FloatArray, weights: FloatArray, B: FloatArray) -> FloatArray:
    """Return mean(w S_3(x)) in the coordinates u = Mᵀx, where B = MᵀM."""
    n = len(U)
    mean = weights @ U / n
    T3 = np.einsum("n,ni,nj,nk->ijk", weights, U, U, U, optimize=True) / n
    pairs = np.einsum("i,jk->ijk", mean, B)
    tensor: FloatArray = T3 - pairs - pairs.transpose(1, 0, 2) - pairs.transpose(1, 2, 0)
    return tensor


def _power_method(T: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the strongest direction of a symmetric tensor, (K,), and subtract it from the tensor in place."""
    v = rng.normal(size=(POWER_STARTS, len(T)))
    for _ in range(POWER_ROUNDS):
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        v = np.einsum("ijk,sj,sk->si", T, v, v)
        v[~(np.abs(v).sum(axis=1) > 0.0)] = 1.0
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    strength = np.einsum("ijk,si,sj,sk->s", T, v, v, v)
    best: FloatArray = v[np.argmax(strength)]
    T -= strength.max() * np.einsum("i,j,k->ijk", best, best, best)
    return best
