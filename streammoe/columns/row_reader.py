"""Events as raw rows: one number for each field."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import countOf
from typing import Any

import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.layout import NO_ADDITIONS, Additions, Columns, unplaced
from streammoe.columns.values import READERS_IN_PYTHON, check_name, is_missing, not_a_mapping
from streammoe.errors import InvalidEvent
from streammoe.notation import NUMBER
from streammoe.replacements import Noticed
from streammoe.text import shown
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.columns")
NO_LAG = math.inf
"""A lag that is known to be missing, where NaN is one that is yet to be filled in."""
FULL = (
    "%s: has %d levels, as many as max_levels allows; events with others are learned without them, since the first "
    "events are not kept any more, or there are 16 such columns already. If it holds numbers or times, name it in "
    "numeric or timestamps, if it holds identifiers, lower max_levels, and start over"
)
IDENTIFIERS = (
    "%s: more than %d levels, so what counts of a level is how far the targets of its earlier events were from those "
    "of all events, from the first event on (event %d). If it holds numbers or times, name it in numeric or "
    "timestamps, and start over"
)
MIXED = (
    "%s: its first value made it a column of categories, and %s is one of them now; name it in categorical if that is "
    "meant, or in numeric and start over"
)


class RowReader(Noticed):
    """Columns, and events as raw rows of them.

    A raw row (F,) has one number for each field: the value; the code 0, 1, … of the level, a negative one if that has
    no column (`unplaced`); seconds since 1970-01-01 UTC; NaN where missing. Fields and levels are only appended (see
    `Columns`), so existing raw rows remain valid until there is another identifier.
    """

    def __init__(self, columns: Columns) -> None:
        self.stated = frozenset[Any](columns.given.categorical)
        """Fields that settings or a type say to be categories; types are not saved in checkpoints."""
        self.warned_of: frozenset[tuple[str, Any]] = frozenset()
        """Fields that may not hold what was meant, with the reason; not saved in checkpoints."""
        self.use(columns)

    def use(self, columns: Columns) -> None:
        """Have these columns, which begin with those so far."""
        self.columns, self.lagged = columns, columns.lagged
        self.fields, self.levels, self.feature_names = columns.fields, columns.levels, columns.feature_names
        self.plan, self.layout = columns.plan, columns.layout
        self.own_fields = self.fields[len(self.lagged) :]
        """Names of the fields that events hold: all but the lags."""

    def set_columns(
        self, names: Iterable[Any], kinds: Iterable[ColumnKind] | None = None, awaited: Iterable[Any] = ()
    ) -> None:
        """Fix the fields of an encoder that has none, in this order; categorical ones have no levels yet.

        They hold what `kinds` say, by default what settings do, and numbers otherwise. Columns that are `awaited`
        become fields with their first value.

        Raises:
            InvalidEvent: a name is that of a lag.
        """
        names, awaited = tuple(names), sorted(awaited, key=str)
        self.columns.check_not_lagged((*names, *awaited))
        columns = self.columns.extended(Additions(names, kinds=() if kinds is None else tuple(kinds)))
        self.use(replace(columns, awaited=tuple(awaited)))

    def append_levels(self, levels: Sequence[tuple[Any, str]]) -> None:
        """Add a column for each new level, (field, text), of known fields, in this order; see `Columns.arrivals`."""
        self.use(self.columns.extended(Additions(levels=tuple(levels))))
        self._notice_mixed(levels)

    def row(self, event: Mapping[Any, object], additions: Additions = NO_ADDITIONS) -> FloatArray:
        """Encode one event as a raw row (1, F), or (1, F + new fields) with the codes that new levels will get.

        Other names are ignored.

        Raises:
            InvalidEvent: a value is of the wrong type or not finite, or a name is neither a string nor an integer.
        """
        if not additions and (values := self.plain_row(event)) is not None:
            # NaN and infinities make the sum NaN or infinite.
            total = sum(values)
            if total - total == 0.0:
                return np.array([values])
        columns = self.columns.extended(additions)
        index, kinds, levels = columns.index, columns.kinds, columns.levels
        found = [math.nan] * len(index)
        try:
            items = event.items()
        except AttributeError:
            raise not_a_mapping(event) from None
        try:
            for name, value in items:
                j = index.get(name)
                if j is None:
                    check_name(name)
                    continue
                kind = kinds[name]
                # The first test succeeds for nearly every value; the others would take most of a prediction's time.
                if kind == "number" and type(value) is float and value - value == 0.0:
                    found[j] = value
                elif is_missing(value):
                    if j < len(self.lagged):
                        found[j] = NO_LAG
                else:
                    read: Any = READERS_IN_PYTHON[kind](value, name)
                    if kind == "category":
                        code = levels[name].get(read)
                        found[j] = unplaced(read) if code is None else code
                    else:
                        found[j] = read
        except InvalidEvent as error:
            raise columns.given.explained(error) from None
        return np.array([found])

    def plain_row(self, event: Mapping[Any, object]) -> Sequence[float] | None:
        """Return the values of an event in the order of the fields, if it has a float for each and nothing else.

        Levels that have a column are their codes, and lags are missing. None as well if there are other levels, some
        fields are times, or there is just one. Without infinities it is what `row` returns.
        """
        columns = self.columns
        if columns.values is None or type(event) is not dict or len(event) != len(columns.own_kinds):
            return None
        try:
            row: Sequence[Any] = columns.values(event)
            if columns.lagged or columns.float_codes:
                row = [*columns.no_lags, *row]
                for at, codes in columns.float_codes.items():
                    row[at] = codes[row[at]]
        except (KeyError, TypeError):  # TypeError: what is not hashable is no level
            return None
        return row if countOf(map(type, row), float) == len(row) else None

    # -- Columns that may not hold what was meant ------------------------------------------------------------------

    def notice_unplaced(self, X: FloatArray, Y: FloatArray) -> None:
        """Warn once of each field with rows to be learned whose level has no column because the field is full."""
        for name, at in self.columns.with_columns.items():
            if (FULL, name) not in self.warned_of and ((X[:, at] < 0.0) & ~np.isnan(Y[:, 0])).any():
                self._warn(FULL, name, len(self.levels[name]))

    def _notice_mixed(self, levels: Iterable[tuple[Any, str]]) -> None:
        """Warn once of each field that its first value made one of categories, and that holds numbers too."""
        for name, text in levels:
            if name in self.stated or (MIXED, name) in self.warned_of:
                continue
            if NUMBER.fullmatch(text) and not _are_numbers(self.levels[name]):
                self._warn(MIXED, name, shown(text))

    def _warn(self, message: str, name: Any, detail: object) -> None:
        self.warned_of |= {(message, name)}
        LOGGER.warning(message, name, detail)

    @property
    def numbers_as_text(self) -> list[Any]:
        """Fields taken for categories without a setting, of which each level so far is a number."""
        unstated = {name: levels for name, levels in self.levels.items() if levels and name not in self.stated}
        return [name for name, levels in unstated.items() if _are_numbers(levels)]


def _are_numbers(levels: Iterable[str]) -> bool:
    return all(NUMBER.fullmatch(text) for text in levels)
