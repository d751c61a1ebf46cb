"""The role of each field of a record."""

from __future__ import annotations

from typing import NamedTuple

from streammoe.columns.kinds import GivenKinds
from streammoe.notation import Notations


class Schema(NamedTuple):
    """The role of each field of a record."""

    targets: tuple[str, ...]
    features: tuple[str, ...] | None = None
    """``None`` for every field of the first good record that has no other role."""
    ignore: tuple[str, ...] = ()
    weight: str | None = None
    categorical: frozenset[str] = frozenset()
    timestamps: frozenset[str] = frozenset()
    numeric: frozenset[str] = frozenset()
    """Columns that hold numbers."""
    lagged: frozenset[str] = frozenset()
    """Columns whose earlier values are features, and which hold numbers too; of others the first value decides."""
    notations: Notations = Notations()
    """How values are written."""
    late_columns: bool = False
    max_columns: int = 256
    """Maximum number of features where records name their fields: a first record with more is rejected, and late
    columns join up to this number."""

    @property
    def given_kinds(self) -> GivenKinds:
        """Columns whose kind settings fix."""
        return GivenKinds(self.categorical, self.timestamps, self.numeric, self.lagged)

    @property
    def others(self) -> set[str]:
        """Fields that are never features."""
        return {*self.targets, *self.ignore, *((self.weight,) if self.weight else ())}
