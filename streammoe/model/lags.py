"""Lags: the targets, and where wanted inputs, of the last events learned, as features of the next one.

They are the first fields of a model, so that new columns move none of them. They are filled in the order of learning,
so that an event sees only events that were learned before it; an event that is not learned (rejected, without
target, of weight 0) leaves no trace in them.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streammoe.checked import array_of, require
from streammoe.columns.row_reader import NO_LAG
from streammoe.errors import ConfigError
from streammoe.options import Lags
from streammoe.types import AnyArray, FloatArray

PREFIX = "lags."
"""Prefix of the names of its arrays in checkpoints."""
SERIES_LAGS = 3
"""How many of the last targets the member `series` sees."""


class Past:
    """The last targets, which the member `series` sees, and whether those of the next event are known.

    Where targets come late, the last ones that are known before an event is predicted are not those before it is
    learned. So they count for the prediction of an event only if the event before was predicted right before it was
    learned. This is no part of what was learned: predictions leave no trace in it.

    Args:
        n_targets: number of targets of an event.
    """

    def __init__(self, n_targets: int) -> None:
        self.targets = np.full((SERIES_LAGS, n_targets), np.nan)
        """(lags, targets), the latest last, NaN where there is none; kernels change it."""
        self.is_timely = False
        """Whether the event that was learned last was predicted right before."""
        self.shown: Sequence[float] | None = None
        """The row that was predicted last, unless one was learned since."""

    def learned(self, row: Sequence[float]) -> None:
        """Take note of a row that `learn_one` learned."""
        # By their bytes, since rows may be lists or tuples, and NaN, a missing value, must equal itself.
        self.is_timely = self.shown is not None and array("d", self.shown).tobytes() == array("d", row).tobytes()
        self.shown = None

    def copy(self) -> Past:
        """Return an independent copy."""
        other = copy.copy(self)
        other.targets = self.targets.copy()
        return other

    def arrays(self) -> dict[str, AnyArray]:
        """Return the arrays of a checkpoint."""
        return {f"{PREFIX}past": self.targets}

    def restore(self, arrays: Mapping[str, AnyArray], n_classes: int) -> None:
        """Restore what `arrays` returned; targets are indexes of so many classes, or numbers if that is 0.

        Raises:
            CheckpointError: it is invalid.
        """
        self.targets = array_of(arrays, f"{PREFIX}past", "float64", self.targets.shape, finite=False).copy()
        require(not np.isinf(self.targets).any(), f"array {PREFIX}past holds infinity")
        known = self.targets[~np.isnan(self.targets)]
        is_sound = not n_classes or bool(np.isin(known, np.arange(n_classes)).all())
        require(is_sound, f"array {PREFIX}past holds {known.tolist()}; classes are from 0 to {n_classes - 1}")


class LagMemory:
    """The last targets and inputs, for lags that are features of all members.

    Args:
        lags: what to remember.
    """

    def __init__(self, lags: Lags) -> None:
        self.lags = lags
        self.past: FloatArray | None = None
        """(size, targets + inputs) of the last events learned, which kernels change; the latest last, NaN where there
        is none. None before the first one."""

    def names(self, targets: Sequence[Any]) -> list[str]:
        """Return the names of the features, the latest event first.

        Raises:
            ConfigError: an input is called like a target.

        >>> LagMemory(Lags(2, ("temp",))).names(["y"])
        ['y:lag1', 'y:lag2', 'temp:lag1', 'temp:lag2']
        """
        both = sorted(set(map(str, targets)).intersection(map(str, self.lags.inputs)))
        if both:
            raise ConfigError(
                f"lags.inputs names {both[0]!r}, which a target is called, and lags of targets are features "
                "anyway; leave it out, or rename the input"
            )
        return [f"{name!s}:lag{i}" for name in (*targets, *self.lags.inputs) for i in range(1, self.lags.size + 1)]

    def copy(self) -> LagMemory:
        """Return an independent copy."""
        other = LagMemory(self.lags)
        other.past = None if self.past is None else self.past.copy()
        return other

    def memory(self, n_sources: int) -> FloatArray:
        """Return `past`, allocated for so many targets and inputs if there is none yet."""
        if self.past is None:
            self.past = np.full((self.lags.size, n_sources), np.nan)
        return self.past

    def shown(self, X: FloatArray, n_targets: int) -> FloatArray:
        """Return rows that are to be predicted, with the lags of the next event where they have none of their own."""
        return _with_lags(X, np.tile(self.latest(n_targets), (len(X), 1)))

    def latest(self, n_targets: int) -> FloatArray:
        """Return the lags of the next event, in the order of their names."""
        if self.past is None:
            return np.full(self.lags.size * (n_targets + len(self.lags.inputs)), np.nan)
        return self.past[::-1].T.ravel()

    def taken(self, X: FloatArray, Y: FloatArray, inputs: Sequence[int | None]) -> FloatArray:
        """Return rows with their lags, each of the events learned before it, and remember those that are learned.

        Args:
            X: (n, F) raw rows; those that have a lag already keep theirs.
            Y: (n, Q) targets, NaN in rows that are only predicted.
            inputs: the field of each input that is remembered; None if there is none yet.
        """
        size, learned = self.lags.size, ~np.isnan(Y[:, 0])
        columns = [np.full(len(X), np.nan) if field is None else X[:, field] for field in inputs]
        sources = np.column_stack([Y, *columns])
        past = np.full((size, sources.shape[1]), np.nan) if self.past is None else self.past
        events = np.concatenate([past, sources[learned]])
        # Row i sees the `size` events that end before the first one learned at i or after it.
        ends = size + np.cumsum(learned) - learned
        lagged = events[ends[:, None] - np.arange(1, size + 1)]
        if learned.any():
            self.memory(sources.shape[1])[:] = events[-size:]
        return _with_lags(X, lagged.transpose(0, 2, 1).reshape(len(X), -1))

    def seen(self, X: FloatArray, Y: FloatArray, inputs: Sequence[int | None]) -> FloatArray:
        """Return the lags that rows see, as `taken` gives them, `NO_LAG` where missing; nothing is remembered."""
        found = self.copy().taken(X, Y, inputs)[:, : len(self.latest(Y.shape[1]))]
        return np.where(np.isnan(found), NO_LAG, found)

    def arrays(self) -> dict[str, AnyArray]:
        """Return the memory as an array of a checkpoint."""
        return {} if self.past is None else {f"{PREFIX}past": self.past}

    def restore(self, arrays: Mapping[str, AnyArray], n_targets: int) -> None:
        """Restore what `arrays` returned.

        Raises:
            CheckpointError: it is invalid.
        """
        if f"{PREFIX}past" in arrays:
            shape = (self.lags.size, n_targets + len(self.lags.inputs))
            self.past = array_of(arrays, f"{PREFIX}past", "float64", shape, finite=False).copy()
            require(not np.isinf(self.past).any(), f"array {PREFIX}past holds infinity")


def _with_lags(X: FloatArray, lags: FloatArray) -> FloatArray:
    """Return rows with these lags as their first fields, except in rows that have one of their own."""
    width = lags.shape[1]
    filled = X.copy()
    own = ~np.isnan(X[:, :width]).all(axis=1, keepdims=True)
    found = np.where(own, X[:, :width], lags)
    filled[:, :width] = np.where(found == NO_LAG, np.nan, found)
    return filled
