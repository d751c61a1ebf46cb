"""The first rows of a stream, to which the mixture is fitted again whenever they have doubled, up to a bound.

A fit is a few rounds of EM, from what predicts best when it begins. It runs in steps between the events that follow. It
is a function of the rows and its start, so a checkpoint holds only these; after a restart it runs again up to where it
was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.cost import Shape, row_cost, row_cost_with_matrices
from streammoe.engine.em import Buffer, Em
from streammoe.engine.jobs import Job, StepwiseJob
from streammoe.engine.members.refitted import restored_parameters
from streammoe.engine.state import UnsoundError
from streammoe.engine.warmup import with_own_prior
from streammoe.experts import Family, Parameters
from streammoe.kernels.state import LearningOptions
from streammoe.types import AnyArray, FloatArray, IntArray

FACTOR = 2
"""Each fit is to so many times the rows of the one before it."""
MOST = 16
"""The last fit is to at most so many times the rows of the first one."""
TELLING = 4
"""A fit to so many times the rows of the first one shows whether more of them help."""
ROUNDS = 8
"""Rounds of EM of a fit."""
ENOUGH = 0.5
"""Nats that a round must gain for another one to follow."""
ROUND_LIMIT = 2e8
"""Most multiply-adds of a round; models for which a row costs more are fitted to fewer rows."""
MOST_BYTES = 1 << 23
"""Most bytes of rows; they are part of each checkpoint."""
EVERY = 16
"""Number of events after which steps of a fit run."""
PART = 8
"""A fit to n rows is spread over n / `PART` events."""
NAME = "growing"


class GrownFit:
    """A fit in progress."""

    def __init__(
        self, family: Family, buffer: Buffer, start: Parameters, n_outputs: int, options: LearningOptions
    ) -> None:
        """Prepare a fit to these rows, from these parameters."""
        self._given = (family, buffer, start, n_outputs, options)
        n, p_v = buffer.R.shape
        K, N, _ = start.experts.shape
        of_round = n * row_cost(family, Shape(K, N, buffer.W.shape[1], p_v))
        self._pace = ROUNDS * of_round * PART / n
        self._progress = StepwiseJob(self._job)

    def __deepcopy__(self, memo: dict[int, Any]) -> GrownFit:
        return self  # immutable except for its progress

    def __reduce__(self) -> tuple[Any, ...]:
        return GrownFit, self._given

    def _job(self) -> Job[Parameters]:
        return fitted(*self._given)

    def advance(self, events: int) -> bool:
        """Run the steps due so many events after it began; return whether it has ended.

        Raises:
            FitCancelled: a stop was requested.
        """
        return self._progress.advance(events * self._pace)

    def result(self) -> Parameters:
        """Return what was found.

        Raises:
            UnsoundError: no finite parameters were found.
        """
        return self._progress.result()


def fitted(
    family: Family, buffer: Buffer, start: Parameters, n_outputs: int, options: LearningOptions
) -> Job[Parameters]:
    """Fit a mixture to these rows by a few rounds of EM from a start.

    Raises:
        UnsoundError: the result is not finite.
    """
    em: Em = yield from with_own_prior(family, buffer, n_outputs, options)
    theta = start.copied()
    score = yield from em.rounds(theta, ROUNDS, ENOUGH / len(buffer.R))
    unsound = [name for name, array in theta._asdict().items() if not np.isfinite(array).all()]
    if unsound or not np.isfinite(score):
        raise UnsoundError(unsound or ["likelihood"])
    return theta


class GrowingRows:
    """The first learned rows of a stream, inputs as held, and the fits to them.

    Attributes:
        base: number of rows of the first fit, which ended the warm-up.
        fitted: number of rows of the latest fit that ended, was begun or was left out.
        began: event count at which the fit in progress began, or 0.
        is_last: whether no larger fit follows; rows are no longer added.
        start: where the fit in progress began.
        fit: the fit in progress; None if it has to be made again, after a restart.
    """

    def __init__(self, base: int) -> None:
        self.base = self.fitted = base
        self.began = 0
        self.is_last = False
        self.start: Parameters | None = None
        self.fit: GrownFit | None = None
        self.count = 0
        self._arrays = {"X": np.empty((0, 0)), "Y": np.empty((0, 0)), "weights": np.empty(0)}
        """The first `count` rows are in use; they never change."""

    def add(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Add learned rows, unless no fit will need them."""
        if self.is_last or not len(X):
            return
        arrays, end = self._arrays, self.count + len(X)
        if end > len(arrays["weights"]) or X.shape[1] != arrays["X"].shape[1]:
            self._reserve(end, X.shape[1], Y.shape[1])
        rows = slice(self.count, end)
        arrays["X"][rows], arrays["Y"][rows], arrays["weights"][rows] = X, Y, weights
        self.count = end

    def _reserve(self, rows: int, width: int, n_targets: int) -> None:
        """Make room for rows and for late columns, which are missing in the rows before."""
        capacity = max(rows, FACTOR * self.fitted)
        for (name, old), shape in zip(self._in_use().items(), ((width,), (n_targets,), ()), strict=True):
            wide = np.full((capacity, *shape), np.nan)
            if self.count:
                wide[(slice(self.count), *map(slice, old.shape[1:]))] = old
            self._arrays[name] = wide

    def _in_use(self) -> dict[str, FloatArray]:
        return {name: array[: self.count] for name, array in self._arrays.items()}

    def to_fit(self, n_fields: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return X with so many columns, Y and weights of the rows to fit."""
        _, Y, weights = (array[: self.fitted].copy() for array in self._in_use().values())
        return self.inputs(n_fields)[: self.fitted], Y, weights

    def inputs(self, n_fields: int) -> FloatArray:
        """Return X of all rows, with so many columns."""
        X = self._in_use()["X"]
        wide = np.full((self.count, n_fields), np.nan)
        wide[:, : X.shape[1]] = X
        return wide

    @property
    def has_been_tried(self) -> bool:
        """Whether there was a fit to so many rows that it would have shown whether more of them help."""
        return self.fitted >= TELLING * self.base

    # -- When fits begin and end ---------------------------------------------------------------------------------------

    def next_due(self, n: int) -> int:
        """Return the next count of events after n at which steps are due, or a fit begins."""
        if self.began:
            return n + EVERY - (n - self.began) % EVERY
        return max(FACTOR * self.fitted, n + 1)

    def affords(self, family: Family, shape: Shape, rows: int) -> bool:
        """Return whether there may be a fit to so many rows."""
        row_bytes = 8 * (self._arrays["X"].shape[1] + self._arrays["Y"].shape[1] + 1)
        most = min(MOST * self.base, ROUND_LIMIT / row_cost_with_matrices(family, shape), MOST_BYTES / row_bytes)
        return rows <= most

    def begin(self, n: int, start: Parameters) -> None:
        """Begin a fit to the rows so far, at event n."""
        self.began, self.start, self.fitted = n, start.copied(), self.count

    def skip(self) -> None:
        """Leave out the fit that is due."""
        self.fitted = self.count

    def end(self) -> None:
        """Forget the fit in progress, if any."""
        self.began, self.start, self.fit = 0, None, None

    # -- Copies and checkpoints ----------------------------------------------------------------------------------------

    def copy(self) -> GrowingRows:
        """Return a copy to restore later, which shares the rows."""
        other = GrowingRows.__new__(GrowingRows)
        other.__dict__.update(self.__dict__, _arrays=dict(self._arrays))
        return other

    def arrays(self) -> dict[str, AnyArray]:
        """Return the whole state as named arrays."""
        counts = [self.base, self.fitted, self.began, int(self.is_last)]
        start = {} if self.start is None else self.start._asdict()
        return {
            **{f"{NAME}.{name}": array.copy() for name, array in self._in_use().items()},
            **{f"{NAME}.start.{name}": array for name, array in start.items()},
            f"{NAME}.counts": np.array(counts, dtype=np.int64),
        }

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, AnyArray],
        prefix: str,
        family: Family,
        *,
        n: int,
        most_experts: int,
        n_outputs: int,
        p_w: int,
        p_v: int,
    ) -> GrowingRows:
        """Restore the rows of a model that has learned n events from the arrays that `arrays` returned, with a prefix.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values. Of X, whose meaning is not
                known here, only the shape is checked.
        """
        place = f"{prefix}{NAME}"
        counts: IntArray = array_of(arrays, f"{place}.counts", "int64", (4,), least=0, most=LARGEST_COUNT)
        base, fit_rows, began, is_last = counts.tolist()
        weights = array_of(arrays, f"{place}.weights", "float64", (None,), least=0.0)
        m = len(weights)
        possible = 0 < base <= fit_rows <= m <= n and began <= n and is_last < 2
        require(possible, f"array {place}.counts holds {counts.tolist()}, which does not fit {m} rows of {n} events")
        X = array_of(arrays, f"{place}.X", "float64", (m, None), finite=False)
        require(not np.isinf(X).any(), f"array {place}.X holds infinities")
        require(X.nbytes <= 2 * MOST_BYTES, f"array {place}.X holds {m} rows, which is too many")
        Y = array_of(arrays, f"{place}.Y", "float64", (m, family.n_targets(n_outputs)))
        if not family.is_metric:
            known = (Y >= 0.0) & (n_outputs > Y) & (np.floor(Y) == Y)
            require(known.all(), f"array {place}.Y holds what is no index of the {n_outputs} classes")
        found = cls(base)
        found.add(X, Y, weights)
        found.fitted, found.began, found.is_last = fit_rows, began, bool(is_last)
        if began:
            found.start = restored_parameters(
                arrays, f"{place}.start", family, most=most_experts, n_outputs=n_outputs, p_w=p_w, p_v=p_v
            )
        return found
