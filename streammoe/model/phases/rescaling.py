"""Another scale for the one expert of a warm-up: it learns the buffered rows again, so many at each event.

All at once would be a call of seconds for hundreds of inputs. What it has learned is a function of the buffer and of
the number of events since it began, so a checkpoint holds none of it.
"""

from __future__ import annotations

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.outliers import MAX_ERROR_SHARE, winsorised
from streammoe.columns.scaling import Scaler, without_inputs
from streammoe.engine import warmup
from streammoe.engine.warmup_buffer import CENTERED_AT, WarmUpBuffer
from streammoe.model.context import Context
from streammoe.types import BoolArray, FloatArray

PLAUSIBLE = 12.0
"""Median deviations from the median up to which a target among the first ones is no outlier; each weighs a lot."""


class Rescaling:
    """The one expert on another scale, which catches up with the buffer.

    Attributes:
        n_scaling: number of buffered rows whose moments are the scale.
        began: count of events at which it begins with the first row.
    """

    def __init__(self, n_scaling: int, began: int) -> None:
        self.n_scaling = n_scaling
        self.began = began
        self._again: WarmUpBuffer | None = None
        self._first: tuple[FloatArray, ...] = ()
        """The rows that set the scale, as they are learned."""

    def learn(self, context: Context, one: WarmUpBuffer) -> bool:
        """Learn the rows that are due now; return whether these are all, and `one` continues on the new scale.

        Raises:
            UnsoundError: some of them leave it with NaN or infinity.
        """
        if self._again is None:
            X, Y, weights = (array[: self.n_scaling] for array in one.rows())
            scaler = scaler_of(context, X, Y)
            terms = context.first_curved_terms(scaler, X)
            self._again = one.blank(scaler, context.encoder.expert_width, terms)
            outlying, center = _outlying(context, Y), scaler.target_center
            Y, weights = np.where(outlying[:, None], center, Y), np.where(outlying, 0.0, weights)
            self._first = context.judged(context.encoder, X, Y, weights, center)
        again = self._again
        due = min(relearned_rows(context, again) * (one.count - self.began + 1), one.count)
        encoder = encoder_of(context, again)
        for X, Y, weights in self._parts(one, slice(again.count, due)):
            again.learn(X, encoder.design(encoder.hold(X)[0])[1], Y, weights, traced=False)
        if due < one.count:
            return False
        one.take_over(again, self.n_scaling)
        return True

    def _parts(self, one: WarmUpBuffer, rows: slice) -> list[tuple[FloatArray, ...]]:
        """Return X, Y and weights of buffered rows, in two parts: of those that set the scale, and of later ones.

        When the former came, the range of columns was not known, so absurd inputs and targets among them are left out,
        and the few targets that are outliers of what is known now.
        """
        at = self.n_scaling
        first = tuple(array[rows.start : min(rows.stop, at)] for array in self._first)
        later = tuple(array[max(rows.start, at) : rows.stop] for array in one.rows())
        return [part for part in (first, later) if len(part[0])]

    def restarted(self, n: int) -> Rescaling:
        """Return one that begins again with the first row at n events, since columns or classes have changed."""
        return Rescaling(self.n_scaling, n)

    def copy(self) -> Rescaling:
        """Return an independent copy."""
        other = Rescaling(self.n_scaling, self.began)
        other._again, other._first = self._again and self._again.copy(), self._first
        return other


def relearned_rows(context: Context, one: WarmUpBuffer) -> int:
    """Return how many buffered rows are learned again at an event."""
    others = [] if one.companions is None else one.companions.widths
    return warmup.relearned_rows(context.shape, others)


def scaler_of(context: Context, X: FloatArray, Y: FloatArray) -> Scaler:
    """Return the scaler by the moments of raw rows.

    With so few rows that any line fits them, numeric inputs do not count: the mean of the targets predicts.
    """
    encoder = context.encoder.copy()
    context.fit_scaler(encoder, X, np.where(_outlying(context, Y)[:, None], np.nan, Y))
    return without_inputs(encoder.scaler, Y) if 0 < len(Y) <= CENTERED_AT[-1] else encoder.scaler


def _outlying(context: Context, Y: FloatArray) -> BoolArray:
    """Return which rows, (n,), have a target that is an outlier: the first one of a file may well be a placeholder."""
    if context.family.is_exact or not context.family.is_metric:
        return np.zeros(len(Y), dtype=np.bool_)
    found: BoolArray = (winsorised(Y, share=MAX_ERROR_SHARE, codes=True, most=PLAUSIBLE) != Y).any(axis=1)
    return found


def encoder_of(context: Context, one: WarmUpBuffer) -> Encoder:
    """Return the encoder that gives the one expert its features."""
    return context.encoder if one.scaler is None else context.encoder.scaled(one.scaler)
