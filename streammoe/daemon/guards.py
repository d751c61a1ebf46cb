"""Guards that stop or roll back the daemon: too many rejected records, or a loss that jumps.

Losses are averaged over windows of events that were learned. A jump is `WINDOWS` windows in a row whose mean lies
beyond the median of earlier ones by more than `FAR` median deviations, and beyond what a tenth of them exceed by more
than `LEAST`: nights that differ from days are no jump, and one absurd window hides none. A window is no shorter
than `SPANS` / γ events, several times what the model needs to learn something new: a relation that moves, and that the
model follows, is over before it counts. What is found depends on the events and not on how they came in batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import TooManyBadRecords
from streammoe.ports import Batch
from streammoe.types import BoolArray, FloatArray

BAD_RECORD_WINDOW = 1_000
"""Records that the ratio of rejected ones is taken over; it is judged only once there have been so many."""
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


class LossGuard:
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


class Saved(NamedTuple):
    """A generation."""

    generation: int
    learned: int
    """Events that its model had learned."""
    batches: int
    """Batches of this run that had been dealt with when its state was taken."""


class Mark(NamedTuple):
    """The moment at which a checkpoint's state was taken."""

    learned: int
    batches: int
    """Both as in `Saved`."""


class WayBack:
    """Knows the last good generation, and keeps every batch since then.

    Args:
        keep: generations that the store keeps anyway, as `least`.
        found: what `to_json` of an earlier run gave.
        keeps_batches: whether the records since are wanted.
    """

    def __init__(self, keep: int, found: Sequence[Sequence[int]] = (), *, keeps_batches: bool) -> None:
        self.least = keep
        self._saved = [Saved(generation, learned, 0) for generation, learned in found]
        self._keeps_batches = keeps_batches
        self._batches: list[Batch] = []
        self._dealt_with = 0

    def took(self, batch: Batch) -> None:
        """A batch has been dealt with."""
        self._dealt_with += 1
        if self._keeps_batches:
            self._batches.append(batch)

    def mark(self, learned: int) -> Mark:
        """This moment, at which the model has learned so many events."""
        return Mark(learned, self._dealt_with)

    def saved(self, generation: int, mark: Mark, sound: int) -> None:
        """The state of that moment was saved, and nothing up to event number `sound` is in doubt."""
        self._saved.append(Saved(generation, *mark))
        good = self.good(sound)
        if good is not None:
            self._saved = [saved for saved in self._saved if saved.generation >= good.generation]
            first = self._dealt_with - len(self._batches)
            del self._batches[: max(good.batches - first, 0)]

    def good(self, sound: int) -> Saved | None:
        """The newest generation that nothing is in doubt of."""
        return max((saved for saved in self._saved if saved.learned <= sound), default=None)

    def keep(self, newest: int, sound: int) -> int:
        """How many generations are to be kept once another one is saved after the `newest`, the last good one too."""
        good = self.good(sound)
        return self.least if good is None else max(self.least, newest + 2 - good.generation)

    @property
    def batches(self) -> list[Batch]:
        """All since the last good generation, in order."""
        return self._batches

    def restart_from(self, good: Saved) -> None:
        """The model is that of this generation again, and all that was read since has been set aside."""
        self._saved = [good._replace(batches=self._dealt_with)]
        self._batches = []

    def to_json(self) -> list[list[int]]:
        """All but the batches, for the checkpoint."""
        return [[saved.generation, saved.learned] for saved in self._saved]


def last_good(metadata: Mapping[str, Any]) -> int | None:
    """The generation to go back to from a checkpoint that is in doubt, if one is known."""
    guard = metadata.get("guard")
    if not guard:
        return None
    sound = guard["jumps"]["sound"]
    if metadata["n"] <= sound:
        return None
    return max((generation for generation, learned in guard["saved"] if learned <= sound), default=None)


class BadRecordGuard:
    """Stops the daemon when too many records were refused: a bad deploy must not empty a topic, or pass for a success.

    Two things are judged: any `BAD_RECORD_WINDOW` records in a row, and, where a source ends, all records to its end.

    Args:
        max_ratio: part of the records that may be refused.
        latest: of a run that is resumed, see there.
    """

    def __init__(self, max_ratio: float, latest: BoolArray | None = None) -> None:
        self.max_ratio = max_ratio
        self.latest: BoolArray = np.zeros(0, dtype=np.bool_) if latest is None else latest
        """Which of the latest records since a source last ended were refused; kept in checkpoints, so that restarts
        grant no new start."""
        self._earlier = len(self.latest), int(self.latest.sum())
        self._read = self._refused = 0
        """Records of this run alone, and how many of them were refused."""

    def judge(self, bad: BoolArray) -> None:
        """Take which of the next records were refused, in order.

        Raises:
            TooManyBadRecords: among some `BAD_RECORD_WINDOW` records in a row more than `max_ratio` were refused.
        """
        self._read += len(bad)
        self._refused += int(bad.sum())
        flags = np.concatenate([self.latest, bad])
        self.latest = flags[-(BAD_RECORD_WINDOW - 1) :]
        if len(flags) < BAD_RECORD_WINDOW:
            return
        sums = np.concatenate([[0], np.cumsum(flags)])
        worst = int((sums[BAD_RECORD_WINDOW:] - sums[:-BAD_RECORD_WINDOW]).max())
        if worst > self.max_ratio * BAD_RECORD_WINDOW:
            raise TooManyBadRecords(self._message(f"{worst} of {BAD_RECORD_WINDOW} records in a row were refused"))

    def judge_end(self) -> None:
        """Judge all records of a source that has ended, however few; the next run starts a new count.

        Those that an earlier run left in `latest` count as well, but cannot fail a run by themselves: more than
        `max_ratio` of the records that this run has read must have been refused, too. So a repaired producer ends well.

        Raises:
            TooManyBadRecords: more than `max_ratio` of them were refused.
        """
        if self.fails_at_end:
            read, refused = self._total
            earlier = self._earlier[0]
            since = f" ({earlier} of them read by an earlier run)" if earlier else ""
            raise TooManyBadRecords(
                self._message(f"{refused} of the {read} records up to the end of the source{since} were refused")
            )
        self.latest = np.zeros(0, dtype=np.bool_)

    def to_save(self, *, ended: bool) -> BoolArray:
        """Return `latest` as a checkpoint holds it: none once the source has ended well, so that the next count is new.

        A checkpoint may be taken after the last record and before `judge_end`, and be the last one.
        """
        return np.zeros(0, dtype=np.bool_) if ended and not self.fails_at_end else self.latest

    @property
    def is_short(self) -> bool:
        """Whether there are still too few records to be judged before the source ends."""
        return self._total[0] < BAD_RECORD_WINDOW

    @property
    def fails_at_end(self) -> bool:
        """Whether `judge_end` would raise now."""
        read, refused = self._total
        return refused > self.max_ratio * read and self._refused > self.max_ratio * self._read

    @property
    def _total(self) -> tuple[int, int]:
        read, refused = self._earlier
        return read + self._read, refused + self._refused

    def _message(self, found: str) -> str:
        return (
            f"{found}, dead_letters.max_ratio allows {self.max_ratio:g} of them; look at the reasons in the dead "
            "letters, fix the producer, or name the columns that hold no numbers in schema.categorical, "
            "schema.timestamps or schema.ignore, and start again: nothing after the last checkpoint has been passed "
            "over"
        )
