"""What accepted values say of the numbers that a column may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streammoe.checked import array_of
from streammoe.kernels.features import BLOCK
from streammoe.types import AnyArray, FloatArray, IntArray


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
