"""Fields and levels as columns: their order and places, how they grow, and how checkpoints hold them."""

from __future__ import annotations

import math
import operator
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np

from streammoe.checked import as_json, list_of, names_of, require
from streammoe.columns.kinds import ColumnKind, GivenKinds
from streammoe.columns.values import check_name, is_missing, kind_of, level
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.kernels.features import CATEGORICAL, EARLIEST, LATEST, NUMERIC, TIMESTAMP
from streammoe.kernels.level_means import MOST_COLUMNS
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray

CYCLES = ("day_sin", "day_cos", "week_sin", "week_cos", "year_sin", "year_cos")
"""Suffixes of the names of a timestamp's columns."""
LANES = 4
"""Rows of features are padded with zeros to a multiple of this, for the processor's vector units."""
MOST_PLACES = 10_000_000
"""Limit on categorical fields times levels of the largest: a short list in a checkpoint could claim any memory."""
FURTHEST_UNPLACED = -2.0 - 0xFFFFFFFF
"""The least code of a level without a column."""
MOST_IDENTIFIERS = 16
"""Number of fields with more levels than columns that are identifiers; each takes a fixed amount of memory."""
CODES: Mapping[ColumnKind, int] = {"number": NUMERIC, "category": CATEGORICAL, "time": TIMESTAMP}
"""Kinds of fields as kernels call them."""
IN_CHECKPOINTS: Mapping[ColumnKind, str] = {"number": "numeric", "category": "categorical", "time": "timestamp"}
"""Kinds of fields as checkpoints call them."""


def padded(n_features: int) -> int:
    """Return the length of a row that holds so many features.

    >>> padded(11), padded(12)
    (12, 12)
    """
    return -(-n_features // LANES) * LANES


def unplaced(text: str) -> float:
    """Return the code of a level without a column, which tells levels apart: −2 − its CRC-32.

    >>> unplaced("7af3")
    -2312770342.0
    """
    return -2.0 - zlib.crc32(text.encode("utf-8", "surrogatepass"))


class _CodesOfIdentifier(dict[str, float]):
    """The codes of the levels of an identifier, of which those without a column are not listed."""

    def __missing__(self, text: object) -> float:
        if type(text) is not str:
            raise KeyError(text)
        return unplaced(text)


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
    """Numbers of columns, from which follows where their features are."""

    columns: int
    numeric: int

    def n_features(self, degree: int) -> int:
        """Return the number of features: 1, all columns, and the powers 2 … degree of the numeric ones."""
        return 1 + self.columns + (degree - 1) * self.numeric

    def places_in(self, later: Layout, degree: int) -> IntArray:
        """Return the indexes that the features, up to `degree`, have in a later layout."""
        powers = [later.n_features(d + 1) + r for d in range(degree - 1) for r in range(self.numeric)]
        return np.array([*range(1 + self.columns), *powers], dtype=np.int64)


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


@dataclass(eq=False)
class Columns:
    """Fields of events and levels, in the order of their columns; never changed, only replaced.

    A *field* is a key of events: a number, a category or a time. A *column* is a feature of degree 1: a number, a level
    of a category, or one of six cyclic parts of a time. Fields are ordered by name within the event that first contains
    them; later ones are appended, and so are the columns of later levels.
    """

    given: GivenKinds
    """The kinds that settings give."""
    lagged: tuple[str, ...]
    """Names of the first fields, numbers that come from earlier events: lags, and then the means of identifiers."""
    max_levels: int
    """Maximum number of levels of a field that become columns."""
    limit: float
    """Largest absolute value of a number."""
    kinds: Mapping[Any, ColumnKind]
    """What each field holds, in the order of raw rows; truth values are numbers."""
    entries: tuple[tuple[Any, str | None], ...]
    """Fields, with ``None``, and levels in order of appearance, which determines the columns."""
    awaited: tuple[Any, ...] = ()
    """Names of columns that join the fields with their first value, in the order of the names."""
    identifiers: tuple[Any, ...] = ()
    """Categorical fields whose levels have means, and no further columns; see `streammoe.model.level_means`."""
    n_means: int = 0
    """How many of `lagged`, the last ones, are means of identifiers."""

    def __post_init__(self) -> None:
        self.fields: list[Any] = list(self.kinds)
        self.own_kinds = {name: self.kinds[name] for name in self.fields[len(self.lagged) :]}
        """What each field holds that is no lag."""
        self.n_lags = len(self.lagged) - self.n_means
        """How many of the first fields are lags, which come before means."""
        self.index: dict[Any, int] = {name: j for j, name in enumerate(self.fields)}
        """Places of the fields in raw rows."""
        self.levels: dict[Any, dict[str, int]] = {}
        """Codes of the levels of each categorical field."""
        self.feature_names: list[Any] = []
        """Names of the columns: ``x`` of a numeric field, ``color=red``, ``t:day_sin``, …"""
        self.inputs: list[Any] = []
        """The input that each column is about: its field; of means, their identifier."""
        each = self.n_means // max(len(self.identifiers), 1)
        about = dict(zip(self.lagged[self.n_lags :], np.repeat(np.arange(len(self.identifiers)), each), strict=True))
        numeric, timed = [], []
        placed: dict[Any, list[int]] = {}
        for name, text in self.entries:
            place = self.index[name], len(self.feature_names)
            if text is not None:
                self.levels[name][text] = len(self.levels[name])
                placed[name].append(place[1])
                self.feature_names.append(f"{name!s}={text}")
            elif self.kinds[name] == "category":
                self.levels[name], placed[name] = {}, []
            elif self.kinds[name] == "time":
                timed.append(place)
                self.feature_names += [f"{name!s}:{part}" for part in CYCLES]
            else:
                numeric.append(place)
                self.feature_names.append(name)
            more = len(self.feature_names) - len(self.inputs)
            self.inputs += [self.identifiers[about[name]] if name in about else name] * more
        self.layout = Layout(len(self.feature_names), len(numeric))
        places = np.full((len(placed), max(map(len, placed.values()), default=0)), -1, dtype=np.int64)
        for k, columns in enumerate(placed.values()):
            places[k, : len(columns)] = columns
        kinds = [CODES[kind] for kind in self.kinds.values()]
        self.judged = np.array([*[CATEGORICAL] * len(self.lagged), *kinds[len(self.lagged) :]], dtype=np.int64)
        """(F,) kinds for `screen_rows`: lags were judged as targets and inputs, and never are again."""
        ends = {NUMERIC: (-self.limit, self.limit), CATEGORICAL: (-math.inf, math.inf), TIMESTAMP: (EARLIEST, LATEST)}
        self.plan = Plan(
            kinds=np.array(kinds, dtype=np.int64),
            lowest=np.array([ends[kind][0] for kind in kinds], dtype=np.float64),
            highest=np.array([ends[kind][1] for kind in kinds], dtype=np.float64),
            numeric=np.array(numeric, dtype=np.int64).reshape(-1, 2),
            coded=np.array([self.index[name] for name in placed], dtype=np.int64),
            places=places,
            timed=np.array(timed, dtype=np.int64).reshape(-1, 2),
        )
        self.values: Callable[[Mapping[Any, object]], tuple[object, ...]] | None = (
            operator.itemgetter(*self.own_kinds) if len(self.own_kinds) > 1 and not timed else None
        )
        """Returns the values of all fields that events hold, in order; None if there is just one, or some are times."""
        self.no_lags = (math.nan,) * len(self.lagged)
        self.float_codes: dict[int, dict[str, float]] = {
            self.index[name]: (_CodesOfIdentifier if name in self.identifiers else dict)(
                (text, float(code)) for text, code in levels.items()
            )
            for name, levels in self.levels.items()
        }
        """Codes of the levels by the place of their field in raw rows."""
        self.with_columns = {name: self.index[name] for name in self.levels if name not in self.identifiers}
        """Places of the categorical fields whose levels have columns, apart from identifiers."""
        self.identifiable = self.with_columns if len(self.identifiers) < MOST_IDENTIFIERS else {}
        """Those that may become identifiers."""

    def kind_of(self, name: Any, value: object = None) -> ColumnKind | None:
        """Return what a field holds, or what this first value makes it hold; None if nothing decides yet."""
        return self.kinds.get(name) or self.given.kind(name) or kind_of(value)

    def check_not_lagged(self, names: Iterable[Any]) -> None:
        """Raise `InvalidEvent` if a new field has the name of a lag, or of a mean."""
        for name in names:
            if name in self.lagged:
                msg = f"{name!s}: is the name of a column that the model itself makes; rename yours, or ignore it"
                raise InvalidEvent(msg, reason="wrong_type", feature=name)

    # -- Growth --------------------------------------------------------------------------------------------------------

    def extended(self, additions: Additions) -> Columns:
        """Return these columns with new fields, and then new levels."""
        if not additions:
            return self
        kinds = additions.kinds or [self.given.kind(name) or "number" for name in additions.fields]
        found = ("number" if kind == "boolean" else kind for kind in kinds)
        return replace(
            self,
            kinds={**self.kinds, **dict(zip(additions.fields, found, strict=True))},
            # In the order of streams whose columns are known before the values of their first record.
            entries=(*self.entries, *((name, None) for name in additions.fields), *additions.levels),
            awaited=tuple(name for name in self.awaited if name not in additions.fields),
        )

    def first(self, n_entries: int) -> Columns:
        """Return the columns as they were when there were so many fields and levels."""
        entries = self.entries[:n_entries]
        return replace(self, kinds={name: self.kinds[name] for name, _ in entries}, entries=entries)

    def named(self, feature_names: Sequence[Any]) -> Columns:
        """Return these columns, which are those of lags, with fields and levels so that these are their names.

        Raises:
            InvalidEvent: a name is neither a string nor an integer.
            ConfigError: a timestamp lacks one of its six columns, or a name occurs twice.
        """
        for name in feature_names:
            check_name(name, place="feature_names")
        categorical = {f"{field}=": field for field in self.given.categorical}
        timestamps = {f"{field}:{CYCLES[0]}": field for field in self.given.timestamps}
        kinds, entries = dict(self.kinds), list(self.entries)
        at = len(self.lagged)
        while at < len(feature_names):
            name = feature_names[at]
            # If there are fields "a" and "a=b", then "a=b=c" is a level of the latter.
            prefix = max((p for p in categorical if isinstance(name, str) and name.startswith(p)), key=len, default="")
            field = categorical.get(prefix, timestamps.get(name, name))
            kind: ColumnKind = "category" if prefix else "time" if name in timestamps else "number"
            at += len(CYCLES) if kind == "time" and field not in kinds else 1
            if field not in kinds:
                kinds[field] = kind
                entries.append((field, None))
            if prefix and kinds[field] == kind:
                entries.append((field, name[len(prefix) :]))
        found = replace(self, kinds=kinds, entries=tuple(entries))
        if found.feature_names != feature_names or len(set(feature_names)) < len(feature_names):
            msg = (
                f"feature_names: got {feature_names!r}; with these categorical and timestamp fields they would be "
                f"{found.feature_names!r}; name each once, a level as field=level, a timestamp by all its six columns"
            )
            raise ConfigError(msg)
        return found

    def additions(self, event: Mapping[Any, object]) -> Additions:
        """Return the fields and levels of an event that learning it would add.

        Raises:
            InvalidEvent: the value of a categorical field is not a category, or a name neither a string nor an integer.
        """
        if not self.levels and type(event) is dict and event.keys() <= self.index.keys():
            return NO_ADDITIONS
        unseen = [name for name in event if name not in self.index]
        for name in unseen:
            check_name(name)
        if not unseen and not self.levels:
            return NO_ADDITIONS
        kinds = {name: self.kind_of(name, event[name]) for name in unseen if not is_missing(event[name])}
        found = {name: kind for name in sorted(kinds, key=str) if (kind := kinds[name]) is not None}
        new = []
        for name in (*self.levels, *(name for name, kind in found.items() if kind == "category")):
            if name in event and not is_missing(event[name]):
                text, known = level(event[name], name), self.levels.get(name, {})
                if text not in known and len(known) < self.room(name):
                    new.append((name, text))
        return Additions(tuple(found), tuple(new), tuple(found.values()))

    def room(self, name: Any) -> int:
        """Return the maximum number of levels of a field that become columns."""
        return 0 if name in self.identifiers else self.max_levels

    def first_unplaced(self, texts: Mapping[Any, Sequence[str | None]], learned: BoolArray) -> int:
        """Return the first row to be learned whose level gets no column because the field is full; n if there is none.

        Args:
            texts, learned: see `arrivals`.
        """
        found = (i for i, name, _, fits in self._firsts(texts, learned) if not fits and name in self.identifiable)
        return min(found, default=len(learned))

    def arrivals(
        self, texts: Mapping[Any, Sequence[str | None]], learned: BoolArray | None = None
    ) -> list[tuple[int, tuple[tuple[Any, str], ...]]]:
        """Return, in order, the rows that bring new levels, with these levels: an array is cut there to equal a loop.

        Args:
            texts: (n,) levels of each categorical field, in the order of the fields; ``None`` is missing.
            learned: (n,) which rows are learned; others bring nothing. By default all are.
        """
        found: dict[int, list[tuple[Any, str]]] = {}
        for i, name, text, fits in self._firsts(texts, learned):
            if fits:
                found.setdefault(i, []).append((name, text))
        return [(i, tuple(levels)) for i, levels in sorted(found.items())]

    def _firsts(
        self, texts: Mapping[Any, Sequence[str | None]], learned: BoolArray | None
    ) -> Iterator[tuple[int, Any, str, bool]]:
        """Yield row, field and text where a level without a column comes first, and whether it gets one."""
        for name, column in texts.items():
            known, room = {None, *self.levels.get(name, ())}, self.room(name)
            for i, text in enumerate(column):
                if text not in known and text is not None and (learned is None or learned[i]):
                    yield i, name, text, len(known) <= room
                    known.add(text)

    # -- Raw rows ------------------------------------------------------------------------------------------------------

    def codes(self, name: Any, texts: Sequence[str | None]) -> FloatArray:
        """Return the codes of a field's levels, (n,), `unplaced` for those without a column, NaN for ``None``."""
        known: dict[str | None, float] = {None: math.nan}
        known.update(self.levels[name])
        return np.array(
            [known[text] if text in known else unplaced(cast("str", text)) for text in texts], dtype=np.float64
        )

    def with_identifiers(
        self, identifiers: Sequence[Any], means: Sequence[str], kept: Mapping[Any, Collection[str]]
    ) -> Columns:
        """Return these columns with other identifiers, and the names of their means behind those of lags.

        Of the fields in `kept` only these levels keep columns.
        """
        entries = self.entries[len(self.lagged) :]
        own = [(name, text) for name, text in entries if name not in kept or text in (None, *kept[name])]
        lagged = (*self.lagged[: self.n_lags], *means)
        return replace(
            self,
            lagged=lagged,
            kinds={**dict.fromkeys(lagged, "number"), **self.own_kinds},
            entries=(*((name, None) for name in lagged), *own),
            identifiers=tuple(identifiers),
            n_means=len(means),
        )

    def laid_out(self, X: FloatArray) -> FloatArray:
        """Return raw rows, whose means are yet to be filled in, of these fields; there may be more identifiers now."""
        if X.shape[1] == len(self.fields):
            return X
        return self.with_lags(X[:, -len(self.own_kinds) :], X[:, : self.n_lags])

    def translated(self, X: FloatArray, other: Columns) -> FloatArray:
        """Return raw rows of other columns, of the same fields but perhaps other identifiers, as rows of these."""
        rows = np.full((len(X), len(self.fields)), np.nan)
        for at, field in enumerate(self.fields):
            if field not in other.index:
                continue
            rows[:, at] = X[:, other.index[field]]
            if other.levels.get(field):
                codes, placed = self.codes(field, list(other.levels[field])), rows[:, at] >= 0.0
                rows[placed, at] = codes[rows[placed, at].astype(np.int64)]
        return rows

    def numbers(self, X: FloatArray) -> FloatArray:
        """Return the fields of raw rows that are numbers."""
        return np.take(X, self.plan.numeric[:, 0], axis=1)

    def with_lags(self, X: FloatArray, lags: FloatArray | None = None) -> FloatArray:
        """Return rows of all other fields behind these lags, (n, L); all else is yet to be filled in."""
        if not self.lagged:
            return X
        filled = np.full((len(X), len(self.lagged) + X.shape[1]), np.nan)
        filled[:, len(self.lagged) :] = X
        if lags is not None:
            filled[:, : lags.shape[1]] = lags
        return filled

    def check_rows(self, X: FloatArray) -> None:
        """Raise `CheckpointError` unless raw rows of a checkpoint, (n, F), can be of these columns."""
        for j, (name, kind) in enumerate(self.kinds.items()):
            present = X[~np.isnan(X[:, j]), j]
            least, most = float(self.plan.lowest[j]), float(self.plan.highest[j])
            if kind == "category":
                least, most = FURTHEST_UNPLACED, len(self.levels[name]) - 1
                is_code = (present == np.floor(present)) & (present != -1.0)
                require(is_code.all(), f"array warmup.X holds an invalid code of {shown(name)}")
            inside = (present >= least) & (present <= most)
            require(inside.all(), f"array warmup.X holds values of {shown(name)} outside of {least:g} to {most:g}")

    # -- In a checkpoint -----------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, AnyArray]:
        """Return fields and levels as named arrays of JSON."""
        arrays = {"encoder.columns": as_json(self.fields)}
        if self.awaited:
            arrays["encoder.awaited"] = as_json(self.awaited)
        if set(self.kinds.values()) - {"number"}:
            arrays["encoder.kinds"] = as_json([IN_CHECKPOINTS[kind] for kind in self.kinds.values()])
            arrays["encoder.plan"] = as_json([(self.index[name], text) for name, text in self.entries])
        if self.identifiers:
            arrays["encoder.identifiers"] = as_json(self.identifiers)
        return arrays

    def restored(self, arrays: Mapping[str, AnyArray]) -> Columns:
        """Return the columns of a checkpoint, given those of a new model; raise `CheckpointError` if they differ."""
        names = names_of(arrays, "encoder.columns", (str, int))
        listed = list_of(arrays, "encoder.kinds") if "encoder.kinds" in arrays else ["numeric"] * len(names)
        by_name = {text: kind for kind, text in IN_CHECKPOINTS.items()}
        known = len(listed) == len(names) and all(text in IN_CHECKPOINTS.values() for text in listed)
        require(known, f"encoder.kinds holds {shown(listed)} for {len(names)} fields")
        kinds = {name: by_name[text] for name, text in zip(names, listed, strict=True)}
        for name, kind in kinds.items():
            here = self.given.kind(name) or kind
            found, wanted = IN_CHECKPOINTS[kind], IN_CHECKPOINTS[here]
            require(here == kind, f"{name!s}: is {found} in the checkpoint and {wanted} here; make them agree")
        first = names[: len(self.lagged)]
        have = (*first,) == self.lagged and {kinds[name] for name in first} <= {"number"}
        require(have, f"encoder.columns begins with {shown(first)} and not with the lags {shown(self.lagged)}")
        awaited = names_of(arrays, "encoder.awaited", (str, int)) if "encoder.awaited" in arrays else []
        both = [name for name in awaited if name in kinds]
        require(not both, f"encoder.awaited holds {shown(both)}, which are fields already")
        plan = list_of(arrays, "encoder.plan") if "encoder.plan" in arrays else [[j, None] for j in range(len(names))]
        no_category = [name for name in self.identifiers if kinds.get(name) != "category"]
        require(not no_category, f"encoder.identifiers holds {shown(no_category)}, which are no categorical fields")
        room = {name: MOST_COLUMNS if name in self.identifiers else self.max_levels for name in kinds}
        return replace(self, kinds=kinds, entries=_entries_of(plan, kinds, room), awaited=tuple(awaited))


def _entries_of(
    plan: Sequence[Any], kinds: Mapping[Any, ColumnKind], room: Mapping[Any, int]
) -> tuple[tuple[Any, str | None], ...]:
    """Return the fields and levels that a checkpoint's plan lists; raise `CheckpointError` for an impossible order."""
    names, levels = list(kinds), dict[int, set[str]]()
    met = 0
    for entry in plan:
        j, text = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if text is None:
            require(j == met and not isinstance(j, bool), f"encoder.plan has {shown(entry)} instead of field {met}")
            if kinds[names[met]] == "category":
                levels[met] = set()
            met += 1
            continue
        known = levels.get(j) if isinstance(j, int) else None
        fits = (
            known is not None
            and isinstance(text, str)
            and text not in known
            and len(known) < room[names[cast("int", j)]]
        )
        require(fits, f"encoder.plan has {shown(entry)}, which is not a new level of a categorical field")
        cast("set[str]", known).add(text)
    require(met == len(names), f"encoder.plan has {met} of the {len(names)} fields")
    places = len(levels) * max(map(len, levels.values()), default=0)
    require(places <= MOST_PLACES, f"encoder.plan has levels for a table of {places} entries, above {MOST_PLACES}")
    return tuple((names[j], text) for j, text in plan)
