"""The one store of rows: the latest learned events, to which the mixture is fitted, and parameters from before."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine.cost import Shape
from streammoe.engine.drift import Drift
from streammoe.engine.state import checked_variances
from streammoe.experts import Family, Parameters
from streammoe.replacements import Noticed
from streammoe.types import AnyArray, FloatArray

LEAST_CAPACITY, MOST_ROWS = 1600, 25_600
"""Number of events kept, at least and at most, for a fit to determine most mixtures."""
ROWS_PER_FEATURE = 10
"""Number of events kept for each feature, at least."""
ROUND_LIMIT = 1e8
"""Most multiply-adds of one round of a fit to all of them, unless that is fewer than these."""
MOST_BYTES = 1 << 23
"""Most bytes of rows, unless more are asked for; they are part of each checkpoint."""
LARGEST_CAPACITY = 1 << 24
"""More rows than can be asked for."""
NARROW = 0.25
"""Spread of targets, over that of the rows that set the scales, below which they may be in another unit."""
ROUNDING = 1e-9
"""What variances of the same targets may differ by, depending on how they are added up."""
PAIRED = 64
"""Latest targets of which each two are compared before all are."""
PREFIX = "recent."
COUNTS = f"{PREFIX}earlier.n"


def least_variation(n: int, target_scale: FloatArray) -> float:
    """Return the sum of squared differences of pairs of the first target above which n of them do not vary little."""
    return 2.0 * n * (1.0 + ROUNDING) * float((NARROW * target_scale[0]) ** 2)


def capacity_for(n_features: int, row_bytes: int, row_work: float, asked: int = 0) -> int:
    """Return how many events are kept of a model of so many features; `asked`: at least so many.

    >>> capacity_for(11, 104, 1573.0), capacity_for(301, 2424, 1e6), capacity_for(785, 6296, 1e7)
    (25600, 3010, 1332)
    """
    wanted = max(min(int(ROUND_LIMIT / row_work), MOST_ROWS), LEAST_CAPACITY, ROWS_PER_FEATURE * n_features)
    return max(min(wanted, MOST_BYTES // row_bytes), asked)


class Rows(NamedTuple):
    """Rows of events, as they came."""

    X: FloatArray
    """(n, F) raw rows: numbers, codes of levels, times in seconds; NaN where missing."""
    Y: FloatArray
    """(n, Q) targets, or (n, 1) indexes of classes."""
    weights: FloatArray
    """(n,)"""

    def part(self, chosen: slice | AnyArray) -> Rows:
        """Return some of them."""
        return Rows(*(np.ascontiguousarray(array[chosen]) for array in self))

    def widened(self, n_fields: int) -> Rows:
        """Return them with so many fields, those of the last ones missing."""
        more = n_fields - self.X.shape[1]
        return self._replace(X=np.pad(self.X, [(0, 0), (0, more)], constant_values=np.nan))


class RecentEvents(Noticed):
    """Raw rows of learned events in order, NaN where missing, with targets, weights and the losses of what served.

    Attributes:
        capacity: how many rows are kept.
        earlier: parameters that predicted at earlier event counts, at most two of them, the latest last.
    """

    def __init__(self) -> None:
        self.capacity = 0
        self._arrays = {
            "X": np.empty((0, 0)),
            "Y": np.empty((0, 0)),
            "weights": np.empty(0),
            "losses": np.empty(0),
        }
        """The last `count` rows up to `_end` are in use."""
        self._used = np.zeros(2, dtype=np.int64)
        """How many these are, and `_end`: kernels change them."""
        self.earlier: tuple[tuple[int, Parameters], ...] = ()

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self._used[0])

    @property
    def _end(self) -> int:
        return int(self._used[1])

    def keep(self, n: int, theta: Parameters) -> None:
        """Keep the parameters that predict at event n, next to those kept last."""
        self.earlier = (*self.earlier[-1:], (n, theta.copied()))

    def parameters_at(self, n: int) -> Parameters | None:
        """Return the latest parameters kept until event n, if there are any."""
        return next((theta for kept_at, theta in reversed(self.earlier) if kept_at <= n), None)

    def forget_parameters(self, until: int = sys.maxsize) -> None:
        """Drop the parameters kept until some event: columns have changed, or what is true."""
        self.earlier = tuple(each for each in self.earlier if each[0] > until)

    def prepare(self, width: int, n_targets: int, capacity: int) -> None:
        """Make room for so many rows of so many fields and targets, to which a kernel adds."""
        if capacity == self.capacity and self._has_shape(width, n_targets):
            return
        self.keep_last(capacity)
        before, self.capacity = self._in_use(), capacity
        # For as many rows again, so that they are moved seldom.
        shapes = {"X": (width,), "Y": (n_targets,), "weights": (), "losses": ()}
        self._arrays = {name: np.empty((2 * capacity, *shape)) for name, shape in shapes.items()}
        self._arrays["X"][: self.count] = np.nan  # of late columns
        for name, old in before.items():
            self._arrays[name][(slice(self.count), *map(slice, old.shape[1:]))] = old
        self._used[1] = self.count

    @property
    def storage(self) -> object:
        """What is another object whenever arrays in which rows are kept have been replaced."""
        return self._arrays

    def room(self, width: int, n_targets: int) -> dict[str, AnyArray]:
        """Return where a kernel may add rows, of as many fields and targets; empty if they do not fit.

        Besides the arrays of rows, "used" has the number of rows in use, at most `capacity`, and where they end.
        """
        return {**self._arrays, "used": self._used} if self._has_shape(width, n_targets) else {}

    def _has_shape(self, width: int, n_targets: int) -> bool:
        return (self._arrays["X"].shape, self._arrays["Y"].shape[1]) == ((2 * self.capacity, width), n_targets)

    def _in_use(self) -> dict[str, FloatArray]:
        used = slice(self._end - self.count, self._end)
        return {name: array[used] for name, array in self._arrays.items()}

    def keep_last(self, n: int) -> None:
        """Drop all but the last n rows."""
        self._used[0] = min(self.count, n)

    def needless_loss(self, n: int, target_scale: FloatArray) -> tuple[float, float] | None:
        """Return the median loss of the last n rows, and the mean one of a normal distribution fitted to the n before.

        Few wrong targets hardly change the former, and only raise the latter.

        Args:
            n: number of rows.
            target_scale: (Q,) the unit of the losses, and the spread of targets when scales were taken.

        Returns:
            None if there are fewer rows, if their targets do not vary little, or if half of them have the same one.
        """
        if self.count < 2 * n:
            return None
        used = self._in_use()
        Y = used["Y"][-2 * n :] / target_scale
        before, latest = Y[:n], Y[n:]
        if not (latest.var(axis=0) < NARROW**2).all():
            return None
        variances = before.var(axis=0)
        spread = np.median(np.abs(before - np.median(before, axis=0)), axis=0)
        varies = (variances > 0.0) & (spread > 0.0)  # squares of the least numbers vanish
        if not (varies & (variances < NARROW**2)).all():
            return None
        costs = 0.5 * (np.log(2.0 * math.pi * variances) + (latest - before.mean(axis=0)) ** 2 / variances)
        return float(np.median(used["losses"][-n:])), float(costs.sum(axis=1).mean())

    def rows(self, n_fields: int, n: int | None = None) -> Rows:
        """Return copies of the last n rows, by default of all, with so many fields."""
        first = 0 if n is None else max(self.count - n, 0)
        X, Y, weights, _ = (array[first:] for array in self._in_use().values())
        wide = np.full((len(X), n_fields), np.nan)
        wide[:, : X.shape[1]] = X
        return Rows(wide, Y.copy(), weights.copy())

    def since_change(self, drift: Drift, n: int, n_fields: int, most: int) -> Rows:
        """Return the rows since the change that led to a drift, at most the last `most` rows.

        `n` events are learned by now. The change was where the sum of losses above the middle of those before and after
        is the least.
        """
        rows = self.rows(n_fields, most)
        count = len(rows.X)
        losses = self._in_use()["losses"][-count:] if count else np.empty(0)
        by_then = losses[: max(count - (n - drift.n), 0)]
        reach = drift.after - drift.before
        above = np.clip(by_then - 0.5 * (drift.before + drift.after), -reach, reach)
        first = int(np.concatenate([[0.0], np.cumsum(above)]).argmin())
        return rows.part(slice(first, None))

    def copy(self) -> RecentEvents:
        """Return an independent copy."""
        other = RecentEvents()
        other.capacity = self.capacity
        other._arrays = {name: array.copy() for name, array in self._in_use().items()}
        other._used[:] = self.count
        other.earlier = self.earlier
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> RecentEvents:
        return self.copy()

    def arrays(self) -> dict[str, AnyArray]:
        """Return the whole state as named arrays."""
        found: dict[str, AnyArray] = {f"{PREFIX}{name}": array.copy() for name, array in self._in_use().items()}
        found[f"{PREFIX}capacity"] = np.array([self.capacity], dtype=np.int64)
        if self.earlier:
            found[COUNTS] = np.array([n for n, _ in self.earlier], dtype=np.int64)
        for at, (_, theta) in enumerate(self.earlier):
            found |= {f"{PREFIX}earlier.{at}.{name}": array for name, array in theta._asdict().items()}
        return found

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, AnyArray],
        family: Family,
        largest: Shape,
        *,
        n: int,
        n_fields: int,
    ) -> RecentEvents:
        """Restore the events of a model that has learned n from the arrays that `arrays` returned.

        There are parameters only if some have been kept, of mixtures up to a size.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values. Of X, whose meaning is not
                known here, only the shape is checked.
        """
        found = cls()
        losses = array_of(arrays, "recent.losses", "float64", (None,))
        m = len(losses)
        require(m <= n, f"array recent.losses holds {m} events, but the model has learned {n}")
        X = array_of(arrays, "recent.X", "float64", (m, None), finite=False)
        require(X.shape[1] <= n_fields, f"array recent.X has {X.shape[1]} columns; the model has {n_fields} fields")
        require(not np.isinf(X).any(), "array recent.X holds infinities")
        Y = array_of(arrays, "recent.Y", "float64", (m, family.n_targets(largest.n_rows) if m else None))
        weights = array_of(arrays, "recent.weights", "float64", (m,), least=0.0)
        found.capacity = int(array_of(arrays, f"{PREFIX}capacity", "int64", (1,), least=m, most=LARGEST_CAPACITY)[0])
        found._arrays = {"X": X.copy(), "Y": Y.copy(), "weights": weights.copy(), "losses": losses.copy()}
        found._used[:] = m
        if COUNTS in arrays:
            counts = array_of(arrays, COUNTS, "int64", (None,), least=1, most=n)
            require(0 < len(counts) <= 2, f"array {COUNTS} has {len(counts)} entries; 1 or 2 are possible")
            for at, kept_at in enumerate(counts.tolist()):
                found.keep(kept_at, restored_parameters(arrays, f"{PREFIX}earlier.{at}", family, largest))
        return found


def restored_parameters(given: Mapping[str, AnyArray], place: str, family: Family, largest: Shape) -> Parameters:
    """Restore the parameters of a mixture of at most so many experts, saved under ``place.name``.

    Raises:
        CheckpointError: an array is missing, has another shape, or holds invalid values.
    """
    most, N, p_w, p_v = largest
    experts = array_of(given, f"{place}.experts", "float64", (None, N, p_v))
    K = len(experts)
    require(0 < K <= most, f"array {place}.experts is for {K} experts; 1 to {most} are possible")
    gate = array_of(given, f"{place}.gate", "float64", (K - 1, p_w))
    variances = checked_variances(given, f"{place}.variances", family, largest._replace(n_experts=K))
    return Parameters(*(np.ascontiguousarray(array) for array in (gate, experts, variances)))
