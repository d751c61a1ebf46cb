"""What accepted values say of the numbers that a column may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streammoe.checked import array_of, require
from streammoe.kernels.features import BLOCK, SETTLED
from streammoe.kernels.robust import winsorised
from streammoe.types import AnyArray, FloatArray, IntArray

ABSURD = 10.0
"""How many times farther beyond the edge to which outliers are moved than that is from the median."""


class Scales(NamedTuple):
    """The scale of each of C columns, by which absurd values are rejected; see `screen_rows`, which changes them."""

    scales: FloatArray
    """(C,) largest median of |v| in a block of values other than 0; 0 until a block is full."""
    blocks: FloatArray
    """(C, BLOCK) |v| of the values in the block that fills."""
    filled: IntArray
    """(C,) how many those are."""

    @classmethod
    def blank(cls, n_columns: int) -> Scales:
        """Return the scales of columns without values."""
        return cls(np.zeros(n_columns), np.zeros((n_columns, BLOCK)), np.zeros(n_columns, dtype=np.int64))

    def copied(self) -> Scales:
        """Return an independent copy."""
        return Scales(self.scales.copy(), self.blocks.copy(), self.filled.copy())

    def wider(self, more: int) -> Scales:
        """Return an independent copy with so many more columns."""
        new = Scales.blank(more)
        return Scales(
            np.concatenate([self.scales, new.scales]),
            np.concatenate([self.blocks, new.blocks]),
            np.concatenate([self.filled, new.filled]),
        )

    def arrays(self, name: str) -> dict[str, AnyArray]:
        """Return them as named arrays; blocks without values are left out, as in checkpoints of earlier versions."""
        return {name: self.scales, **({f"{name}.blocks": self.blocks, f"{name}.filled": self.filled} if self else {})}

    def __bool__(self) -> bool:
        """Return whether there are values in a block."""
        return bool(self.filled.any())

    @classmethod
    def restored(cls, arrays: Mapping[str, AnyArray], name: str, n_columns: int) -> Scales:
        """Restore what `arrays` returned.

        Earlier versions judged by the largest value so far, which goes on as the scale.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        blank = cls.blank(n_columns)
        given = {f"{name}.blocks": blank.blocks, f"{name}.filled": blank.filled, **arrays}
        return cls(
            array_of(given, name, "float64", (n_columns,), least=0.0),
            array_of(given, f"{name}.blocks", "float64", (n_columns, BLOCK), least=0.0),
            array_of(given, f"{name}.filled", "int64", (n_columns,), least=0, most=BLOCK - 1),
        ).copied()


class Bounds(NamedTuple):
    """The values between which each of C columns is held; see `hold_rows`, which changes them."""

    low: FloatArray
    """(C,) least value that counts, and `high`: (C,) largest one."""
    high: FloatArray
    first: FloatArray
    """(C,) first value."""
    seen: IntArray
    """(C,) 0 without any value; else 1 + the number of values that differ from the first, at most 1 + SETTLED."""

    @classmethod
    def blank(cls, n_columns: int) -> Bounds:
        """Return the bounds of columns without values."""
        return cls(np.zeros(n_columns), np.zeros(n_columns), np.zeros(n_columns), np.zeros(n_columns, dtype=np.int64))

    @classmethod
    def around(cls, values: FloatArray, columns: IntArray) -> Bounds:
        """Return the bounds of these columns of buffered rows, (n, C) with NaN where missing; others stay blank.

        The few values that are `ABSURD` times farther out than outliers do not count.
        """
        found = cls.blank(values.shape[1])
        edges = winsorised(values)
        for j in columns.tolist():
            known = ~np.isnan(values[:, j])
            column, edge = values[known, j], edges[known, j]
            if not column.size:
                continue
            kept = column[np.abs(column - edge) <= ABSURD * np.abs(edge - np.median(column))]
            found.low[j], found.high[j], found.first[j] = kept.min(), kept.max(), kept[0]
            found.seen[j] = min(1 + int(np.count_nonzero(kept != kept[0])), 1 + SETTLED)
        return found

    def copied(self) -> Bounds:
        """Return an independent copy."""
        return Bounds(self.low.copy(), self.high.copy(), self.first.copy(), self.seen.copy())

    def wider(self, more: int) -> Bounds:
        """Return an independent copy with so many more columns."""
        new = Bounds.blank(more)
        return Bounds(
            np.concatenate([self.low, new.low]),
            np.concatenate([self.high, new.high]),
            np.concatenate([self.first, new.first]),
            np.concatenate([self.seen, new.seen]),
        )

    def joined(self, other: Bounds) -> Bounds:
        """Return bounds that hold what both do."""
        old, new = self.seen > 0, other.seen > 0
        return Bounds(
            np.where(old & new, np.minimum(self.low, other.low), np.where(old, self.low, other.low)),
            np.where(old & new, np.maximum(self.high, other.high), np.where(old, self.high, other.high)),
            np.where(old, self.first, other.first),
            np.maximum(self.seen, other.seen),
        )

    def arrays(self, name: str) -> dict[str, AnyArray]:
        """Return them as named arrays."""
        return {name: np.stack([self.low, self.high, self.first]), f"{name}.seen": self.seen}

    @classmethod
    def restored(cls, arrays: Mapping[str, AnyArray], name: str, n_columns: int) -> Bounds:
        """Restore what `arrays` returned.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        low, high, first = array_of(arrays, name, "float64", (3, n_columns))
        require((low <= high).all(), f"array {name} holds lower bounds above the upper ones")
        seen = array_of(arrays, f"{name}.seen", "int64", (n_columns,), least=0, most=1 + SETTLED)
        return cls(low, high, first, seen).copied()
