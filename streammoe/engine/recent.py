"""The latest learned events as rows, and parameters from before, for the fit of a mixture after a drift."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import numpy as np

from streammoe.checked import array_of, require
from streammoe.engine.drift import Drift
from streammoe.engine.members.refitted import restored_parameters
from streammoe.experts import Family, Parameters
from streammoe.replacements import Noticed
from streammoe.types import AnyArray, FloatArray

CAPACITY = 512
"""Largest number of events kept."""
NARROW = 0.25
"""Spread of targets, over that of the warm-up, below which they may be in another unit."""
ROUNDING = 1e-9
"""What variances of the same targets may differ by, depending on how they are added up."""
PAIRED = 64
"""Latest targets of which each two are compared before all are."""
PREFIX = "recent."
COUNTS = f"{PREFIX}earlier.n"


def _limits(target_scale: FloatArray) -> FloatArray:
    """Return the variances below which targets vary little, (Q,)."""
    limits: FloatArray = (1.0 + ROUNDING) * (NARROW * target_scale) ** 2
    return limits


def least_variation(n: int, target_scale: FloatArray) -> float:
    """Return the sum of squared differences of pairs of the first target above which n of them do not vary little."""
    return 2.0 * n * float(_limits(target_scale)[0])


class RecentEvents(Noticed):
    """Rows of learned events in order, NaN where missing, with targets, weights and the losses of what served.

    Numbers are held to what was seen before each event, as the mixture learned them.

    Attributes:
        earlier: parameters that predicted at earlier event counts, at most two of them, the latest last.
    """

    def __init__(self) -> None:
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

    def add(self, X: FloatArray, Y: FloatArray, weights: FloatArray, losses: FloatArray) -> None:
        """Add learned rows, and drop the oldest beyond `CAPACITY`."""
        new = {name: array[-CAPACITY:] for name, array in zip(self._arrays, (X, Y, weights, losses), strict=True)}
        n, width = len(new["losses"]), X.shape[1]
        if n == CAPACITY:  # they replace all others
            self._used[:] = 0
        fits = self._end + n <= len(self._arrays["losses"]) and width == self._arrays["X"].shape[1]
        if not fits:
            self._move(width, Y.shape[1])
        for name, array in new.items():
            self._arrays[name][self._end : self._end + n] = array
        self._used[:] = min(self.count + n, CAPACITY), self._end + n

    def prepare(self, width: int, n_targets: int, *, needed: bool) -> None:
        """Make room for rows of so many fields and targets, to which a kernel adds; or drop all if none are needed."""
        if not needed:
            if not self.is_empty:
                self.clear()
        elif not self._has_shape(width, n_targets):
            self._move(width, n_targets)

    @property
    def storage(self) -> object:
        """What is another object whenever arrays in which rows are kept have been replaced."""
        return self._arrays

    def room(self, width: int, n_targets: int) -> dict[str, AnyArray]:
        """Return where a kernel may add rows, of as many fields and targets, like `add`; empty if they do not fit.

        Besides the arrays of rows, "used" has the number of rows in use, at most `CAPACITY`, and where they end. Where
        that is the end of the arrays, call `make_room`.
        """
        return {**self._arrays, "used": self._used} if self._has_shape(width, n_targets) else {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept."""
        return not self.count and not self.earlier

    def _has_shape(self, width: int, n_targets: int) -> bool:
        return (self._arrays["X"].shape, self._arrays["Y"].shape[1]) == ((2 * CAPACITY, width), n_targets)

    def _move(self, width: int, n_targets: int) -> None:
        """Move the rows to the beginning of arrays with room for as many again, and for late columns."""
        before = self._in_use()
        if not self._has_shape(width, n_targets):
            shapes = {"X": (width,), "Y": (n_targets,), "weights": (), "losses": ()}
            self._arrays = {name: np.full((2 * CAPACITY, *shape), np.nan) for name, shape in shapes.items()}
        for name, old in before.items():
            self._arrays[name][(slice(self.count), *map(slice, old.shape[1:]))] = old
        self._used[1] = self.count

    def _in_use(self) -> dict[str, FloatArray]:
        used = slice(self._end - self.count, self._end)
        return {name: array[used] for name, array in self._arrays.items()}

    def keep_last(self, n: int) -> None:
        """Drop all but the last n rows."""
        self._used[0] = min(self.count, n)

    def is_narrow(self, n: int, target_scale: FloatArray) -> bool:
        """Return whether the last n targets vary little; some n of them, or more, are kept."""
        if self.count < n:
            return False
        latest = self._in_use()["Y"][-n:]
        # One run of several, so that sums are added up as they always were.
        return bool((latest[None].var(axis=1) < _limits(target_scale)).all())

    def needless_loss(self, n: int, target_scale: FloatArray) -> tuple[float, float] | None:
        """Return the median loss of the last n rows, and the mean one of a normal distribution fitted to the n before.

        Few wrong targets hardly change the former, and only raise the latter.

        Args:
            n: number of rows.
            target_scale: (Q,) the unit of the losses, and the spread of targets during the warm-up.

        Returns:
            None if there are fewer rows, if their targets do not vary little, or if half of them have the same one.
        """
        if self.count < 2 * n:
            return None
        used = self._in_use()
        Y = used["Y"][-2 * n :] / target_scale
        before, latest = Y[:n], Y[n:]
        variances = before.var(axis=0)
        spread = np.median(np.abs(before - np.median(before, axis=0)), axis=0)
        if not ((variances < NARROW**2) & (latest.var(axis=0) < NARROW**2) & (spread > 0.0)).all():
            return None
        costs = 0.5 * (np.log(2.0 * math.pi * variances) + (latest - before.mean(axis=0)) ** 2 / variances)
        return float(np.median(used["losses"][-n:])), float(costs.sum(axis=1).mean())

    def clear(self) -> None:
        """Drop everything."""
        blank = RecentEvents()
        self._arrays, self._used, self.earlier = blank._arrays, blank._used, ()

    def rows(self, n_fields: int) -> tuple[FloatArray, FloatArray]:
        """Return copies of X, with so many columns, and Y."""
        X, Y, _, _ = self._in_use().values()
        wide = np.full((self.count, n_fields), np.nan)
        wide[:, : X.shape[1]] = X
        return wide, Y.copy()

    def since_change(self, drift: Drift, n: int, n_fields: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return X, Y and weights of the rows since the change that led to a drift; `n` events are learned by now.

        It began where the sum of losses above the middle of those before and after is the least.
        """
        X, Y = self.rows(n_fields)
        weights, losses = self._in_use()["weights"], self._in_use()["losses"]
        by_then = losses[: max(self.count - (n - drift.n), 0)]
        reach = drift.after - drift.before
        above = np.clip(by_then - 0.5 * (drift.before + drift.after), -reach, reach)
        first = int(np.concatenate([[0.0], np.cumsum(above)]).argmin())
        return X[first:], Y[first:], weights[first:].copy()

    def copy(self) -> RecentEvents:
        """Return an independent copy."""
        other = RecentEvents()
        other._arrays = {name: array.copy() for name, array in self._in_use().items()}
        other._used[:] = self.count
        other.earlier = self.earlier
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> RecentEvents:
        return self.copy()

    def arrays(self) -> dict[str, AnyArray]:
        """Return the whole state as named arrays."""
        found: dict[str, AnyArray] = {f"{PREFIX}{name}": array.copy() for name, array in self._in_use().items()}
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
        *,
        n: int,
        n_fields: int,
        most_experts: int,
        n_outputs: int,
        p_w: int,
        p_v: int,
    ) -> RecentEvents:
        """Restore the events of a model that has learned n from the arrays that `arrays` returned.

        There are parameters only if some have been kept.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values. Of X, whose meaning is not
                known here, only the shape is checked.
        """
        found = cls()
        losses = array_of(arrays, "recent.losses", "float64", (None,))
        m = len(losses)
        require(m <= CAPACITY, f"array recent.losses holds {m} events; {CAPACITY} is the most")
        X = array_of(arrays, "recent.X", "float64", (m, None), finite=False)
        require(X.shape[1] <= n_fields, f"array recent.X has {X.shape[1]} columns; the model has {n_fields} fields")
        require(not np.isinf(X).any(), "array recent.X holds infinities")
        Y = array_of(arrays, "recent.Y", "float64", (m, family.n_targets(n_outputs) if m else None))
        weights = array_of(arrays, "recent.weights", "float64", (m,), least=0.0)
        if m:
            found.add(X, Y, weights, losses)
        if COUNTS in arrays:
            counts = array_of(arrays, COUNTS, "int64", (None,), least=1, most=n)
            require(0 < len(counts) <= 2, f"array {COUNTS} has {len(counts)} entries; 1 or 2 are possible")
            for at, kept_at in enumerate(counts.tolist()):
                place = f"{PREFIX}earlier.{at}"
                sizes = {"most": most_experts, "n_outputs": n_outputs, "p_w": p_w, "p_v": p_v}
                found.keep(kept_at, restored_parameters(arrays, place, family, **sizes))
        return found
