"""Another scale for the one expert of a warm-up: it learns the buffered rows again, so many at each event.

All at once would be a call of seconds for hundreds of inputs. What it has learned is a function of the buffer and of
the number of events since it began, so a checkpoint holds none of it.
"""

from __future__ import annotations

from streammoe.engine import warmup
from streammoe.engine.warmup_buffer import WarmUpBuffer
from streammoe.features import Encoder
from streammoe.model.context import Context
from streammoe.scaling import Scaler
from streammoe.types import FloatArray


class Rescaling:
    """The one expert on another scale, which catches up with the buffer.

    Attributes:
        n_scaling: number of buffered rows whose moments are the scale.
        began: count of events at which it begins with the first row.
    """

    def __init__(self, n_scaling: int, began: int, again: WarmUpBuffer | None = None) -> None:
        self.n_scaling = n_scaling
        self.began = began
        self._again = again

    def learn(self, context: Context, one: WarmUpBuffer) -> bool:
        """Learn the rows that are due now; return whether these are all, and `one` continues on the new scale.

        Raises:
            UnsoundError: some of them leave it with NaN or infinity.
        """
        X, Y, weights = one.rows()
        if self._again is None:
            scaler = scaler_of(context, X[: self.n_scaling], Y[: self.n_scaling])
            self._again = one.blank(scaler, context.encoder.expert_width)
        again = self._again
        due = min(warmup.relearned_rows(context.shape) * (one.count - self.began + 1), one.count)
        rows = slice(again.count, due)
        R = encoder_of(context, again).design(X[rows])[1]
        again.learn(X[rows], R, Y[rows], weights[rows], traced=False)
        if due < one.count:
            return False
        one.take_over(again, self.n_scaling)
        return True

    def restarted(self, n: int) -> Rescaling:
        """Return one that begins again with the first row at n events, since columns or classes have changed."""
        return Rescaling(self.n_scaling, n)

    def copy(self) -> Rescaling:
        """Return an independent copy."""
        return Rescaling(self.n_scaling, self.began, self._again and self._again.copy())


def scaler_of(context: Context, X: FloatArray, Y: FloatArray) -> Scaler:
    """Return the scaler by the moments of raw rows."""
    encoder = context.encoder.copy()
    context.fit_scaler(encoder, X, Y)
    return encoder.scaler


def encoder_of(context: Context, one: WarmUpBuffer) -> Encoder:
    """Return the encoder that gives the one expert its features."""
    return context.encoder if one.scaler is None else context.encoder.scaled(one.scaler)
