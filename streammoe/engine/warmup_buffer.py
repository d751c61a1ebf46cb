"""The model during its warm-up: a bounded buffer, and a recursive fit of one expert that serves meanwhile."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping

import numpy as np

from streammoe.checked import array_of, require
from streammoe.columns.scaling import Scaler
from streammoe.engine.bound_mixture import BoundMixture, one_expert
from streammoe.engine.companions import Companions
from streammoe.engine.mixture import Scores, concatenated, random_start
from streammoe.engine.state import MMState, copy_state, restored_state, state_arrays, widen, with_class
from streammoe.experts import Family
from streammoe.types import AnyArray, FloatArray, IntArray

PRIOR_STRENGTH = 1.0
SCALE_EVENTS = 20
"""Events after which the initial scale of the targets, which is the first target, is revised."""
RESCALED_AT = (4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Counts of events at which the moments that scale inputs and targets are taken; then all of them are learned again."""
CENTERED_AT = (1, 2, 3)
"""Earlier counts, at which those of targets that are numbers are taken, while inputs say nothing yet."""


def next_rescaling(n: int, *, is_metric: bool) -> int:
    """Return the next count after n at which moments are taken; far beyond any warm-up after the last one.

    Args:
        n: count of events.
        is_metric: whether targets are numbers.

    >>> [next_rescaling(n, is_metric=False) for n in (0, 4, 64)], next_rescaling(256, is_metric=False) > 10**9
    ([4, 6, 128], True)
    >>> [next_rescaling(n, is_metric=True) for n in (0, 2, 3)]
    [1, 3, 4]
    """
    counts = (*CENTERED_AT, *RESCALED_AT) if is_metric else RESCALED_AT
    return next((count for count in counts if count > n), sys.maxsize)


class WarmUpBuffer:
    """Raw rows buffered for the batch fit (NaN = missing), and a recursive fit of one expert to them.

    Attributes:
        X, Y, weights: the buffer, of which the first `count` rows are in use.
        recursive: the recursive fit.
        n_scaling: number of buffered rows whose moments scale inputs and targets of the recursive fit, or 0.
        scaler: the scaler with these moments; None leaves inputs and targets as given.
        companions: the experts that predict with it, if any.
    """

    def __init__(
        self,
        family: Family,
        n_outputs: int,
        p_v: int,
        recursive: MMState | None = None,
        companions: Companions | None = None,
    ) -> None:
        self.family = family
        self.n_outputs = n_outputs
        self.X = np.empty((0, 0))
        self.Y = np.empty((0, family.n_targets(n_outputs)))
        self.weights = np.empty(0)
        self.count = 0
        self.n_scaling = 0
        self.scaler: Scaler | None = None
        self.companions = companions
        self._bound: BoundMixture | None = None
        self.recursive: MMState = recursive or random_start(
            family, n_experts=1, p_w=p_v, p_v=p_v, n_outputs=n_outputs, prior_strength=PRIOR_STRENGTH, seed=0
        )

    def learn(self, X: FloatArray, R: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> Scores:
        """Buffer rows that have a target, and predict, score and learn all rows with one expert.

        Args:
            X: (n, P) raw rows; R: (n, p_v) their features; Y: (n, Q) targets, NaN where there is none.
            weights: (n,).
            traced: whether to record the expert's part.

        Returns:
            The scores, on the scale of `scaler`.
        """
        if self.family.is_exact or self.count >= SCALE_EVENTS:
            return self._learn(X, R, Y, weights, traced=traced)
        # Cut by the count of events alone, so that the result does not depend on where a batch ends.
        kept = ~np.isnan(Y[:, 0])
        if kept.any() and not self.count:
            first = Y[kept][0]
            self._expect(first if self.scaler is None else np.maximum(np.abs(self._scaled(first)), 1.0))
        cut = int(np.searchsorted(np.cumsum(kept), SCALE_EVENTS - self.count)) + 1
        scores = [self._learn(X[:cut], R[:cut], Y[:cut], weights[:cut], traced=traced)]
        if self.count == SCALE_EVENTS:
            first = self._scaled(self.Y[:SCALE_EVENTS])
            self._expect(np.median(np.abs(first - np.median(first, axis=0)), axis=0))
        if cut < len(Y):
            scores.append(self._learn(X[cut:], R[cut:], Y[cut:], weights[cut:], traced=traced))
        return concatenated(scores)

    def _expect(self, sizes: FloatArray) -> None:
        """Raise the scale of errors to at least these sizes, (Q,): with one too small, all events would be outliers.

        Too large a scale corrects itself event by event; one too small hardly grows, since hardly any event counts.
        """
        squares = self.family.first_variances(sizes[None])
        for state in (self.recursive, *(self.companions.states if self.companions else ())):
            state.prior_variances[...] = squares
            for variances in (state.variances, state.average_variances):
                if not self.count:
                    variances[...] = self.family.variances_of(squares, 1)
                own = np.einsum("kqq->kq", variances) if variances.ndim == 3 else variances
                own[...] = np.maximum(own, squares)

    def _learn(self, X: FloatArray, R: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> Scores:
        kept = ~np.isnan(Y[:, 0])
        n_kept = int(kept.sum())
        self._reserve(self.count + n_kept, X.shape[1])
        new = slice(self.count, self.count + n_kept)
        self.X[new], self.Y[new], self.weights[new] = X[kept], Y[kept], weights[kept]
        self.count += n_kept
        family = self.family
        targets, bound = self._scaled(Y), self._bound
        if bound is None or bound.candidate.state is not self.recursive:
            bound = one_expert(family, self.recursive, family.warmup_schedule, PRIOR_STRENGTH, self.n_outputs)
            self._bound = bound
        own = bound.learn(R, R, targets, weights, traced=traced)
        if self.companions is None:
            return own
        return self.companions.learn(own, R, targets, weights, n_outputs=self.n_outputs, traced=traced)

    def _scaled(self, Y: FloatArray) -> FloatArray:
        return Y if self.scaler is None else (Y - self.scaler.target_center) / self.scaler.target_scale

    def blank(self, scaler: Scaler, p_v: int, terms: IntArray | None = None) -> WarmUpBuffer:
        """Return an empty buffer for a fit of the same kind to rows that this scaler scales.

        Args:
            scaler: the scaler.
            p_v: number of features, padding included.
            terms: features of a curved companion, if there may be one.
        """
        has_companions = self.companions is not None
        companions = Companions.of(self.family, self.n_outputs, p_v, terms) if has_companions else None
        again = WarmUpBuffer(self.family, self.n_outputs, p_v, companions=companions)
        again.scaler = scaler
        return again

    def take_over(self, again: WarmUpBuffer, n_scaling: int) -> None:
        """Continue with another fit to all the buffered rows, scaled by the moments of the first `n_scaling`."""
        self.recursive, self.companions = again.recursive, again.companions
        self.n_scaling, self.scaler = n_scaling, again.scaler

    def copy(self, spare: MMState | None = None) -> WarmUpBuffer:
        """Return a copy to restore later; it shares the buffer, whose first `count` rows never change."""
        other = copy.copy(self)
        other.recursive = copy_state(self.recursive, spare)
        other.companions = self.companions and self.companions.copy()
        return other

    def rows(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the buffered X, Y and weights."""
        return self.X[: self.count], self.Y[: self.count], self.weights[: self.count]

    def widen(self, n_columns: int, at: IntArray, p_v: int, n_features: int) -> None:
        """Make room for columns that appeared late; they are missing in the buffered rows.

        Args:
            n_columns: number of columns from now on.
            at: new indexes of the features.
            p_v: number of features, padding included; n_features: padding excluded.
        """
        missing = np.full((len(self.X), n_columns - self.X.shape[1]), np.nan)
        self.X = np.concatenate([self.X, missing], axis=1)
        self.recursive = widen(self.recursive, at, p_v, at, p_v)
        if self.companions is not None:
            self.companions.widen(at, p_v, n_features)

    def add_class(self, rng: np.random.Generator, n_features: int) -> None:
        """Make room for a class that was just encountered."""
        self.n_outputs += 1
        if self.n_outputs > 1:  # the first one is the reference
            self.recursive = with_class(
                self.recursive, rng, n_features, self.family.warmup_schedule(int(self.recursive.n[0]) + 1)
            )
            if self.companions is not None:
                self.companions.add_class(n_features)

    def arrays(self) -> dict[str, AnyArray]:
        """Return everything that affects future learning, as named arrays."""
        kept = dict(zip(("warmup.X", "warmup.Y", "warmup.weights"), self.rows(), strict=True))
        for rows in kept.values():
            rows.flags.writeable = False  # they are never written again, so they need not be copied
        scaling = np.array([self.n_scaling], dtype=np.int64)
        others = {} if self.companions is None else self.companions.arrays()
        return {**kept, "warmup.scaling": scaling, **state_arrays(self.recursive, "warmup.recursive"), **others}

    @classmethod
    def from_arrays(
        cls,
        family: Family,
        arrays: Mapping[str, AnyArray],
        *,
        n_outputs: int,
        n_fields: int,
        p_v: int,
        has_companions: bool,
    ) -> WarmUpBuffer:
        """Restore a warm-up from the arrays that `arrays` returned, for a model of these sizes; p_v includes padding.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values. Of X, whose meaning is not
                known here, only the shape and finiteness are checked.
        """
        recursive = restored_state(
            arrays, "warmup.recursive", family, n_experts=1, n_outputs=n_outputs, p_w=p_v, p_v=p_v
        )
        Y = array_of(arrays, "warmup.Y", "float64", (None, family.n_targets(n_outputs)))
        if not family.is_metric:
            known = (Y >= 0.0) & (n_outputs > Y) & (np.floor(Y) == Y)
            require(known.all(), f"array warmup.Y holds what is no index of the {n_outputs} classes")
        n = int(recursive.n[0])
        companions = None
        if has_companions:
            companions = Companions.from_arrays(family, arrays, n=n, n_outputs=n_outputs, p_v=p_v)
        warm_up = cls(family, n_outputs, p_v, recursive, companions)
        X = array_of(arrays, "warmup.X", "float64", (len(Y), n_fields), finite=False)
        require(not np.isinf(X).any(), "array warmup.X holds infinities")
        warm_up.X = np.require(X, requirements=["C", "W"])
        warm_up.Y = np.require(Y, requirements=["C", "W"])
        warm_up.count = len(Y)
        warm_up.n_scaling = int(array_of(arrays, "warmup.scaling", "int64", (1,), least=0.0, most=len(Y))[0])
        weights = array_of(arrays, "warmup.weights", "float64", (len(Y),), least=0.0)
        require((weights > 0.0).all(), "array warmup.weights holds weights that are not above 0")
        warm_up.weights = np.require(weights, requirements=["C", "W"])
        return warm_up

    def _reserve(self, rows: int, columns: int) -> None:
        if rows <= len(self.X) and columns == self.X.shape[1]:
            return
        capacity = max(rows, 2 * len(self.X), 64)
        X = np.full((capacity, columns), np.nan)
        Y = np.empty((capacity, self.Y.shape[1]))
        weights = np.ones(capacity)
        X[: self.count, : self.X.shape[1]] = self.X[: self.count]
        Y[: self.count] = self.Y[: self.count]
        weights[: self.count] = self.weights[: self.count]
        self.X, self.Y, self.weights = X, Y, weights
