"""The layout of fields and levels as columns, and additions to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from streammoe.checked import require
from streammoe.columns import ColumnKind
from streammoe.kernels.features import CATEGORICAL, EARLIEST, LATEST, NUMERIC, TIMESTAMP
from streammoe.text import shown
from streammoe.types import FloatArray, IntArray

CYCLES = ("day_sin", "day_cos", "week_sin", "week_cos", "year_sin", "year_cos")
"""Suffixes of the names of a timestamp's columns."""
LANES = 4
"""Rows of features are padded with zeros to a multiple of this, for the processor's vector units."""
MOST_PLACES = 10_000_000
"""Limit on categorical fields times levels of the largest: a short list in a checkpoint could claim any memory."""


def padded(n_features: int) -> int:
    """Return the length of a row that holds so many features.

    >>> padded(11), padded(12)
    (12, 12)
    """
    return -(-n_features // LANES) * LANES


class Additions(NamedTuple):
    """New fields and levels of an event, which an encoder does not have yet; falsy if there are none."""

    fields: tuple[Any, ...] = ()
    """Names of new fields, ordered by name."""
    levels: tuple[tuple[Any, str], ...] = ()
    """(field, text) of new levels, in the order of the fields."""
    kinds: tuple[ColumnKind, ...] = ()
    """What each new field holds; if left out, what settings say, and numbers otherwise."""

    def __bool__(self) -> bool:
        return bool(self.fields or self.levels)


NO_ADDITIONS = Additions()


class Layout(NamedTuple):
    """The number of columns at some time, from which `Encoder.moved` computes where their features are later."""

    columns: int
    numeric: int


class Plan(NamedTuple):
    """Fields and levels in the form that kernels take; see `expand_rows` for other shapes."""

    kinds: IntArray
    """(F,)."""
    lowest: FloatArray
    """(F,) and `highest` (F,): limits to which predictions clip values."""
    highest: FloatArray
    numeric: IntArray
    coded: IntArray
    places: IntArray
    timed: IntArray


def plan_of(kinds: Sequence[int], entries: Sequence[tuple[int, str | None]], limit: float) -> Plan:
    """Return the plan of fields of these kinds, which appear with their levels in the order of `entries`."""
    bounds = {NUMERIC: (-limit, limit), CATEGORICAL: (-math.inf, math.inf), TIMESTAMP: (EARLIEST, LATEST)}
    numeric, timed = [], []
    placed: dict[int, list[int]] = {}
    column = 0
    for j, text in entries:
        if text is not None:
            placed[j].append(column)
            column += 1
        elif kinds[j] == CATEGORICAL:
            placed[j] = []
        elif kinds[j] == TIMESTAMP:
            timed.append((j, column))
            column += len(CYCLES)
        else:
            numeric.append((j, column))
            column += 1
    places = np.full((len(placed), max(map(len, placed.values()), default=0)), -1, dtype=np.int64)
    for k, columns in enumerate(placed.values()):
        places[k, : len(columns)] = columns
    return Plan(
        kinds=np.array(kinds, dtype=np.int64),
        lowest=np.array([bounds[kind][0] for kind in kinds], dtype=np.float64),
        highest=np.array([bounds[kind][1] for kind in kinds], dtype=np.float64),
        numeric=np.array(numeric, dtype=np.int64).reshape(-1, 2),
        coded=np.array(list(placed), dtype=np.int64),
        places=places,
        timed=np.array(timed, dtype=np.int64).reshape(-1, 2),
    )


def restored_entries(
    names: Sequence[Any], kinds: Sequence[int], plan: Sequence[Any], max_levels: int
) -> list[tuple[Any, str | None]]:
    """Return the fields and levels that a checkpoint's plan lists, in order of appearance.

    Raises:
        CheckpointError: that order is impossible.
    """
    met = 0
    levels: dict[int, set[str]] = {}
    for entry in plan:
        j, text = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if text is None:
            require(j == met and not isinstance(j, bool), f"encoder.plan has {shown(entry)} instead of field {met}")
            if kinds[met] == CATEGORICAL:
                levels[met] = set()
            met += 1
            continue
        known = levels.get(j) if isinstance(j, int) else None
        fits = known is not None and isinstance(text, str) and text not in known and len(known) < max_levels
        require(fits, f"encoder.plan has {shown(entry)}, which is not a new level of a categorical field")
        cast("set[str]", known).add(text)
    require(met == len(names), f"encoder.plan has {met} of the {len(names)} fields")
    places = len(levels) * max(map(len, levels.values()), default=0)
    require(places <= MOST_PLACES, f"encoder.plan has levels for a table of {places} entries, above {MOST_PLACES}")
    return [(names[j], text) for j, text in plan]
