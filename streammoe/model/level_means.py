"""Identifiers: what the targets of each level have been, where a category has more levels than get columns.

A user, a product or a device has too many levels for columns of their own. Its level then becomes one number for each
target, or for each class but the first: how far the targets of its events were from those of all, shrunk, before the
event itself is learned. These numbers are the first fields of a model, behind lags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streammoe.checked import array_of, names_of, require
from streammoe.columns.encoder import ABSOLUTE_LIMIT
from streammoe.columns.layout import MOST_IDENTIFIERS, Columns
from streammoe.kernels.level_means import EMPTY, LONGEST, SLOTS, WAYS, learn_rows
from streammoe.types import AnyArray, FloatArray, IntArray

PREFIX = "level_means."
"""Prefix of the names of its arrays in checkpoints."""
MOST_VALUES = 7
"""Most classes beyond the first that have a number each."""
NO_TARGETS = np.full((1, 1), np.nan)


class LevelMeans:
    """What is known of the levels of identifiers.

    Args:
        identifiers: names of the fields.
        values: names of what each level has a mean of: targets, or classes but the first one.
        is_metric: whether targets are numbers.

    Attributes:
        keys, counts, means, overall: see `kernels.level_means.learn_rows`; kernels change them.
    """

    def __init__(self, identifiers: Sequence[Any], values: Sequence[Any], *, is_metric: bool) -> None:
        self.identifiers = tuple(identifiers)
        self.values = tuple(values)
        self.is_metric = is_metric
        I, V = len(identifiers), len(values)  # noqa: E741
        self.keys = np.full((I, SLOTS), EMPTY)
        self.counts = np.zeros((I, SLOTS))
        self.means = np.zeros((I, SLOTS, V))
        self.overall = np.zeros(1 + V)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that it fills in.

        >>> LevelMeans(["user", "shop"], ["y"], is_metric=True).names
        ('user:mean', 'shop:mean')
        >>> LevelMeans(["user"], ["spam", "other"], is_metric=False).names
        ('user:share of spam', 'user:share of other')
        """
        ends = [f"share of {value!s}" for value in self.values]
        if self.is_metric:
            ends = ["mean"] if len(self.values) == 1 else [f"mean of {value!s}" for value in self.values]
        return tuple(f"{name!s}:{end}" for name in self.identifiers for end in ends)

    def copy(self) -> LevelMeans:
        """Return an independent copy."""
        other = LevelMeans(self.identifiers, self.values, is_metric=self.is_metric)
        for mine, its in zip(self.state, other.state, strict=True):
            its[:] = mine
        return other

    @property
    def state(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The arrays that kernels change."""
        return self.keys, self.counts, self.means, self.overall

    def fields(self, columns: Columns) -> IntArray:
        """Return the places of the identifiers in raw rows."""
        return np.array([columns.index[name] for name in self.identifiers], dtype=np.int64)

    def first(self, columns: Columns) -> int:
        """Return the place of the first mean in raw rows."""
        return len(columns.lagged) - columns.n_means

    def taken(self, X: FloatArray, Y: FloatArray, columns: Columns) -> FloatArray:
        """Return rows with the means before each of them, which those that have a target move."""
        filled, targets = np.array(X, order="C"), np.ascontiguousarray(Y)
        learn_rows(filled, targets, self.first(columns), self.is_metric, self.fields(columns), *self.state)
        return filled

    def shown(self, X: FloatArray, columns: Columns) -> FloatArray:
        """Return rows that are to be predicted, with the means as they are now."""
        return self.taken(X, np.broadcast_to(NO_TARGETS, (len(X), 1)), columns)

    def arrays(self) -> dict[str, AnyArray]:
        """Return its arrays for a checkpoint."""
        names = ("keys", "counts", "means", "overall")
        return {f"{PREFIX}{name}": array for name, array in zip(names, self.state, strict=True)}

    def with_all_values(self, outputs: Sequence[Any]) -> LevelMeans:
        """Return this with the share of the first class of all, which follows from those of the others, if all have."""
        if self.is_metric or len(self.values) < len(outputs) - 1:
            return self
        found = LevelMeans(self.identifiers, (*self.values, outputs[0]), is_metric=False)
        found.keys, found.counts = self.keys, self.counts
        found.means = np.concatenate([self.means, 1.0 - self.means.sum(axis=2, keepdims=True)], axis=2)
        found.overall = np.append(self.overall, 1.0 - self.overall[1:].sum())
        return found

    def pool(self, other: LevelMeans) -> None:
        """Take in what another model, which has all of these values, has learned of levels."""
        values = np.array([other.values.index(value) for value in self.values], dtype=np.int64)
        for j, name in enumerate(self.identifiers):
            if name not in other.identifiers:
                continue
            at = other.identifiers.index(name)
            kept = {key: slot for slot, key in enumerate(self.keys[j].tolist()) if key != EMPTY}
            for slot in np.flatnonzero(other.keys[at] != EMPTY).tolist():
                key, count = float(other.keys[at, slot]), float(other.counts[at, slot])
                mine = kept.get(key)
                if mine is None:
                    first = int(key) % (SLOTS // WAYS) * WAYS
                    mine = first + int(self.counts[j, first : first + WAYS].argmin())
                    if self.counts[j, mine] >= count:
                        continue
                    kept.pop(float(self.keys[j, mine]), None)
                    kept[key] = mine
                    self.keys[j, mine], self.counts[j, mine] = key, 0.0
                total = self.counts[j, mine] + count
                self.means[j, mine] += (other.means[at, slot, values] - self.means[j, mine]) * count / total
                self.counts[j, mine] = min(total, LONGEST)
        total = self.overall[0] + other.overall[0]
        self.overall[1:] += (other.overall[1 + values] - self.overall[1:]) * other.overall[0] / max(total, 1.0)
        self.overall[0] = min(total, LONGEST)

    @classmethod
    def restored(cls, arrays: Mapping[str, AnyArray], outputs: Sequence[Any], *, is_metric: bool) -> LevelMeans | None:
        """Restore what `arrays` returned, given the names of targets or classes; None if there are no identifiers.

        Raises:
            CheckpointError: it is invalid.
        """
        if "encoder.identifiers" not in arrays:
            return None
        identifiers = names_of(arrays, "encoder.identifiers", (str, int))
        is_possible = 0 < len(identifiers) <= MOST_IDENTIFIERS
        require(
            is_possible, f"encoder.identifiers holds {len(identifiers)} names; 1 to {MOST_IDENTIFIERS} are possible"
        )
        V = array_of(arrays, f"{PREFIX}overall", "float64", (None,)).size - 1
        most = len(outputs) if is_metric else min(len(outputs) - 1, MOST_VALUES)
        require(0 < V <= most, f"array {PREFIX}overall is for {V} values; 1 to {most} are possible")
        found = cls(identifiers, values_of(outputs, is_metric=is_metric)[:V], is_metric=is_metric)
        for name, own in zip(("keys", "counts", "means", "overall"), found.state, strict=True):
            own[:] = array_of(
                arrays, f"{PREFIX}{name}", "float64", own.shape, least=-ABSOLUTE_LIMIT, most=ABSOLUTE_LIMIT
            )
        are_counts = (found.counts >= 0.0) & (found.counts <= LONGEST)
        require(bool(are_counts.all()), f"array {PREFIX}counts holds what is not from 0 to {LONGEST:g}")
        keys = found.keys[found.keys != EMPTY]
        places = np.nonzero(found.keys != EMPTY)[1] // WAYS
        are_keys = (keys >= 0.0) & (keys <= 0xFFFFFFFF) & (keys == np.floor(keys))
        fits = bool(are_keys.all()) and bool((keys.astype(np.int64) % (SLOTS // WAYS) == places).all())
        require(fits, f"array {PREFIX}keys holds what is no key of its slot")
        return found


def values_of(outputs: Sequence[Any], *, is_metric: bool) -> list[Any]:
    """Return what levels have means of, given the names of targets, or of the classes so far."""
    return list(outputs) if is_metric else list(outputs[1 : 1 + MOST_VALUES])
