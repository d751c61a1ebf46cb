"""Guards that stop the daemon: too many rejected records, or a loss that jumps.

Losses are averaged over windows of learned events. A jump is `WINDOWS_PER_JUMP` windows in a row whose mean exceeds the
median of earlier windows by more than `MAX_DEVIATIONS` median absolute deviations, and their `ORDINARY_QUANTILE`
quantile by more than `MIN_RISE`: nights that differ from days are no jump, and one absurd window does not hide one. A
window has at least `MIN_WINDOW_SPANS` / γ events, several times what the model needs to learn something new, so that a
change that the model follows is over before it counts. The result depends on the events and not on how they were
batched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from streammoe.checked import CheckedTable, Count
from streammoe.errors import TooManyBadRecords
from streammoe.types import BoolArray, FloatArray

BAD_RECORD_WINDOW = 1_000
"""Number of consecutive records over which the ratio of rejected ones is taken; fewer are not judged."""
MIN_WINDOW = 500
"""Minimum number of events in a window."""
MIN_WINDOW_SPANS = 5.0
"""Minimum number of events in a window in units of 1/γ, the number of events that a step averages over."""
WINDOWS_PER_JUMP = 3
"""Number of consecutive high windows that make a jump."""
MIN_HISTORY = 8
"""Number of windows required before another one is judged."""
MAX_HISTORY = 40
"""Number of latest windows that define the usual loss."""
MAX_DEVIATIONS = 10.0
"""Median absolute deviations above the median, up to which a window is not high."""
ORDINARY_QUANTILE = 0.9
"""Quantile of earlier windows up to which a loss is ordinary."""
MIN_RISE = 3.0
"""Minimum difference of mean losses; the likelihood of an event falls to a twentieth."""


class Jump(NamedTuple):
    """Jump of the loss."""

    loss: float
    """Mean of the latest window."""
    usual: float
    """Median of the windows before."""
    events: int
    """Events learned since the first high window began."""
    sound: int
    """Events learned before that window."""


class LossState(CheckedTable, extra="forbid"):
    """What a `LossGuard` knows, as a checkpoint holds it."""

    history: list[float] = Field(default_factory=list)
    """Means of the windows that define the usual loss."""
    high: list[float] = Field(default_factory=list)
    """Means of the high windows in succession so far."""
    sum: float = 0.0
    """Losses in the open window."""
    count: Count = 0
    """Their number."""
    length: Count = 0
    """Of the open window; 0 before its first event."""
    events: Count = 0
    """Events learned."""
    sound: Count = 0
    """Events learned before the first window in doubt: a high one, or the open one, which may become high."""
    jumps: Count = 0
    """Jumps so far."""

    @model_validator(mode="after")
    def _fit_window(self) -> Self:
        if self.count >= max(self.length, 1):
            raise ValueError(f"{self.count} events do not fit into a window of {self.length}")
        return self


class LossGuard:
    """Detector of jumps in the losses of learned events, given in order.

    Args:
        step_size: γ of the n-th event.
        state: of an earlier run.
    """

    def __init__(self, step_size: Callable[[int], float], state: LossState | None = None) -> None:
        self._step_size = step_size
        self.state = state or LossState()

    def watch(self, losses: FloatArray) -> Jump | None:
        """Add the losses (n,) of the next events, and return a jump if there was one."""
        state, jump, at = self.state, None, 0
        while at < len(losses):
            if not state.length:
                gamma = self._step_size(state.events + 1)
                state.length = max(MIN_WINDOW, math.ceil(MIN_WINDOW_SPANS / gamma))
            piece = losses[at : at + state.length - state.count]
            # Added one by one, so that the sum does not depend on batch boundaries.
            state.sum = float(np.cumsum(np.concatenate([[state.sum], piece]))[-1])
            state.count += len(piece)
            state.events += len(piece)
            at += len(piece)
            if state.count == state.length:
                jump = self._close(state.sum / state.count) or jump
                state.sum, state.count, state.length = 0.0, 0, 0
        return jump

    def _close(self, mean: float) -> Jump | None:
        """Judge a complete window by its mean loss."""
        state = self.state
        if len(state.history) >= MIN_HISTORY:
            usual = float(np.median(state.history))
            deviation = float(np.median(np.abs(np.array(state.history) - usual)))
            ordinary = float(np.quantile(state.history, ORDINARY_QUANTILE))
            if mean > max(usual + MAX_DEVIATIONS * deviation, ordinary + MIN_RISE):
                state.high.append(mean)
                if len(state.high) < WINDOWS_PER_JUMP:
                    return None
                jump = Jump(mean, usual, state.events - state.sound, state.sound)
                # The usual loss is unknown from here on, so that one jump is reported once.
                state.history, state.high, state.sound = [], [], state.events
                state.jumps += 1
                return jump
        state.history = [*state.history, *state.high, mean][-MAX_HISTORY:]
        state.high, state.sound = [], state.events
        return None


class JumpGuard:
    """Reaction to jumps: what is said of them, and the checkpoints from the last good one on.

    Args:
        losses: finds the jumps.
        saved: generations of an earlier run, each with the events of the source that its model had learned.
        stops: whether a jump ends the daemon; else it is only reported.
    """

    def __init__(self, losses: LossGuard, saved: Sequence[Any] = (), *, stops: bool) -> None:
        self.stops = stops
        self.losses = losses
        self._saved: dict[int, int] = dict(saved)

    def add(self, generation: int, learned: int) -> None:
        """Record a checkpoint."""
        self._saved[generation] = learned
        good = self.last_good(self.losses.state.sound)
        if good is not None:
            self._saved = {each: n for each, n in self._saved.items() if each >= good}

    def last_good(self, sound: int) -> int | None:
        """Return the newest generation that holds no event after number `sound`."""
        return max((generation for generation, learned in self._saved.items() if learned <= sound), default=None)

    def n_to_keep(self, keep: int, newest: int) -> int:
        """Return how many generations to keep once one after `newest` is saved, so that the last good one stays."""
        good = self.last_good(self.losses.state.sound)
        return keep if good is None else max(keep, newest + 2 - good)

    def to_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"jumps": self.losses.state.model_dump(), "saved": [list(entry) for entry in self._saved.items()]}


class BadRecordGuard:
    """Stop for too many rejected records: a bad deployment must neither drain a topic nor count as a success.

    Judges any `BAD_RECORD_WINDOW` records in a row and, where a source ends, all its records.

    Args:
        max_ratio: share of the records that may be rejected.
        latest: that attribute of a run that is resumed.
    """

    def __init__(self, max_ratio: float, latest: BoolArray | None = None) -> None:
        self.max_ratio = max_ratio
        self.latest: BoolArray = np.zeros(0, dtype=np.bool_) if latest is None else latest
        """Which of the latest records since a source last ended were rejected; saved in checkpoints, so that a restart
        does not reset the count."""
        self._earlier = len(self.latest), int(self.latest.sum())
        self._read = self._rejected = 0
        """Records of this run alone, and how many of them were rejected."""
        self._latest_detail = ""

    def judge(self, bad: BoolArray, detail: str = "") -> None:
        """Add the next records.

        Args:
            bad: (n,) which were rejected.
            detail: why the last of them was.

        Raises:
            TooManyBadRecords: of some `BAD_RECORD_WINDOW` records in a row more than `max_ratio` were rejected.
        """
        self._read += len(bad)
        self._rejected += int(bad.sum())
        self._latest_detail = detail or self._latest_detail
        flags = np.concatenate([self.latest, bad])
        self.latest = flags[-(BAD_RECORD_WINDOW - 1) :]
        if len(flags) < BAD_RECORD_WINDOW:
            return
        sums = np.concatenate([[0], np.cumsum(flags)])
        worst = int((sums[BAD_RECORD_WINDOW:] - sums[:-BAD_RECORD_WINDOW]).max())
        if worst > self.max_ratio * BAD_RECORD_WINDOW:
            problem = f"{worst} of {BAD_RECORD_WINDOW} records in a row were rejected"
            raise TooManyBadRecords(self._message(problem))

    def judge_end(self) -> None:
        """Judge all records of a source that has ended, however few; the next run starts a new count.

        Records of earlier runs in `latest` count, but cannot fail a run alone: more than `max_ratio` of the records of
        this run must have been rejected, too. So a run after the producer was repaired succeeds.

        Raises:
            TooManyBadRecords: more than `max_ratio` of them were rejected.
        """
        if self.fails_at_end:
            read, rejected = self._total
            earlier = self._earlier[0]
            since = f" ({earlier} of them read by an earlier run)" if earlier else ""
            raise TooManyBadRecords(
                self._message(f"{rejected} of the {read} records up to the end of the source{since} were rejected")
            )
        self.latest = np.zeros(0, dtype=np.bool_)

    def to_save(self, *, ended: bool) -> BoolArray:
        """Return `latest` for a checkpoint; empty once the source has ended well, so that the next run counts from 0.

        The last checkpoint may be taken after the last record and before `judge_end`.
        """
        return np.zeros(0, dtype=np.bool_) if ended and not self.fails_at_end else self.latest

    @property
    def is_short(self) -> bool:
        """Whether there are too few records to be judged before the source ends."""
        return self._total[0] < BAD_RECORD_WINDOW

    @property
    def fails_at_end(self) -> bool:
        """Whether `judge_end` would raise now."""
        read, rejected = self._total
        return rejected > self.max_ratio * read and self._rejected > self.max_ratio * self._read

    @property
    def _total(self) -> tuple[int, int]:
        read, rejected = self._earlier
        return read + self._read, rejected + self._rejected

    def _message(self, problem: str) -> str:
        return (
            f"{problem}, dead_letters.max_ratio allows {self.max_ratio:g} of them; look at the reasons in the dead "
            "letters, fix the producer, or name the features that hold no numbers in schema.categorical, "
            'schema.timestamps or schema.ignore (a target of classes needs model.kind = "classifier"), and start '
            "again: reading resumes from the last checkpoint, so that no record is lost"
            + (f". The latest: {self._latest_detail}" if self._latest_detail else "")
        )
