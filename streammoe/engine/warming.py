"""The model before its warm-up is over: a bounded buffer, and a one-expert recursive fit that serves meanwhile."""

from __future__ import annotations

import numpy as np

from streammoe.engine.mm import Scores, learn, learning_options, new_residual, random_start
from streammoe.engine.state import MMState, state_arrays, state_from_arrays, widen
from streammoe.schedules import Power
from streammoe.types import AnyArray, FloatArray, IntArray

RUNNING_MEAN = Power(alpha=1.0)
OPTIONS = learning_options(bound="tight", n_experts=1, prior_strength=1.0, averaging=None, schedule=RUNNING_MEAN)


class WarmUp:
    """Rows kept for the batch fit, in raw numbers (NaN = missing), and recursive least squares over them."""

    def __init__(self, n_outputs: int, p_v: int) -> None:
        self.X = np.empty((0, 0))
        self.Y = np.empty((0, n_outputs))
        self.count = 0
        self.recursive: MMState = random_start(
            n_experts=1, p_w=p_v, p_v=p_v, n_outputs=n_outputs, prior_strength=OPTIONS.prior_strength, seed=0
        )

    def learn(self, X: FloatArray, R: FloatArray, Y: FloatArray) -> Scores:
        """Keep rows that have a target, and predict, score and learn all of them with one expert.

        Args:
            X: (n, P) raw rows; R: (n, p_v) their features; Y: (n, Q) targets, NaN where there is none.
        """
        kept = ~np.isnan(Y[:, 0])
        n_kept = int(kept.sum())
        self._reserve(self.count + n_kept, X.shape[1])
        self.X[self.count : self.count + n_kept] = X[kept]
        self.Y[self.count : self.count + n_kept] = Y[kept]
        self.count += n_kept
        return learn(self.recursive, new_residual(self.recursive), OPTIONS, RUNNING_MEAN, R, R, Y)

    def rows(self) -> tuple[FloatArray, FloatArray]:
        """The buffered X and Y."""
        return self.X[: self.count], self.Y[: self.count]

    def widen(self, n_columns: int, at: IntArray, p_v: int) -> None:
        """Make room for columns that appeared late; they are missing in what is buffered."""
        missing = np.full((len(self.X), n_columns - self.X.shape[1]), np.nan)
        self.X = np.concatenate([self.X, missing], axis=1)
        self.recursive = widen(self.recursive, at, p_v, at, p_v)

    def arrays(self) -> dict[str, AnyArray]:
        """All that shapes what comes next, by name."""
        X, Y = self.rows()
        return {"warmup.X": X, "warmup.Y": Y, **state_arrays(self.recursive, "warmup.recursive")}

    @classmethod
    def from_arrays(cls, arrays: dict[str, AnyArray]) -> WarmUp:
        """The inverse of `arrays`."""
        warm_up = cls(arrays["warmup.Y"].shape[1], 1)
        warm_up.X = np.ascontiguousarray(arrays["warmup.X"])
        warm_up.Y = np.ascontiguousarray(arrays["warmup.Y"])
        warm_up.count = len(warm_up.Y)
        warm_up.recursive = state_from_arrays(arrays, "warmup.recursive")
        return warm_up

    def _reserve(self, rows: int, columns: int) -> None:
        if rows <= len(self.X) and columns == self.X.shape[1]:
            return
        capacity = max(rows, 2 * len(self.X), 64)
        X = np.full((capacity, columns), np.nan)
        Y = np.empty((capacity, self.Y.shape[1]))
        X[: self.count, : self.X.shape[1]] = self.X[: self.count]
        Y[: self.count] = self.Y[: self.count]
        self.X, self.Y = X, Y
