"""Events (dicts) to arrays: column order, types and ranges, missing values, standardisation, polynomial powers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.kernels.features import expand_rows, screen_rows
from streammoe.kernels.linalg import VANISHED
from streammoe.types import FloatArray, IntArray

ABSOLUTE_LIMIT = 1e50
"""Beyond this a square no longer fits beside others in a Gram matrix."""
LANES = 4
"""Rows of features are padded with zeros to a multiple of this, which the processor's vector units like best."""


def padded(n_features: int) -> int:
    """Length of a row that holds so many features.

    >>> padded(11), padded(12)
    (12, 12)
    """
    return -(-n_features // LANES) * LANES


class Scaler(NamedTuple):
    """Frozen at the end of warm-up, and part of the state. Identity until then."""

    fill: FloatArray
    """(P,) what a missing value becomes: the column's mean, 0 before it is known."""
    center: FloatArray
    """(P,) and `scale` (P,): inputs enter as (x − center)/scale."""
    scale: FloatArray
    target_center: FloatArray
    """(Q,) and `target_scale` (Q,): the same for the outputs."""
    target_scale: FloatArray


def identity_scaler(n_columns: int, n_outputs: int) -> Scaler:
    """Nothing is moved or scaled; missing values are 0."""
    return Scaler(np.zeros(n_columns), np.zeros(n_columns), np.ones(n_columns), np.zeros(n_outputs), np.ones(n_outputs))


def number(value: object, name: object) -> float:
    """The value of a feature or target as a float; raises `InvalidEvent` for what would poison a model."""
    if isinstance(value, float | int | np.floating | np.integer | np.bool_):
        try:
            result = float(value)
        except OverflowError:
            result = np.inf
        if result - result == 0.0:
            return result
        problem, reason = "is not a finite number", "not_finite"
    else:
        problem, reason = f"is a {type(value).__name__}, not a number", "wrong_type"
    msg = f"{name!s}: {str(value)[:80]!r} {problem}; leave the key out where a value is missing"
    raise InvalidEvent(msg, reason=reason, feature=name)


class Encoder:
    """Turns events into rows of numbers and rows of numbers into features, and remembers what that takes.

    Columns are ordered by name within the event that first shows them; later ones are appended.
    """

    def __init__(self, *, n_outputs: int, degree: int, gate_degree: int, range_factor: float) -> None:
        self.n_outputs = n_outputs
        self.degree = degree
        self.gate_degree = gate_degree
        self.range_factor = range_factor
        self.columns: list[Any] = []
        self.scaler = identity_scaler(0, n_outputs)
        self.largest = np.zeros(0)
        self.target_largest = np.zeros(n_outputs)
        self._index: dict[Any, int] = {}

    @property
    def n_gate_features(self) -> int:
        """p_w."""
        return 1 + self.gate_degree * len(self.columns)

    @property
    def n_expert_features(self) -> int:
        """p_v."""
        return 1 + self.degree * len(self.columns)

    @property
    def gate_width(self) -> int:
        """Length of a row of gate features, padding included."""
        return padded(self.n_gate_features)

    @property
    def expert_width(self) -> int:
        """Length of a row of expert features, padding included."""
        return padded(self.n_expert_features)

    @property
    def limit(self) -> float:
        """Largest absolute value that the highest power still lets through."""
        return float(min(ABSOLUTE_LIMIT, 1e150 ** (1.0 / max(self.degree, self.gate_degree, 1))))

    def set_columns(self, names: Iterable[Any]) -> None:
        """Fix the columns of an encoder that has none, in this order."""
        self._append(list(names))

    def unseen(self, event: Mapping[Any, object]) -> list[Any]:
        """Names in `event` that are no column yet, ordered by name."""
        return sorted((name for name in event if name not in self._index), key=str)

    def row(self, event: Mapping[Any, object], unseen: Iterable[Any] = ()) -> FloatArray:
        """One event as a row (1, P), or (1, P + unseen); NaN where a column is absent, other names are ignored."""
        extra = {name: len(self.columns) + j for j, name in enumerate(unseen)}
        row = [np.nan] * (len(self.columns) + len(extra))
        for name, value in event.items():
            j = self._index.get(name)
            if j is None:
                j = extra.get(name)
            if j is None:
                continue
            # The first test settles nearly every value; `number` would cost most of the time of a prediction.
            row[j] = value if type(value) is float and value - value == 0.0 else number(value, name)
        return np.array([row])

    def take(self, rows: FloatArray, targets: FloatArray, unseen: list[Any]) -> None:
        """Take rows, and the new columns they end in, into the ranges: all of them or none.

        Args:
            rows: (n, P + unseen).
            targets: (n, Q).
            unseen: names of the new columns.

        Raises:
            InvalidEvent: a value is out of range; ``row`` is the index of the first such row. Nothing was changed.
        """
        largest = np.concatenate([self.largest, np.zeros(len(unseen))])
        target_largest = self.target_largest.copy()
        verdicts = np.empty(len(rows), dtype=np.int64)
        if screen_rows(rows, targets, largest, target_largest, self.range_factor, self.limit, verdicts):
            at = int(np.argmax(verdicts >= 0))
            error = self.out_of_range(rows[at], targets[at], int(verdicts[at]), unseen)
            error.row = at
            raise error
        self._append(unseen)
        self.largest = largest
        self.target_largest = target_largest

    def screen(self, X: FloatArray, Y: FloatArray) -> IntArray:
        """−1 for each row that is in range, else the column at fault; accepted rows widen the ranges."""
        verdicts = np.empty(len(X), dtype=np.int64)
        screen_rows(X, Y, self.largest, self.target_largest, self.range_factor, self.limit, verdicts)
        return verdicts

    def out_of_range(
        self, row: FloatArray, target: FloatArray, verdict: int, unseen: list[Any] | None = None
    ) -> InvalidEvent:
        """The error for a row that `screen` refused."""
        names = [*self.columns, *(unseen or []), *["target"] * len(target)]
        largest = np.concatenate([self.largest, np.zeros(len(unseen or [])), self.target_largest])
        name, value, seen = names[verdict], float(np.concatenate([row, target])[verdict]), float(largest[verdict])
        rule = (
            f"the limit is {self.limit:g}"
            if abs(value) > self.limit
            else f"the largest accepted so far is {seen:g} and range_factor is {self.range_factor:g}"
        )
        msg = f"{name!s}: {value:g} is out of range: {rule}; rescale it or raise range_factor (0 turns the rule off)"
        return InvalidEvent(msg, reason="out_of_range", feature=name)

    def design(self, X: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gate features W and expert features R of rows X (n, P), each padded with zeros to its width."""
        scaler = self.scaler
        R = np.zeros((len(X), self.expert_width))
        expand_rows(X, scaler.fill, scaler.center, scaler.scale, self.degree, R)
        if self.gate_degree == self.degree:
            return R, R
        W = np.zeros((len(X), self.gate_width))
        expand_rows(X, scaler.fill, scaler.center, scaler.scale, self.gate_degree, W)
        return W, R

    def fit_scaler(self, X: FloatArray, Y: FloatArray, *, standardize: bool) -> None:
        """Freeze means, and with `standardize` the scales, as they are in the warm-up buffer."""
        present = ~np.isnan(X)
        counts = np.maximum(present.sum(axis=0), 1)
        means = np.where(present, X, 0.0).sum(axis=0) / counts
        scaler = identity_scaler(X.shape[1], Y.shape[1])._replace(fill=means)
        if standardize:
            deviations = np.sqrt(np.where(present, (X - means) ** 2, 0.0).sum(axis=0) / counts)
            target_deviations = Y.std(axis=0)
            scaler = scaler._replace(
                center=means.copy(),
                scale=_usable(deviations, means),
                target_center=Y.mean(axis=0),
                target_scale=_usable(target_deviations, Y.mean(axis=0)),
            )
        self.scaler = scaler

    def feature_positions(self, degree: int, n_old: int) -> IntArray:
        """Where the features of the first `n_old` columns stand now that more columns have been appended."""
        P = len(self.columns)
        powers = [1 + d * P + j for d in range(degree) for j in range(n_old)]
        return np.array([0, *powers], dtype=np.int64)

    def _append(self, names: list[Any]) -> None:
        if not names:
            return
        for name in names:
            self._index[name] = len(self.columns)
            self.columns.append(name)
        more = len(names)
        self.largest = np.concatenate([self.largest, np.zeros(len(self.columns) - len(self.largest))])
        self.scaler = self.scaler._replace(
            fill=np.concatenate([self.scaler.fill, np.zeros(more)]),
            center=np.concatenate([self.scaler.center, np.zeros(more)]),
            scale=np.concatenate([self.scaler.scale, np.ones(more)]),
        )


def _usable(deviations: FloatArray, means: FloatArray) -> FloatArray:
    """Standard deviations, with 1 for a column that does not vary beyond its rounding."""
    return np.where(deviations > 1e-12 * np.abs(means) + VANISHED, deviations, 1.0)
