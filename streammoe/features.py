"""Encoding of events (dicts) as arrays: order, types, ranges, levels, times, missing values, scaling and powers."""

from __future__ import annotations

import copy
import logging
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.checked import array_of, as_json, list_of, names_of, require
from streammoe.columns import CODES, KINDS, ColumnKind, Fixed
from streammoe.errors import CheckpointError, ConfigError, InvalidEvent
from streammoe.kernels.features import (
    CATEGORICAL,
    FAR,
    FEW,
    NUMERIC,
    PATIENCE,
    SETTLED,
    TIMESTAMP,
    clip_rows,
    expand_rows,
    hold_predictions,
    screen_rows,
)
from streammoe.layout import CYCLES, NO_ADDITIONS, Additions, Layout, Plan, padded, plan_of, restored_entries
from streammoe.notation import NUMBER
from streammoe.outliers import MAX_ERROR_SHARE, code_of
from streammoe.ranges import Bounds, Scales, limits_of
from streammoe.replacements import Noticed
from streammoe.scaling import (
    Scaler,
    come_from_a_running_scaler,
    identity_scaler,
    moments,
    restored_scaler,
    wider_scaler,
)
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray
from streammoe.values import check_name, is_missing, level, not_a_mapping, quantity, seconds

LOGGER = logging.getLogger("streammoe.features")
ABSOLUTE_LIMIT = 1e50
"""Beyond this, a square no longer fits into a Gram matrix with others."""
FURTHEST = 25.0
"""Deviations from the center of a column to which numbers are held in a warm-up."""
MARGIN = 0.1
"""How far beyond the range seen so far a number may be, in widths of that range."""
INPUT_PACE = 1e-4
"""How far an event whose input is outside of its range widens that, likewise: slower than a mixture learns there."""
TARGET_PACE = 0.1
"""The same of targets: predictions must follow a shift at once."""
NO_TARGETS = np.empty((0, 1))
NO_LAG = math.inf
"""A lag that is known to be missing, where NaN is one that is yet to be filled in."""
UNASKED = np.empty(0, dtype=np.bool_)
UNPLACED = -1.0
"""The code of a level without a column."""
FLOATS = {float}
"""The types of the values of nearly all events."""


class Frozen(NamedTuple):
    """What is frozen of C columns, each of which is found from all rows of that column alone."""

    limits: FloatArray
    """(C,) largest sizes in range."""
    fill: FloatArray
    center: FloatArray
    scale: FloatArray
    """(C,) of these three see `Scaler`."""
    low: FloatArray
    high: FloatArray
    first: FloatArray
    seen: IntArray
    """(C,) of the last four see `Bounds`."""


class Encoder(Noticed):
    """Encoder of events into raw rows, and of raw rows into features.

    A *field* is a key of events: numeric, categorical or a timestamp. A raw row (F,) has one number for each: the
    value; the code 0, 1, … of the level, −1 for one without a column; seconds since 1970-01-01 UTC; NaN where missing.
    A *column* is a feature of degree 1: a numeric field, a level of a categorical one, or one of six cyclic parts of a
    timestamp. Fields are ordered by name within the event that first contains them; later ones are appended, and so
    are the columns of later levels. Existing raw rows remain valid.

    Args:
        n_outputs: Q.
        degree: highest power of the numeric fields in expert features.
        gate_degree: highest power in gate features.
        range_factor: factor of the range rule for numeric fields and targets; 0 disables it.
        categorical: names of the fields that hold categories.
        timestamps: names of the fields that hold times.
        numeric: names of the fields that hold numbers; of fields in none of the three the first value decides.
        max_levels: maximum number of levels of a field that become columns.
        holds: whether inputs and predictions are held to what was seen.
        lagged: names of the first fields, numbers that come from earlier events (`streammoe.model.lags`).
        lagged_inputs: names of the fields, numbers, of whose values some of them are.
    """

    def __init__(
        self,
        *,
        n_outputs: int,
        degree: int,
        gate_degree: int,
        range_factor: float,
        categorical: Iterable[Any] = (),
        timestamps: Iterable[Any] = (),
        numeric: Iterable[Any] = (),
        max_levels: int = 64,
        holds: bool = False,
        lagged: Sequence[str] = (),
        lagged_inputs: Iterable[Any] = (),
    ) -> None:
        self.n_outputs = n_outputs
        self.degree = degree
        self.gate_degree = gate_degree
        self.range_factor = range_factor
        self.fixed = Fixed(frozenset(categorical), frozenset(timestamps), frozenset(numeric), frozenset(lagged_inputs))
        self.max_levels = max_levels
        self.holds = holds
        self.limit = float(min(ABSOLUTE_LIMIT, 1e150 ** (1.0 / max(degree, gate_degree, 1))))
        """Largest absolute value of a number whose highest power is still in range."""
        self.fields: list[Any] = []
        self.kinds: list[int] = []
        self.awaited: list[Any] = []
        """Names of columns that join the fields with their first value, in the order of the names."""
        self.levels: dict[Any, dict[str, int]] = {}
        """Codes of the levels of each categorical field."""
        self.feature_names: list[Any] = []
        """Names of the columns: ``x`` of a numeric field, ``color=red``, ``t:day_sin``, …"""
        self.unplaced: dict[Any, int] = {}
        """Number of events learned, by field, whose level has no column; not saved in checkpoints."""
        self.mixed: set[Any] = set()
        """Fields taken for categories by their first value that hold numbers too; not saved in checkpoints."""
        self.stated: set[Any] = set()
        """Fields that came with a type of categories; not saved in checkpoints."""
        self.scaler = identity_scaler(0, n_outputs)
        self.scales = Scales.blank(0)
        self.target_scales = Scales.blank(n_outputs)
        self.bounds = Bounds.blank(0)
        self.target_bounds = Bounds.blank(n_outputs)
        self.doubts = np.zeros(n_outputs)
        """(Q,) how many targets far out there were of late; see `kernels.features.hold_predictions`."""
        self.limits: tuple[FloatArray, FloatArray] | None = None
        """(F,) and (Q,) largest sizes in range of buffered inputs and targets, for an encoder that gets those in parts;
        others find them. Not saved in checkpoints."""
        self._index: dict[Any, int] = {}
        self._entries: list[tuple[int, str | None]] = []
        """Fields, with ``None``, and levels in order of appearance, which determines the columns."""
        self._plan = plan_of([], [], self.limit)
        self._values: Callable[[Mapping[Any, object]], tuple[object, ...]] | None = None
        """Returns the values of all fields of an event in order, where all are numbers that events hold."""
        self._measure()
        self.lagged = tuple(lagged)
        self._append([(name, None) for name in self.lagged], dict.fromkeys(self.lagged, NUMERIC))

    def _measure(self) -> None:
        """Compute the numbers of features from the columns."""
        columns, numeric = len(self.feature_names), len(self._plan.numeric)
        self.n_gate_features = 1 + columns + (self.gate_degree - 1) * numeric
        """p_w."""
        self.n_expert_features = 1 + columns + (self.degree - 1) * numeric
        """p_v."""
        self.gate_width = padded(self.n_gate_features)
        """Length of a row of gate features, padding included."""
        self.expert_width = padded(self.n_expert_features)
        """Length of a row of expert features, padding included."""

    def copy(self) -> Encoder:
        """Return an independent copy."""
        other = copy.copy(self)
        for name in (
            "fields",
            "kinds",
            "awaited",
            "feature_names",
            "unplaced",
            "mixed",
            "stated",
            "_index",
            "_entries",
        ):
            setattr(other, name, getattr(self, name).copy())
        other.scales, other.target_scales = self.scales.copied(), self.target_scales.copied()
        other.bounds, other.target_bounds = self.bounds.copied(), self.target_bounds.copied()
        other.doubts = self.doubts.copy()
        other.levels = {name: codes.copy() for name, codes in self.levels.items()}
        return other  # scaler and plan are never changed, only replaced

    def of_numbers(self, fields: Sequence[int]) -> Encoder:
        """Return a new encoder of some fields, as columns of numbers, to find what is frozen of each on its own."""
        other = Encoder(
            n_outputs=self.n_outputs,
            degree=self.degree,
            gate_degree=self.gate_degree,
            range_factor=self.range_factor,
            holds=self.holds,
        )
        other.set_columns([self.fields[j] for j in fields], ["number"] * len(fields))
        return other

    @property
    def number_fields(self) -> list[int]:
        """Indexes of the fields that are numbers, in order."""
        fields: list[int] = self._plan.numeric[:, 0].tolist()
        return fields

    def scaled(self, scaler: Scaler) -> Encoder:
        """Return an encoder with another scaler, for `design` and `hold` only: it shares everything that grows.

        Numbers are held to within `FURTHEST` of the center, since no range is known yet.
        """
        other = copy.copy(self)
        other.scaler = scaler
        other.bounds = Bounds.blank(len(self.fields))
        fields, columns = self._plan.numeric.T
        center, reach = scaler.center[columns], FURTHEST * scaler.scale[columns]
        other.bounds.low[fields], other.bounds.high[fields] = center - reach, center + reach
        other.bounds.seen[fields] = np.where((scaler.scale[columns] != 1.0) | (center != 0.0), 1 + SETTLED, 0)
        return other

    @property
    def own_fields(self) -> list[Any]:
        """Names of the fields that events hold: all but the lags."""
        return self.fields[len(self.lagged) :]

    def index_of(self, name: Any) -> int | None:
        """Return the place of a field in raw rows; None if there is no such field yet."""
        return self._index.get(name)

    def padded_with_lags(self, X: FloatArray, lags: FloatArray | None = None) -> FloatArray:
        """Return rows of all other fields with these lags, (n, L); by default they are yet to be filled in."""
        if not self.lagged:
            return X
        return np.hstack([np.full((len(X), len(self.lagged)), np.nan) if lags is None else lags, X])

    def check_not_lagged(self, names: Iterable[Any]) -> None:
        """Raise `InvalidEvent` if a new field has the name of a lag."""
        for name in names:
            if name in self.lagged:
                msg = f"{name!s}: is the name of a lag, which the model itself makes; rename the column, or ignore it"
                raise InvalidEvent(msg, reason="wrong_type", feature=name)

    @property
    def plan(self) -> Plan:
        """The current fields and levels in the form that kernels take; never changed, only replaced."""
        return self._plan

    @property
    def n_entries(self) -> int:
        """Number of fields and levels."""
        return len(self._entries)

    def before(self, n_entries: int) -> Encoder:
        """Return the encoder as it was when it had so many fields and levels, unscaled, for `design` only."""
        other = self.copy()
        for name in ("fields", "kinds", "feature_names", "levels", "_index", "_entries"):
            setattr(other, name, type(getattr(self, name))())
        other.scales, other.bounds, other.scaler = Scales.blank(0), Bounds.blank(0), identity_scaler(0, self.n_outputs)
        entries = [(self.fields[j], text) for j, text in self._entries[:n_entries]]
        other._append(entries, dict(zip(self.fields, self.kinds, strict=True)))  # noqa: SLF001 - of the same class
        return other

    @property
    def layout(self) -> Layout:
        """The current columns."""
        return Layout(len(self.feature_names), len(self._plan.numeric))

    @property
    def held_features(self) -> IntArray:
        """Indexes of the features that are numbers of degree 1 of a field that has settled, and so is held."""
        fields, columns = self._plan.numeric.T
        held: IntArray = 1 + columns[self.bounds.seen[fields] > SETTLED]
        return held

    def varied_features(self, X: FloatArray, least: int) -> IntArray:
        """Return the features that are numbers of degree 1 of a field with so many different values in raw rows."""
        fields, columns = self._plan.numeric.T
        counts = np.array([np.unique(X[~np.isnan(X[:, field]), field]).size for field in fields.tolist()])
        varied: IntArray = 1 + columns[counts >= least]
        return varied

    def widths_with(self, additions: Additions) -> tuple[int, int]:
        """Return p_w and p_v, the numbers of gate and expert features, with `additions` added."""
        kinds = self._kinds_of(additions)
        numeric = kinds.count(NUMERIC)
        columns = numeric + len(CYCLES) * kinds.count(TIMESTAMP) + len(additions.levels)
        gate = self.n_gate_features + columns + (self.gate_degree - 1) * numeric
        return gate, self.n_expert_features + columns + (self.degree - 1) * numeric

    # -- Fields and levels -----------------------------------------------------------------------------------------

    def kind_of(self, name: Any, value: object) -> ColumnKind | None:
        """Return what a field holds, or what this first value makes it hold; None if nothing decides yet."""
        j = self._index.get(name)
        return self.fixed.kind_in_python(name, value) if j is None else KINDS[self.kinds[j]]

    def is_categorical(self, name: Any) -> bool:
        """Return whether a field holds categories, or will."""
        j = self._index.get(name)
        return name in self.fixed.categorical if j is None else self.kinds[j] == CATEGORICAL

    def set_columns(
        self, names: Iterable[Any], kinds: Iterable[ColumnKind] | None = None, awaited: Iterable[Any] = ()
    ) -> None:
        """Fix the fields of an encoder that has none, in this order; categorical ones have no levels yet.

        Args:
            names: of the fields.
            kinds: what they hold; by default what settings say, and numbers otherwise.
            awaited: names of further columns, which become fields with their first value.

        Raises:
            InvalidEvent: a name is neither a string nor an integer.
        """
        names, awaited = list(names), list(awaited)
        for name in (*names, *awaited):
            check_name(name, place="names")
        self.check_not_lagged((*names, *awaited))
        additions = Additions(tuple(names), kinds=() if kinds is None else tuple(kinds))
        self._append([(name, None) for name in names], dict(zip(names, self._kinds_of(additions), strict=True)))
        self.awaited = sorted(awaited, key=str)

    def set_features(self, names: Iterable[Any]) -> None:
        """Fix fields and levels of an encoder that has none, so that these are its `feature_names`.

        Raises:
            ConfigError: a timestamp lacks one of its six columns, or a name occurs twice.
        """
        wanted = list(names)
        for name in wanted:
            check_name(name, place="feature_names")
        categorical = {f"{field}=": field for field in self.fixed.categorical}
        timestamps = {f"{field}:{CYCLES[0]}": field for field in self.fixed.timestamps}
        at = len(self.lagged)
        while at < len(wanted):
            name = wanted[at]
            # If there are fields "a" and "a=b", then "a=b=c" is a level of the latter.
            prefix = max((p for p in categorical if isinstance(name, str) and name.startswith(p)), key=len, default="")
            if prefix:
                self._append([(categorical[prefix], name[len(prefix) :])], {categorical[prefix]: CATEGORICAL})
            else:
                kind = TIMESTAMP if name in timestamps else NUMERIC
                self._append([(timestamps.get(name, name), None)], {timestamps.get(name, name): kind})
            at = max(at + 1, len(self.feature_names))
        if self.feature_names != wanted or len(set(wanted)) < len(wanted):
            msg = (
                f"feature_names: got {wanted!r}; with these categorical and timestamp fields they would be "
                f"{self.feature_names!r}; name each once, a level as field=level, a timestamp by all its six columns"
            )
            raise ConfigError(msg)

    def additions(self, event: Mapping[Any, object]) -> Additions:
        """Return the fields and levels of `event` that learning it would add.

        Raises:
            InvalidEvent: the value of a categorical field is not a category, or a name neither a string nor an integer.
        """
        index = self._index
        if not self.levels and type(event) is dict and event.keys() <= index.keys():
            return NO_ADDITIONS
        unseen = [name for name in event if name not in index]
        for name in unseen:
            check_name(name)
        if not unseen and not self.levels:
            return NO_ADDITIONS
        found = {name: self.fixed.kind_in_python(name, event[name]) for name in unseen if not is_missing(event[name])}
        unseen = sorted((name for name, kind in found.items() if kind is not None), key=str)
        levels = []
        for name in (*self.levels, *(name for name in unseen if found[name] == "category")):
            if name in event and not is_missing(event[name]):
                text, known = level(event[name], name), self.levels.get(name, {})
                if text not in known and len(known) < self.max_levels:
                    levels.append((name, text))
        return Additions(tuple(unseen), tuple(levels), tuple(kind for name in unseen if (kind := found[name])))

    def arrivals(
        self, texts: Mapping[Any, Sequence[str | None]], learned: BoolArray | None = None
    ) -> list[tuple[int, tuple[tuple[Any, str], ...]]]:
        """Return, in order, the rows that bring new levels, with these levels: an array is cut there to equal a loop.

        Args:
            texts: (n,) levels of each categorical field, in the order of the fields; ``None`` is missing.
            learned: (n,) which rows are learned; others bring nothing. By default all are.
        """
        found: dict[int, list[tuple[Any, str]]] = {}
        for name, column in texts.items():
            known: set[str | None] = {None, *self.levels.get(name, ())}
            for i, text in enumerate(column):
                if text in known or text is None or len(known) > self.max_levels:
                    continue
                if learned is None or learned[i]:
                    known.add(text)
                    found.setdefault(i, []).append((name, text))
        return [(i, tuple(levels)) for i, levels in sorted(found.items())]

    def append_levels(self, levels: Iterable[tuple[Any, str]]) -> None:
        """Add a column for each new level, (field, text), of known fields, in this order.

        Raises:
            ValueError: a field is not categorical, has `max_levels` levels or has this level; nothing was changed.
        """
        new = list(levels)
        for at, (name, text) in enumerate(new):
            before = [*self.levels.get(name, ()), *(other for field, other in new[:at] if field == name)]
            if name not in self.levels or text in before or len(before) >= self.max_levels:
                raise ValueError(f"{name!s}: cannot add level {text!r} to {before!r}; add what `arrivals` returns")
        self._append(new)
        self._notice_mixed(new)

    def codes(self, field: int, texts: Sequence[str | None]) -> FloatArray:
        """Return the codes of a field's levels, (n,): −1 for a level without a column, NaN for ``None``."""
        known: dict[str | None, float] = {None: math.nan}
        known.update(self.levels[self.fields[field]])
        get = known.get
        return np.array([get(text, UNPLACED) for text in texts], dtype=np.float64)

    def moved(self, layout: Layout, degree: int) -> IntArray:
        """Return the new indexes of the features, up to `degree`, of an earlier layout."""
        first = 1 + len(self.feature_names)
        N = len(self._plan.numeric)
        powers = [first + d * N + r for d in range(degree - 1) for r in range(layout.numeric)]
        return np.array([*range(1 + layout.columns), *powers], dtype=np.int64)

    # -- Events to raw rows ----------------------------------------------------------------------------------------

    def row(self, event: Mapping[Any, object], additions: Additions = NO_ADDITIONS) -> FloatArray:
        """Encode one event as a raw row (1, F), or (1, F + new fields) with the codes that new levels will get.

        Other names are ignored; other levels become −1.

        Raises:
            InvalidEvent: a value is of the wrong type or not finite, or a name is neither a string nor an integer.
        """
        if not additions and (values := self.plain_row(event)) is not None and set(map(type, values)) == FLOATS:
            # NaN and infinities make the sum NaN or infinite.
            total = sum(values)
            if total - total == 0.0:
                return np.array([values])
        index, kinds = self._index, self.kinds
        codes: dict[tuple[Any, str], float] = {}
        if additions:
            index = {**index, **{name: len(index) + j for j, name in enumerate(additions.fields)}}
            kinds = [*kinds, *self._kinds_of(additions)]
            for name, text in additions.levels:
                codes[name, text] = len(self.levels.get(name, ())) + sum(field == name for field, _ in codes)
        found = [np.nan] * len(kinds)
        try:
            items = event.items()
        except AttributeError:
            raise not_a_mapping(event) from None
        for name, value in items:
            j = index.get(name)
            if j is None:
                check_name(name)
                continue
            kind = kinds[j]
            # The first test succeeds for nearly every value; the others would take most of the time of a prediction.
            if kind == NUMERIC and type(value) is float and value - value == 0.0:
                found[j] = value
            elif is_missing(value):
                if j < len(self.lagged):
                    found[j] = NO_LAG
            elif kind == NUMERIC:
                found[j] = self.quantity(value, name)
            elif kind == CATEGORICAL:
                text = level(value, name)
                code = self.levels[name].get(text) if name in self.levels else None
                found[j] = codes.get((name, text), UNPLACED) if code is None else code
            else:
                found[j] = seconds(value, name)
        return np.array([found])

    def plain_row(self, event: Mapping[Any, object]) -> tuple[Any, ...] | None:
        """Return the values of an event in the order of the fields, if it has a value of each and nothing else.

        None as well if some fields are not numbers, or there is just one. The values may be of any type; if all are
        floats without infinities, they are what `row` returns.
        """
        if self._values is None or type(event) is not dict or len(event) != len(self.fields):
            return None
        try:
            return self._values(event)
        except KeyError:
            return None

    def quantity(self, value: object, name: Any) -> float:
        """Convert the value of a numeric field to a float.

        Raises:
            InvalidEvent: it is of the wrong type or not finite.
        """
        try:
            return quantity(value, name)
        except InvalidEvent as error:
            raise self.fixed.explained(error) from None

    def take(self, rows: FloatArray, targets: FloatArray, additions: Additions = NO_ADDITIONS) -> None:
        """Take rows into the ranges, and add their new fields and levels: all or nothing.

        Args:
            rows: (n, F + new fields).
            targets: (n, Q).
            additions: the new fields and levels.

        Raises:
            InvalidEvent: a value is out of range; ``row`` is the index of the first such row. Nothing was changed.
        """
        self.check_not_lagged(additions.fields)
        scales, target_scales = self.scales, self.target_scales
        if additions or len(rows) > 1:  # a single row that is rejected changes nothing
            scales, target_scales = scales.widened(len(additions.fields)), target_scales.copied()
        verdicts, n_rejected = self._screen(rows, targets, self._kinds_with(additions), scales, target_scales)
        if n_rejected:
            at = int(np.argmax(verdicts >= 0))
            error = self.out_of_range(rows[at], targets[at], int(verdicts[at]), additions)
            error.row = at
            raise error
        if additions:
            # In the order of streams whose columns are known before the values of their first record.
            held: list[tuple[Any, str | None]] = [(field, None) for field in additions.fields]
            held += additions.levels
            self._append(held, dict(zip(additions.fields, self._kinds_of(additions), strict=True)))
            self._notice_mixed(additions.levels)
        self.scales, self.target_scales = scales, target_scales

    def screen(self, X: FloatArray, Y: FloatArray) -> IntArray:
        """Return −1 for each raw row in range, else the offending field; accepted rows are taken into the ranges."""
        return self._screen(X, Y, self._plan.kinds, self.scales, self.target_scales)[0]

    def out_of_range(
        self, row: FloatArray, target: FloatArray, verdict: int, additions: Additions = NO_ADDITIONS
    ) -> InvalidEvent:
        """Return the error for a raw row that `screen` rejected."""
        names = [*self.fields, *additions.fields, *["target"] * len(target)]
        scales = np.concatenate([self.scales.scales, np.zeros(len(additions.fields)), self.target_scales.scales])
        name, value, scale = names[verdict], float(np.concatenate([row, target])[verdict]), float(scales[verdict])
        if verdict < len(row) and self._kinds_with(additions)[verdict] == TIMESTAMP:
            rule = "a time is in seconds since 1970-01-01 UTC, in the years 1 to 9999; divide milliseconds by 1000"
            return InvalidEvent(f"{name!s}: {value:g} is out of range: {rule}", reason="out_of_range", feature=name)
        rule = (
            f"the limit is {self.limit:g}, regardless of range_factor; rescale it, or correct the record"
            if abs(value) > self.limit
            else f"accepted values are about {scale:g} and range_factor is {self.range_factor:g}; rescale it or raise "
            "range_factor (0 disables the rule)"
        )
        msg = f"{name!s}: {value:g} is out of range: {rule}"
        return InvalidEvent(msg, reason="out_of_range", feature=name)

    def bounded(self, X: FloatArray) -> FloatArray:
        """Clip raw rows to the absolute limits, for predictions, which never raise on range."""
        bounded: FloatArray = np.minimum(np.maximum(X, self._plan.lowest), self._plan.highest)
        return bounded

    def hold(self, X: FloatArray, Y: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Return raw rows with their numbers held to what was seen before them, and with those far beyond it held.

        Learned rows move the bounds.

        Args:
            X: (n, F) rows in range.
            Y: (n, Q) targets, NaN in rows that are only predicted, as all are without targets.
        """
        if not self.holds:
            return X, X
        held, near, targets = X.copy(), X.copy(), NO_TARGETS if Y is None else Y
        bounds, paces = self.bounds, (INPUT_PACE, self.n_lags_of_targets, TARGET_PACE)
        clip_rows(X, targets, self._plan.numeric, *bounds, MARGIN, *paces, held, near)
        return held, near

    def designs(self, held: FloatArray, near: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compute W and R of held rows as `design` does, and R of those of which only numbers far beyond are held."""
        W, R = self.design(held)
        return W, R, R if held is near or ((held == near) | np.isnan(near)).all() else self.design(near)[1]

    @property
    def n_lags_of_targets(self) -> int:
        """Number of lags that are earlier targets; they come first."""
        n_targets = len(self.target_bounds.low)
        return len(self.lagged) * n_targets // (n_targets + len(self.fixed.lagged))

    def hold_predictions(self, predictions: FloatArray, Y: FloatArray | None = None) -> None:
        """Hold predictions of numbers, (n, Q), in place to the targets seen before them; targets move the bounds."""
        if self.holds:
            targets = NO_TARGETS if Y is None else Y
            hold_predictions(predictions, targets, *self.target_bounds, self.doubts, MARGIN, TARGET_PACE, UNASKED)

    def errors(self, Y: FloatArray) -> BoolArray:
        """Return which of the rows to be learned, (n,), have a target that is taken for an error, being far out."""
        errors = np.zeros(len(Y), dtype=np.bool_)
        low, high, _, _ = self.target_bounds
        reach = FAR * (high - low)
        # Bounds only widen, so what they are after the rows before it matters for a target that is far out now.
        if self.holds and ((low - reach > Y) | (high + reach < Y)).any():
            moved, doubts = self.target_bounds.copied(), self.doubts.copy()
            hold_predictions(np.zeros(Y.shape), Y, *moved, doubts, MARGIN, TARGET_PACE, errors)
        return errors

    def notice_unplaced(self, X: FloatArray, Y: FloatArray) -> None:
        """Count rows to be learned whose level has no column because the field is full; warn once for each field."""
        for name, codes in self.levels.items():
            if len(codes) < self.max_levels:
                continue
            count = int(((X[:, self._index[name]] == UNPLACED) & ~np.isnan(Y[:, 0])).sum())
            if count and name not in self.unplaced:
                LOGGER.warning(
                    "%s: has %d levels, as many as max_levels allows; events with others are learned without them. "
                    "If it holds numbers or times, name it in numeric or timestamps, and start over",
                    name,
                    len(codes),
                )
            if count:
                self.unplaced[name] = self.unplaced.get(name, 0) + count

    # -- Raw rows to features --------------------------------------------------------------------------------------

    def design(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute gate features W and expert features R of raw rows X (n, F), each padded with zeros to its width."""
        R = self._expand(X, self.degree, self.expert_width)
        if self.gate_degree == self.degree:
            return R, R
        return self._expand(X, self.gate_degree, self.gate_width), R

    def fit_scaler(self, X: FloatArray, Y: FloatArray, *, standardize: bool) -> None:
        """Freeze means, and with `standardize` the scales, of the numeric fields in the warm-up buffer."""
        self.fit_bounds(X, Y)
        X, Y = self.plausible_inputs(X), self.plausible_targets(Y)
        fields, columns = self._plan.numeric.T
        # What is held cannot be far out later either.
        means, scales = moments(np.take(self.hold(X)[0], fields, axis=1), codes=True)
        scaler = identity_scaler(len(self.feature_names), Y.shape[1])
        scaler.fill[columns] = means
        if standardize:
            scaler.center[columns] = means
            scaler.scale[columns] = scales
            target_means, target_scales = moments(Y, MAX_ERROR_SHARE)
            scaler = scaler._replace(target_center=target_means, target_scale=target_scales)
        self.scaler = scaler

    def frozen_columns(self, X: FloatArray, *, standardize: bool) -> Frozen:
        """Return what `fit_scaler` freezes of these columns, (n, F) numbers; call it of an encoder `of_numbers`."""
        limits = limits_of(X, self.range_factor)
        self.limits = limits, np.full(self.n_outputs, np.inf)
        self.fit_scaler(X, np.zeros((0, self.n_outputs)), standardize=standardize)
        fill, center, scale, _, _ = self.scaler
        return Frozen(limits, fill, center, scale, *self.bounds)

    def frozen_targets(self, Y: FloatArray, *, standardize: bool) -> Frozen:
        """Return what `fit_scaler` freezes of targets, (n, Q); this encoder is not changed."""
        other, limits = self.of_numbers([]), limits_of(Y, self.range_factor)
        other.limits = np.empty(0), limits
        other.fit_scaler(np.zeros((0, 0)), Y, standardize=standardize)
        _, _, _, center, scale = other.scaler
        return Frozen(limits, center, center, scale, *other.target_bounds)

    def freeze(self, columns: Frozen, targets: Frozen, *, joining: bool = False) -> None:
        """Do what `fit_scaler` does, given what is frozen of the columns of numbers, and of the targets.

        With `joining`, do what `fit_bounds` does. From now on buffered rows are taken for a part of all.
        """
        fields, places = self._plan.numeric.T
        limits = np.full(len(self.fields), np.inf)
        limits[fields] = columns.limits
        self.limits = limits, targets.limits
        if self.holds:
            bounds, of_targets = Bounds.blank(len(self.fields)), Bounds(*targets[4:])
            for mine, found in zip(bounds, columns[4:], strict=True):
                mine[fields] = found
            self.bounds = self.bounds.union(bounds) if joining else bounds
            self.target_bounds = self.target_bounds.union(of_targets) if joining else of_targets
            self.doubts = np.zeros(self.n_outputs)
        if joining:
            return
        scaler = identity_scaler(len(self.feature_names), self.n_outputs)
        scaler.fill[places], scaler.center[places], scaler.scale[places] = columns.fill, columns.center, columns.scale
        self.scaler = scaler._replace(target_center=targets.center, target_scale=targets.scale)

    def is_scaled_before(self, X: FloatArray) -> bool:
        """Return whether the numbers in the first rows of a stream show a scaler in front of the model."""
        return come_from_a_running_scaler(np.take(X, self._plan.numeric[:, 0], axis=1))

    def codes_in(self, X: FloatArray) -> dict[Any, tuple[float, int]]:
        """Return the columns of numbers that have a code in these rows, with what `code_of` says; of lags none."""
        own = [at for at in self._plan.numeric[:, 0].tolist() if at >= len(self.lagged)]
        return {self.fields[at]: code for at in own if (code := code_of(X[:, at])) is not None}

    def fit_bounds(self, X: FloatArray, Y: FloatArray, *, joining: bool = False) -> None:
        """Hold to the range of buffered rows from now on; with `joining`, to what was seen before as well."""
        if self.holds:
            bounds, before = self._bounds_of_inputs(X), self.target_bounds
            self.bounds = self.bounds.union(bounds) if joining else bounds
            self.fit_target_bounds(Y)
            if joining:
                self.target_bounds = before.union(self.target_bounds)

    def _bounds_of_inputs(self, X: FloatArray) -> Bounds:
        return Bounds.of(self.plausible_inputs(X), self._plan.numeric[:, 0], codes=True)

    def fit_target_bounds(self, Y: FloatArray) -> None:
        """Hold predictions to the range of buffered targets from now on."""
        if self.holds:
            self.target_bounds = Bounds.of(self.plausible_targets(Y), np.arange(Y.shape[1]), share=MAX_ERROR_SHARE)
            self.doubts = np.zeros(Y.shape[1])

    def plausible_inputs(self, X: FloatArray) -> FloatArray:
        """Return buffered rows with NaN for numbers that would be out of range if they came now.

        When they came, the scale of the column may not have been known.
        """
        numeric = np.zeros(X.shape[1], dtype=np.bool_)
        numeric[self._plan.numeric[:, 0]] = True
        limits = limits_of(X, self.range_factor) if self.limits is None else self.limits[0]
        return np.where(numeric & (np.abs(X) > limits), np.nan, X)

    def plausible_targets(self, Y: FloatArray) -> FloatArray:
        """Return buffered targets that are numbers, likewise."""
        limits = limits_of(Y, self.range_factor) if self.limits is None else self.limits[1]
        return np.where(np.abs(Y) > limits, np.nan, Y)

    def far_out(self, Y: FloatArray) -> BoolArray:
        """Return which of the buffered rows, (n,), have a target far beyond the bounds, of which it does not count."""
        low, high, _, seen = self.target_bounds
        reach = np.where(seen > FEW, FAR * (high - low), math.inf)
        far = np.zeros(len(Y), dtype=np.bool_)
        far[((low - reach > Y) | (high + reach < Y)).any(axis=1)] = True
        return far

    def ranges(self) -> dict[str, AnyArray]:
        """Return copies of what inputs and predictions are held to, for a model that continues elsewhere."""
        arrays = self.bounds.arrays("inputs") | self.target_bounds.arrays("targets")
        return {name: array.copy() for name, array in arrays.items()}

    def set_ranges(self, ranges: Mapping[str, AnyArray]) -> None:
        """Hold to what `ranges` returned; without `hold` nothing is held.

        Raises:
            ConfigError: an array is missing, has another shape, or holds invalid values.
        """
        if self.holds:
            if not isinstance(ranges, Mapping):
                raise ConfigError(f"parameters: 'ranges' is {shown(ranges)}; it must be as `parameters` returns it")
            ranges = {name: np.asarray(array) for name, array in ranges.items()}
            try:
                self.bounds = Bounds.restored(ranges, "inputs", len(self.fields))
                self.target_bounds = Bounds.restored(ranges, "targets", self.n_outputs)
            except CheckpointError as error:
                raise ConfigError(f"parameters: 'ranges': {error}") from None

    def join_ranges(self, other: Encoder, outputs: IntArray) -> None:
        """Accept, and hold to, what another encoder of these fields does as well; its outputs are at `outputs`."""
        at = np.array([other.fields.index(field) for field in self.fields], dtype=np.int64)
        self.scales = self.scales.union(other.scales.part(at))
        self.target_scales = self.target_scales.union(other.target_scales.part(outputs))
        self.bounds = self.bounds.union(other.bounds.part(at))
        self.target_bounds = self.target_bounds.union(other.target_bounds.part(outputs))

    # -- In a checkpoint -------------------------------------------------------------------------------------------

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays; names and levels are JSON."""
        arrays = {
            "encoder.columns": as_json(self.fields),
            **self.scales.arrays("encoder.largest"),
            **self.target_scales.arrays("encoder.target_largest"),
            **{f"encoder.{name}": array for name, array in self.scaler._asdict().items()},
        }
        if self.holds:
            arrays |= self.bounds.arrays("encoder.bounds") | self.target_bounds.arrays("encoder.target_bounds")
            arrays["encoder.doubts"] = self.doubts
        if self.awaited:
            arrays["encoder.awaited"] = as_json(self.awaited)
        if any(kind != NUMERIC for kind in self.kinds):
            arrays["encoder.kinds"] = as_json([KIND_NAMES[kind] for kind in self.kinds])
            arrays["encoder.plan"] = as_json(self._entries)
        return arrays

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore a new encoder from what `arrays` returned; if kinds are missing, all fields are numeric.

        Raises:
            CheckpointError: the kind of a field contradicts settings, or the arrays are invalid.
        """
        names = names_of(arrays, "encoder.columns", (str, int))
        kinds = list_of(arrays, "encoder.kinds") if "encoder.kinds" in arrays else ["numeric"] * len(names)
        known = len(kinds) == len(names) and all(kind in KIND_NAMES.values() for kind in kinds)
        require(known, f"encoder.kinds holds {shown(kinds)} for {len(names)} fields")
        codes = [_CODES_BY_NAME[kind] for kind in kinds]
        for name, code in zip(names, codes, strict=True):
            fixed = self.fixed.kind(name)
            if fixed is not None and CODES[fixed] != code:
                here = KIND_NAMES[CODES[fixed]]
                msg = f"{name!s}: is {KIND_NAMES[code]} in the checkpoint and {here} here; make them agree"
                raise CheckpointError(msg)
        plan = list_of(arrays, "encoder.plan") if "encoder.plan" in arrays else [[j, None] for j in range(len(names))]
        first = len(self.lagged)
        have = (*names[:first],) == self.lagged and not any(code != NUMERIC for code in codes[:first])
        require(have, f"encoder.columns begins with {shown(names[:first])} and not with the lags {shown(self.lagged)}")
        entries = restored_entries(names, codes, plan, self.max_levels)
        self._append(entries[first:], dict(zip(names, codes, strict=True)))
        self.awaited = names_of(arrays, "encoder.awaited", (str, int)) if "encoder.awaited" in arrays else []
        both = [name for name in self.awaited if name in self._index]
        require(not both, f"encoder.awaited holds {shown(both)}, which are fields already")
        F, Q = len(self.fields), self.n_outputs
        self.scaler = restored_scaler(arrays, "encoder", len(self.feature_names), Q)
        self.scales = Scales.restored(arrays, "encoder.largest", F)
        self.target_scales = Scales.restored(arrays, "encoder.target_largest", Q)
        if self.holds:
            self.bounds = Bounds.restored(arrays, "encoder.bounds", F)
            self.target_bounds = Bounds.restored(arrays, "encoder.target_bounds", Q)
            self.doubts = array_of(arrays, "encoder.doubts", "float64", (Q,), least=0.0, most=PATIENCE + 1.0).copy()

    def check_rows(self, X: FloatArray) -> None:
        """Check that this encoder could have accepted the raw rows of a checkpoint, (n, F).

        Raises:
            CheckpointError: it could not.
        """
        for j, name in enumerate(self.fields):
            column = X[:, j]
            present = column[~np.isnan(column)]
            least, most = float(self._plan.lowest[j]), float(self._plan.highest[j])
            if self.kinds[j] == CATEGORICAL:
                least, most = UNPLACED, len(self.levels[name]) - 1
                require((present == np.floor(present)).all(), f"array warmup.X holds an invalid code of {shown(name)}")
            inside = (present >= least) & (present <= most)
            require(inside.all(), f"array warmup.X holds values of {shown(name)} outside of {least:g} to {most:g}")

    # -- Internals -------------------------------------------------------------------------------------------------

    def _kinds_of(self, additions: Additions) -> list[int]:
        """Return the kinds of new fields."""
        kinds = additions.kinds or [self.fixed.kind(name) or "number" for name in additions.fields]
        return [CODES[kind] for kind in kinds]

    def _notice_mixed(self, levels: Iterable[tuple[Any, str]]) -> None:
        """Warn once of each field that its first value made one of categories, and that holds numbers too."""
        for name, text in levels:
            if name in self.fixed.categorical or name in self.mixed or name in self.stated:
                continue
            if NUMBER.fullmatch(text) and not self._are_numbers(self.levels[name]):
                self.mixed.add(name)
                LOGGER.warning(
                    "%s: its first value made it a column of categories, and %s is one of them now; name it in "
                    "categorical if that is meant, or in numeric and start over",
                    name,
                    shown(text),
                )

    def _are_numbers(self, levels: Iterable[str]) -> bool:
        return all(NUMBER.fullmatch(text) for text in levels)

    @property
    def numbers_as_text(self) -> list[Any]:
        """Fields taken for categories without a setting, of which each level so far is a number."""
        said = {*self.fixed.categorical, *self.stated}
        return [name for name, levels in self.levels.items() if name not in said and self._are_numbers(levels)]

    def _kinds_with(self, additions: Additions) -> IntArray:
        """Return the kinds of all fields, new ones included, (F + new fields,)."""
        if not additions.fields:
            return self._plan.kinds
        return np.array([*self.kinds, *self._kinds_of(additions)], dtype=np.int64)

    def _screen(
        self,
        X: FloatArray,
        Y: FloatArray,
        kinds: IntArray,
        scales: Scales,
        target_scales: Scales,
    ) -> tuple[IntArray, int]:
        """Return a verdict for each row, and the number of rejected rows; the given scales are changed in place."""
        verdicts = np.empty(len(X), dtype=np.int64)
        if self.lagged:  # they were judged as targets and inputs
            kinds = kinds.copy()
            kinds[: len(self.lagged)] = CATEGORICAL
        n_rejected = screen_rows(X, Y, kinds, *scales, *target_scales, self.range_factor, self.limit, verdicts)
        return verdicts, n_rejected

    def _expand(self, X: FloatArray, degree: int, width: int) -> FloatArray:
        plan, scaler = self._plan, self.scaler
        out = np.zeros((len(X), width))
        expand_rows(
            X,
            plan.numeric,
            plan.coded,
            plan.places,
            plan.timed,
            scaler.fill,
            scaler.center,
            scaler.scale,
            degree,
            out,
        )
        return out

    def _append(self, entries: Sequence[tuple[Any, str | None]], kinds: Mapping[Any, int] | None = None) -> None:
        """Append fields, (name, None), of these kinds, and levels, (name, text), in this order."""
        if not entries:
            return
        kinds = kinds or {}
        for name, text in entries:
            j = self._index.get(name)
            if j is None:
                j = self._index[name] = len(self.fields)
                self.fields.append(name)
                self.kinds.append(kinds[name])
                if name in self.awaited:
                    self.awaited.remove(name)
                self._entries.append((j, None))
                if self.kinds[j] == CATEGORICAL:
                    self.levels[name] = {}
                elif self.kinds[j] == TIMESTAMP:
                    self.feature_names += [f"{name!s}:{part}" for part in CYCLES]
                else:
                    self.feature_names.append(name)
            if text is not None:
                self.levels[name][text] = len(self.levels[name])
                self._entries.append((j, text))
                self.feature_names.append(f"{name!s}={text}")
        self._plan = plan_of(self.kinds, self._entries, self.limit)
        are_numbers = len(self.kinds) > 1 and not self.lagged and set(self.kinds) == {NUMERIC}
        self._values = operator.itemgetter(*self.fields) if are_numbers else None
        self._measure()
        more = len(self.fields) - len(self.scales.scales)
        self.scales, self.bounds = self.scales.widened(more), self.bounds.widened(more)
        self.scaler = wider_scaler(self.scaler, len(self.feature_names))


KIND_NAMES = {NUMERIC: "numeric", CATEGORICAL: "categorical", TIMESTAMP: "timestamp"}
_CODES_BY_NAME = {name: code for code, name in KIND_NAMES.items()}
