"""Shared parts of all mixtures: validation of the components' arrays, and random choice of components."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streammoe.errors import ConfigError
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

SHARES_OFF = 1e-6
"""Tolerance for the sum of shares, which are then rescaled to 1, so that rounding does not matter."""

ROOT_2PI = math.sqrt(2.0 * math.pi)


def keep_parts(mixture: Any, scales: str) -> None:
    """Validate and store shares, means and scales of a mixture of one number."""
    shares = checked_shares(mixture.shares)
    keep(mixture, "shares", shares)
    keep(mixture, "means", finite("means", mixture.means, (len(shares),)))
    keep(mixture, scales, positive(scales, finite(scales, getattr(mixture, scales), (len(shares),))))


def keep_outputs(mixture: Any) -> tuple[int, int]:
    """Validate and store shares, means and names of a mixture of several numbers; return K and Q."""
    shares = checked_shares(mixture.shares)
    keep(mixture, "shares", shares)
    if np.ndim(mixture.means) != 2 or not np.shape(mixture.means)[1]:
        raise ConfigError(f"means: got shape {np.shape(mixture.means)}; it must be (K, Q) with K = {len(shares)}")
    K, Q = len(shares), np.shape(mixture.means)[1]
    keep(mixture, "means", finite("means", mixture.means, (K, Q)))
    names = tuple(mixture.names) or tuple(f"y{q}" for q in range(Q))
    if len(names) != Q or len(set(names)) != Q:
        raise ConfigError(f"names: got {names!r} for {Q} outputs; give each output a name of its own")
    object.__setattr__(mixture, "names", names)
    return K, Q


def diagonals(variances: FloatArray) -> FloatArray:
    """Return matrices (K, Q, Q) with these diagonals (K, Q)."""
    return np.asarray(variances[:, :, None] * np.eye(variances.shape[1]))


def choose(shares: FloatArray, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> AnyArray:
    """Draw random components, each with the probability of its share; one of share 0 is never drawn."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(f"rng: got {shown(rng)}; make one with numpy.random.default_rng(seed)")
    ends = np.cumsum(shares)
    return np.asarray(np.searchsorted(ends, rng.random(size) * ends[-1], side="right"))


def tail_of(level: float) -> float:
    """Return the probability on each side of the central interval."""
    if not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise ConfigError(f"level: got {shown(level)}; a probability must lie between 0 and 1, both excluded")
    return 0.5 * (1.0 - level)


def checked_shares(values: ArrayLike) -> FloatArray:
    """Validate shares (K,) and return a copy that adds up to 1."""
    if np.ndim(values) != 1 or not np.shape(values)[0]:
        raise ConfigError(f"shares: got shape {np.shape(values)}; it must be (K,) with at least one component")
    shares = finite("shares", values, np.shape(values))
    total = float(np.sum(shares))
    if not (shares >= 0.0).all() or abs(total - 1.0) > SHARES_OFF:
        raise ConfigError(f"shares: got {shares.tolist()}; they must be at least 0 and add up to 1")
    return np.asarray(shares / total)


def finite(name: str, values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Copy values as finite floats of this shape."""
    try:
        found = np.array(values, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        raise ConfigError(f"{name}: got {shown(values)}; it must be an array of 64-bit floats") from None
    if found.shape != shape:
        raise ConfigError(f"{name}: got shape {found.shape}; it must be {shape}")
    if not np.isfinite(found).all():
        raise ConfigError(f"{name}: got {found.tolist()}; all of them must be finite")
    return found


def positive(name: str, values: FloatArray) -> FloatArray:
    """Return the values, or raise `ConfigError` unless all of them are above 0."""
    if not (values > 0.0).all():
        raise ConfigError(f"{name}: got {values.tolist()}; all of them must be above 0")
    return values


def lower_factors(matrices: FloatArray) -> FloatArray:
    """Return lower triangular L (K, Q, Q) with L Lᵀ = Σ."""
    scale = np.sqrt(np.abs(np.diagonal(matrices, axis1=1, axis2=2)))
    tolerance = 1e-9 * scale[:, :, None] * scale[:, None, :]
    if not (np.abs(matrices - matrices.transpose(0, 2, 1)) <= tolerance).all():
        raise ConfigError("covariances: got a matrix that is not symmetric; each must be a covariance matrix")
    try:
        return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise ConfigError(
            "covariances: got a matrix that is not positive definite; every variance must be above 0"
        ) from None


def keep(mixture: object, name: str, values: FloatArray) -> None:
    """Set a field of a frozen mixture to a read-only array."""
    values.flags.writeable = False
    object.__setattr__(mixture, name, values)


def numbers(name: str, values: ArrayLike) -> FloatArray:
    """Convert values to an array of floats; raise `ConfigError` if they are not numbers."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiu":
        raise ConfigError(f"{name}: got {shown(values)}; it must be a number or an array of numbers")
    return found.astype(np.float64)


def like(given: float | FloatArray, found: FloatArray) -> float | FloatArray:
    """Return a float if a single number was given."""
    return float(found) if np.ndim(given) == 0 else np.asarray(found)
