"""A global model that predicts next to the daemon's own: who predicts each event, by the losses of both."""

from __future__ import annotations

import math

import numpy as np

from streammoe.types import BoolArray, FloatArray

HORIZON = 500
"""Events after which the weight of a loss in the comparison has dropped to 1/e."""
MAX_GAIN = 3.0
"""What one event counts at most for either model, in nats, so that outliers decide nothing; there the likelihood that
one of them gives is twenty times that of the other."""
_KEEP = math.exp(-1.0 / HORIZON)


class Contest:
    """The choice between the own model and a rival, event by event, from the losses of the events before.

    The own model predicts until the rival has been better. The result does not depend on how events are cut into
    batches.

    Args:
        always: whether the rival predicts, whatever the losses.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._always = always
        self._weight = 0.0
        self._own = 0.0
        self._gain = 0.0

    @property
    def favours_rival(self) -> bool:
        """Whether the rival would predict the next event."""
        return self._always or self._gain > 0.0

    @property
    def own_loss(self) -> float:
        """Recent mean loss of the own model; NaN before the first event that both predicted."""
        return self._own / self._weight if self._weight else math.nan

    @property
    def rival_loss(self) -> float:
        """The same of the rival, no event counting for more than `MAX_GAIN` above or below the own model's."""
        return (self._own - self._gain) / self._weight if self._weight else math.nan

    def choose(self, own: FloatArray, rival: FloatArray) -> BoolArray:
        """Return whether the rival predicts each of the next events, and count their losses.

        Args:
            own: (n,) losses of the own model, NaN for events that were not learned, which count nothing.
            rival: (n,) those of the rival; NaN and infinite ones are as bad as can be.
        """
        chosen = np.empty(len(own), np.bool_)
        for i, (loss, other) in enumerate(zip(own.tolist(), rival.tolist(), strict=True)):
            chosen[i] = self.favours_rival
            if math.isnan(loss):
                continue
            gain = -MAX_GAIN if math.isnan(other) else min(max(loss - other, -MAX_GAIN), MAX_GAIN)
            self._weight = _KEEP * self._weight + (1.0 - _KEEP)
            self._own = _KEEP * self._own + (1.0 - _KEEP) * loss
            self._gain = _KEEP * self._gain + (1.0 - _KEEP) * gain
        return chosen
