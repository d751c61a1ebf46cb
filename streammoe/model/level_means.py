"""Identifiers: what the targets of each level have been, where a category has more levels than get columns.

A user, a product or a device has too many levels for columns of their own. Its level then becomes one number for each
target, or for each class but one: how far the targets of its events were from those of all, shrunk, before the event
itself is learned. These numbers are the first fields of a model, behind lags. Levels that are frequent keep a column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from streammoe.checked import array_of, as_json, names_of, require
from streammoe.columns.encoder import ABSOLUTE_LIMIT
from streammoe.columns.layout import MOST_IDENTIFIERS, Columns, unplaced
from streammoe.kernels.level_means import EMPTY, LONGEST, MOST_COLUMNS, SLOTS, WAYS, Levels, learn_rows
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

PREFIX = "level_means."
"""Prefix of the names of its arrays in checkpoints."""
MOST_VALUES = 7
"""Most targets, or classes, that have a number each."""
LEAST_COUNT, LEAST_SHARE = 5, 0.05
"""How many events, and which share of all, a level of an identifier has that keeps a column."""


class LevelMeans:
    """Means of the targets by level, of identifiers.

    Args:
        identifiers: names of the fields.
        outputs: the names of the targets, or the labels of the classes so far.
        is_metric: whether targets are numbers.
        values: what levels have means of, some of the outputs; by default as many as there may be.
        taken: names that other fields have.

    Attributes:
        names: of the fields that it fills in.
        values: see above.
        keys, counts, means, overall: see `Levels`; kernels change them.
    """

    def __init__(
        self,
        identifiers: Sequence[Any],
        outputs: Sequence[Any],
        *,
        is_metric: bool,
        values: Sequence[Any] | None = None,
        taken: Collection[Any] = (),
    ) -> None:
        self.identifiers, self.is_metric = tuple(identifiers), is_metric
        self.values = tuple(values_of(outputs, is_metric=is_metric) if values is None else values)
        self._places = np.array([outputs.index(value) for value in self.values], dtype=np.int64)
        self.names = tuple(_names(self.identifiers, self.values, taken, is_metric=is_metric))
        n, V = len(self.identifiers), len(self.values)
        self.keys = np.full((n, SLOTS), EMPTY)
        self.counts = np.zeros((n, SLOTS))
        self.means = np.zeros((n, SLOTS, V))
        self.overall = np.zeros(1 + V)

    def copy(self) -> LevelMeans:
        """Return an independent copy."""
        other = LevelMeans((), (), is_metric=self.is_metric)
        vars(other).update(vars(self))
        other.keys, other.counts, other.means, other.overall = (array.copy() for array in self.state.values())
        return other

    @property
    def state(self) -> dict[str, FloatArray]:
        """The arrays that kernels change, as in `Levels`."""
        return {"keys": self.keys, "counts": self.counts, "means": self.means, "overall": self.overall}

    def levels(self, columns: Columns) -> Levels:
        """Return it as kernels take it."""
        codes = np.full((len(self.identifiers), MOST_COLUMNS), np.nan)
        for j, name in enumerate(self.identifiers):
            codes[j, : len(columns.levels[name])] = [*map(unplaced, columns.levels[name])]
        fields = np.array([columns.index[name] for name in self.identifiers], dtype=np.int64)
        return Levels(fields, codes, self._places, **self.state)

    def taken(self, X: FloatArray, Y: FloatArray, columns: Columns) -> FloatArray:
        """Return rows with the means before each of them, which those that have a target move."""
        filled, targets = np.array(X, order="C"), np.array(Y, order="C")
        learn_rows(filled, targets, self.is_metric, columns.n_lags, columns.limit, self.levels(columns))
        return filled

    def shown(self, X: FloatArray, columns: Columns) -> FloatArray:
        """Return rows that are to be predicted, with the means as they are now."""
        return self.taken(X, np.full((len(X), 1), np.nan), columns)

    def arrays(self) -> dict[str, AnyArray]:
        """Return its arrays for a checkpoint."""
        arrays = {f"{PREFIX}{name}": array for name, array in self.state.items()}
        return {f"{PREFIX}values": as_json(self.values), **arrays}

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
    def restored(
        cls, arrays: Mapping[str, AnyArray], outputs: Sequence[Any], n_lags: int, *, is_metric: bool
    ) -> LevelMeans | None:
        """Restore what `arrays` returned; None if there are no identifiers.

        Args:
            arrays: of the checkpoint.
            outputs, is_metric: as of a new one.
            n_lags: number of fields before the means.

        Raises:
            CheckpointError: it is invalid.
        """
        if "encoder.identifiers" not in arrays:
            return None
        identifiers = names_of(arrays, "encoder.identifiers", (str, int))
        values = names_of(arrays, f"{PREFIX}values", (str, int, float, bool))
        n, V = len(identifiers), len(values)
        is_possible = 0 < n <= MOST_IDENTIFIERS and 0 < V <= MOST_VALUES
        rule = f"1 to {MOST_IDENTIFIERS} and 1 to {MOST_VALUES} are possible"
        require(is_possible, f"encoder.identifiers holds {n} and {PREFIX}values {V} names; {rule}")
        unknown = [value for value in values if value not in outputs]
        require(not unknown, f"{PREFIX}values holds {shown(unknown)}; there are {shown(list(outputs))}")
        found = cls(identifiers, outputs, is_metric=is_metric, values=values)
        found.names = tuple(names_of(arrays, "encoder.columns", (str, int))[n_lags : n_lags + len(found.names)])
        least, most = (-ABSOLUTE_LIMIT, ABSOLUTE_LIMIT) if is_metric else (0.0, 1.0)
        limits = {
            "keys": (EMPTY, float(0xFFFFFFFF)),
            "counts": (0.0, LONGEST),
            "means": (least, most),
            "overall": (least, most),
        }
        for name, own in found.state.items():
            own[:] = array_of(arrays, f"{PREFIX}{name}", "float64", own.shape)
            judged, (least, most) = own[1:] if name == "overall" else own, limits[name]
            is_inside = bool(((judged >= least) & (judged <= most)).all())
            require(is_inside, f"array {PREFIX}{name} holds values outside of {least:g} to {most:g}")
        count = float(found.overall[0])
        require(0.0 <= count <= LONGEST, f"array {PREFIX}overall is of {count:g} events; 0 to {LONGEST:g} are possible")
        keys, places = found.keys[found.keys != EMPTY], np.nonzero(found.keys != EMPTY)[1] // WAYS
        fits = (keys == np.floor(keys)) & (keys.astype(np.int64) % (SLOTS // WAYS) == places)
        require(bool(fits.all()), f"array {PREFIX}keys holds what is no key of its slot")
        return found


def values_of(outputs: Sequence[Any], *, is_metric: bool) -> list[Any]:
    """Return what levels have means of, given the names of targets, or of the classes so far.

    Of classes the first one in the order of their texts is left out, whatever the order in which they came.
    """
    if is_metric:
        return list(outputs[:MOST_VALUES])
    return sorted(outputs, key=lambda each: (str(each), type(each).__name__))[1 : 1 + MOST_VALUES]


def frequent(codes: FloatArray, texts: Sequence[str]) -> list[str]:
    """Return the levels with columns that are to keep them, given the codes of a field in all events.

    >>> frequent(np.array([0.0] * 9 + [1.0, 2.0, -70.0]), ["red", "blue", "green"])
    ['red']
    """
    counts = np.bincount(codes[codes >= 0.0].astype(np.int64), minlength=len(texts))
    least = max(LEAST_COUNT, LEAST_SHARE * len(codes))
    return [text for text, count in zip(texts, counts.tolist(), strict=True) if count >= least][:MOST_COLUMNS]


def _names(
    identifiers: Sequence[Any], values: Sequence[Any], taken: Collection[Any], *, is_metric: bool
) -> Iterator[str]:
    """Yield names that no other field has.

    >>> [*_names(["user", "shop"], ["y"], ["user:mean"], is_metric=True)]
    ["user:mean'", 'shop:mean']
    >>> [*_names(["user"], ["spam", "other"], [], is_metric=False)]
    ['user:share of spam', 'user:share of other']
    """
    used = {*map(str, taken)}
    for name in identifiers:
        for value in values:
            end = f"mean of {value!s}" if is_metric else f"share of {value!s}"
            found = f"{name!s}:{'mean' if is_metric and len(values) == 1 else end}"
            while found in used:
                found += "'"
            used.add(found)
            yield found
