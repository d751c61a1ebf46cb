"""Watches the loss for a jump: a model that is finite, and yet suddenly good for nothing.

Losses are averaged over windows of events that were learned. A jump is `WINDOWS` windows in a row whose mean lies
beyond the median of earlier ones by more than `FAR` median deviations, and beyond what a tenth of them exceed by more
than `LEAST`: nights that differ from days are no jump, and one absurd window hides none. A window is no shorter
than `SPANS` / γ events, several times what the model needs to learn something new: a relation that moves, and that the
model follows, is over before it counts. What is found depends on the events and not on how they came in batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from streammoe.types import FloatArray

SHORTEST = 500
"""Events of a window, at least."""
SPANS = 5.0
"""Events of a window in units of 1/γ, the events that a step spans, at least."""
WINDOWS = 3
"""High ones in a row that are a jump."""
KNOWN = 8
"""Windows that must be known before another one is judged."""
HISTORY = 40
"""The latest windows that say what is usual."""
FAR = 10.0
"""Median deviations from the median."""
OFTEN = 0.9
"""Part of the windows known that are below what is nothing special."""
LEAST = 3.0
"""Least difference of mean losses: by this the likelihood of an event falls to a twentieth."""


class Jump(NamedTuple):
    """Losses have jumped."""

    loss: float
    """Mean of the latest window."""
    usual: float
    """Median of the windows before."""
    events: int
    """Learned since the first high window began."""
    sound: int
    """Events learned before that."""


class JumpGuard:
    """Takes the losses of events that were learned, in order.

    Args:
        step_size: γ of the n-th event.
        learned: events that the model had learned before.
        found: what `to_json` of an earlier run gave.
    """

    def __init__(
        self, step_size: Callable[[int], float], learned: int = 0, found: Mapping[str, Any] | None = None
    ) -> None:
        self._step_size = step_size
        known = found or {}
        self._history: list[float] = list(known.get("history", []))
        self._high: list[float] = list(known.get("high", []))
        self._sum: float = known.get("sum", 0.0)
        self._count: int = known.get("count", 0)
        self._length: int = known.get("length", 0)
        self._events: int = known.get("events", learned)
        self._sound: int = known.get("sound", learned)
        self.jumps: int = known.get("jumps", 0)
        """So far."""

    @property
    def sound(self) -> int:
        """Events learned before the first window in doubt: one that is high, or still open and may become so."""
        return self._sound

    @property
    def high(self) -> int:
        """How many windows in a row are high so far."""
        return len(self._high)

    def watch(self, losses: FloatArray) -> Jump | None:
        """Take the losses (n,) of the next events; whether there was a jump."""
        found = None
        at = 0
        while at < len(losses):
            if not self._length:
                gamma = self._step_size(self._events + 1)
                self._length = max(SHORTEST, math.ceil(SPANS / gamma))
            piece = losses[at : at + self._length - self._count]
            # A running sum is taken one by one, so that it does not depend on where a batch was cut.
            self._sum = float(np.cumsum(np.concatenate([[self._sum], piece]))[-1])
            self._count += len(piece)
            self._events += len(piece)
            at += len(piece)
            if self._count == self._length:
                found = self._close(self._sum / self._count) or found
                self._sum, self._count, self._length = 0.0, 0, 0
        return found

    def begin_window(self) -> None:
        """Judge what comes by itself: what the open window holds was followed by something that was set aside."""
        self._high, self._sum, self._count, self._length = [], 0.0, 0, 0
        self._sound = self._events

    def to_json(self) -> dict[str, Any]:
        """All of it, for the checkpoint."""
        return {
            "history": self._history,
            "high": self._high,
            "sum": self._sum,
            "count": self._count,
            "length": self._length,
            "events": self._events,
            "sound": self._sound,
            "jumps": self.jumps,
        }

    def _close(self, mean: float) -> Jump | None:
        """Judge a window."""
        if len(self._history) >= KNOWN:
            usual = float(np.median(self._history))
            deviation = float(np.median(np.abs(np.array(self._history) - usual)))
            often = float(np.quantile(self._history, OFTEN))
            if mean > max(usual + FAR * deviation, often + LEAST):
                self._high.append(mean)
                if len(self._high) < WINDOWS:
                    return None
                jump = Jump(mean, usual, self._events - self._sound, self._sound)
                # What is usual from here on nobody knows: one jump is told once.
                self._history, self._high, self._sound = [], [], self._events
                self.jumps += 1
                return jump
        self._history = [*self._history, *self._high, mean][-HISTORY:]
        self._high, self._sound = [], self._events
        return None
