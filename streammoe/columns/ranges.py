"""Ranges of columns, learned from accepted values: scales that reject absurd values, and bounds that clip inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streammoe.checked import array_of, require
from streammoe.columns.arrays import joined
from streammoe.columns.outliers import MAX_OUTLIER_SHARE, median, winsorised
from streammoe.kernels.features import BLOCK, FAR, FEW, RUN, SETTLED
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray

ABSURD = 10.0
"""A buffered value does not count towards the bounds if it is this many times farther from the edge to which outliers
are clipped than the edge is from the median."""
ENOUGH = 100
ENOUGH_SHARE = 0.25
"""Number of buffered values, other than the most common one, and their share of all, that settle the bounds of a
column; as many as settle it later do as well."""


class Scales(NamedTuple):
    """The scales of C columns, by which absurd values are rejected; `kernels.features.screen_rows` updates them."""

    scales: FloatArray
    """(C,) largest median of |v| over full blocks of values other than 0; 0 until a block is full."""
    blocks: FloatArray
    """(C, BLOCK) |v| of the values in the current, unfinished block."""
    filled: IntArray
    """(C,) number of values in that block."""

    @classmethod
    def blank(cls, n_columns: int) -> Scales:
        """Return the scales of columns without values."""
        return cls(np.zeros(n_columns), np.zeros((n_columns, BLOCK)), np.zeros(n_columns, dtype=np.int64))

    def union(self, other: Scales) -> Scales:
        """Return scales that accept what either of both does, with no block begun."""
        return Scales.blank(len(self.scales))._replace(scales=np.maximum(self.scales, other.scales))

    def arrays(self, name: str) -> dict[str, AnyArray]:
        """Return the scales as named arrays."""
        return {name: self.scales, f"{name}.blocks": self.blocks, f"{name}.filled": self.filled}

    @classmethod
    def restored(cls, arrays: Mapping[str, AnyArray], name: str, n_columns: int) -> Scales:
        """Restore scales from what `arrays` returned; raise `CheckpointError` for anything else."""
        scales = array_of(arrays, name, "float64", (n_columns,), least=0.0)
        blocks = array_of(arrays, f"{name}.blocks", "float64", (n_columns, BLOCK), least=0.0)
        filled = array_of(arrays, f"{name}.filled", "int64", (n_columns,), least=0, most=BLOCK - 1)
        return joined(cls(scales, blocks, filled))


def limits_of(values: FloatArray, factor: float) -> FloatArray:
    """Return the largest size that is in range of each of the buffered columns, (n, C), by its scale; ∞ if factor is 0.

    The scale is that of `Scales`, except that fewer numbers than a block has are all judged by their median.
    """
    limits = np.full(values.shape[1], np.inf)
    if factor <= 0.0:
        return limits
    for j, column in enumerate(np.abs(values).T):
        known = column[column > 0.0]
        if not known.size or known.max() <= factor * known.min():
            continue
        blocks = known[: known.size // BLOCK * BLOCK].reshape(-1, BLOCK)
        scale = float(np.median(blocks, axis=1).max()) if len(blocks) else median(known)
        limits[j] = factor * scale
    return limits


def within(values: FloatArray, limits: FloatArray) -> FloatArray:
    """Return buffered values, (n, C), with NaN for those that would be out of range if they came now.

    When they came, the scale of the column may not have been known.
    """
    return np.where(np.abs(values) > limits, np.nan, values)


class Bounds(NamedTuple):
    """The bounds to which values of C columns are clipped; `kernels.features.clip_rows` updates them."""

    low: FloatArray
    """(C,) lower bound: the smallest value, except that single values far out move it only a little."""
    high: FloatArray
    """(C,) upper bound, likewise."""
    first: FloatArray
    """(C,) first value, or of a buffer the most common one; later the latest one far beyond the bounds."""
    seen: IntArray
    """(C,) 0 before the first value; then 1 + the number of values that differ from `first`, up to 1 + SETTLED; above
    that, counts of values beyond the bounds."""

    @classmethod
    def blank(cls, n_columns: int) -> Bounds:
        """Return the bounds of columns without values."""
        return cls(np.zeros(n_columns), np.zeros(n_columns), np.zeros(n_columns), np.zeros(n_columns, dtype=np.int64))

    @classmethod
    def of(
        cls, values: FloatArray, columns: IntArray, *, share: float = MAX_OUTLIER_SHARE, codes: bool = False
    ) -> Bounds:
        """Return the bounds of the given columns of buffered rows, (n, C) with NaN where missing; others are blank.

        Values that are `ABSURD` do not count; `share` and `codes` are as in `winsorised`.
        """
        bounds = cls.blank(values.shape[1])
        edges = winsorised(values, share=share, codes=codes)
        for j in columns.tolist():
            known = ~np.isnan(values[:, j])
            column, edge = values[known, j], edges[known, j]
            if not column.size:
                continue
            kept = column[np.abs(column - edge) <= ABSURD * np.abs(edge - median(column))]
            found, counts = np.unique(kept, return_counts=True)
            bounds.low[j], bounds.high[j], bounds.first[j] = found[0], found[-1], found[counts.argmax()]
            others = kept.size - int(counts.max())
            is_settled = others >= max(ENOUGH, ENOUGH_SHARE * kept.size)
            bounds.seen[j] = 1 + (SETTLED if is_settled else min(others, SETTLED))
        return bounds

    def union(self, other: Bounds) -> Bounds:
        """Return the bounds that contain both."""
        old, new = self.seen > 0, other.seen > 0
        return Bounds(
            np.where(old & new, np.minimum(self.low, other.low), np.where(old, self.low, other.low)),
            np.where(old & new, np.maximum(self.high, other.high), np.where(old, self.high, other.high)),
            np.where(old, self.first, other.first),
            np.maximum(self.seen, other.seen),
        )

    def are_far(self, values: FloatArray) -> BoolArray:
        """Return which values, (n, C), are far beyond the bounds; none in columns with no more than a few values."""
        reach = np.where(self.seen > FEW, FAR * (self.high - self.low), np.inf)
        found: BoolArray = (self.low - reach > values) | (self.high + reach < values)
        return found

    def arrays(self, name: str) -> dict[str, AnyArray]:
        """Return the bounds as named arrays."""
        return {name: np.stack([self.low, self.high, self.first]), f"{name}.seen": self.seen}

    @classmethod
    def restored(cls, arrays: Mapping[str, AnyArray], name: str, n_columns: int) -> Bounds:
        """Restore bounds from what `arrays` returned; raise `CheckpointError` for anything else."""
        low, high, first = array_of(arrays, name, "float64", (3, n_columns))
        require((low <= high).all(), f"array {name} holds lower bounds above the upper ones")
        seen = array_of(arrays, f"{name}.seen", "int64", (n_columns,), least=0, most=SETTLED + 3 * RUN)
        return joined(cls(low, high, first, seen))
