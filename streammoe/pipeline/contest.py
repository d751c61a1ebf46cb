"""Predictions by a global model next to the daemon's own: who predicts each event, by the losses of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from streammoe.checked import is_finite_number, require, table_of
from streammoe.estimators import MixtureOfExperts
from streammoe.text import shown
from streammoe.types import BoolArray, FloatArray

HORIZON = 500
"""Events after which the weight of a loss in the comparison has dropped to 1/e."""
MAX_GAIN = 3.0
"""What one event counts at most for either model, in nats, so that outliers decide nothing; there the likelihood that
one of them gives is twenty times that of the other."""
MAX_LOSS, MAX_PREDICTION = 1e200, 1e100
"""A global model does not predict events beyond these, where sums of losses would soon be infinite."""
_KEEP = math.exp(-1.0 / HORIZON)


class Rival(NamedTuple):
    """A model that predicts as well, and learns nothing."""

    version: int
    model: MixtureOfExperts


class Contest:
    """The choice between the own model and its rival, event by event, from the losses of the events before.

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

    def to_json(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"weight": self._weight, "own": self._own, "gain": self._gain}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `to_json`; call within `streammoe.checked.restoring`."""
        check_state(state)
        if state:
            self._weight, self._own, self._gain = state["weight"], state["own"], state["gain"]


def check_state(state: Mapping[str, Any]) -> None:
    """Check the state of a contest in a checkpoint, if it has one; raise `CheckpointError` if it is invalid."""
    names = {"weight", "own", "gain"}
    sound = not state or (state.keys() == names and all(map(is_finite_number, state.values())))
    require(sound and 0.0 <= state.get("weight", 0.0) <= 1.0 + 1e-9, f"contest is {shown(state)}")


def contest_state(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a contest in the metadata of a checkpoint; empty if there is none."""
    return table_of(metadata, "contest")
