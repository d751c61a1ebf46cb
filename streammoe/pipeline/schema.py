"""The role of each field of a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streammoe.columns.kinds import GivenKinds
from streammoe.notation import Notations
from streammoe.settings import SchemaSettings


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

    @classmethod
    def of(cls, settings: SchemaSettings, lagged: Iterable[str], key: str | None) -> Schema:
        """Return the schema of settings.

        Args:
            settings: the section ``[schema]``.
            lagged: inputs whose earlier values are features.
            key: of labels that come late.
        """
        features = None if settings.features == "*" else tuple(settings.features)
        # The key of labels would become a feature although it is not listed as one.
        ignore = settings.ignore if key is None or features is not None else (*settings.ignore, key)
        return cls(
            targets=settings.targets,
            features=features,
            ignore=tuple(dict.fromkeys(ignore)),
            weight=settings.weight,
            categorical=frozenset(settings.categorical),
            timestamps=frozenset(settings.timestamps),
            numeric=frozenset(settings.numeric),
            lagged=frozenset(lagged),
            late_columns=settings.late_columns,
            max_columns=settings.max_columns,
            notations=settings.notations,
        )

    @property
    def given_kinds(self) -> GivenKinds:
        """Columns whose kind settings fix."""
        return GivenKinds(self.categorical, self.timestamps, self.numeric, self.lagged)

    @property
    def others(self) -> set[str]:
        """Fields that are never features."""
        return {*self.targets, *self.ignore, *((self.weight,) if self.weight else ())}
