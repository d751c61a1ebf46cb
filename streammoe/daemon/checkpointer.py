"""The content of a checkpoint, and writing it in the background or while learning waits."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from streammoe.daemon.guards import Mark
from streammoe.errors import RetriableCheckpointError
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.label_join import fingerprint
from streammoe.ports import Position
from streammoe.types import AnyArray

LOGGER = logging.getLogger("streammoe.daemon")
_MUCH = 4_000_000
"""Bytes of memory that the operating system does not provide within a millisecond or two."""
_NOTICE_SECONDS = 0.5
"""Longest delay of a signal while waiting for the background thread."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds between two attempts."""


class RetryPolicy:
    """Times of further attempts to save, so that a disk that is full for five minutes does not end a run of months.

    The cost of a crash grows meanwhile, since everything after the last checkpoint is learned again, so attempts end.

    Args:
        patience: seconds from the first failure to the last attempt; 0 gives up immediately.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE
        self._next_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether the latest attempt failed."""
        return self._failing_since is not None

    @property
    def is_due(self) -> bool:
        """Whether another attempt is due."""
        return self.failing and time.monotonic() >= self._next_at

    def failed(self, error: RetriableCheckpointError) -> None:
        """Record a failed attempt.

        Raises:
            RetriableCheckpointError: `error`; `patience` is exhausted.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since, self._pause = now, FIRST_PAUSE
        left = self._failing_since + self.patience - now
        if left <= 0:
            raise error
        pause = min(self._pause, left)
        self._next_at = now + pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        LOGGER.warning(
            "cannot save: %s. Learning continues; the next attempt is in %.0f s, the last one, with exit code 4 if it "
            "fails, in %.0f s (checkpoint.retry_seconds = %g)",
            error,
            pause,
            left,
            self.patience,
        )

    def succeeded(self) -> None:
        """Record a successful attempt."""
        if self._failing_since is not None:
            LOGGER.warning("saving works again after %.0f s", time.monotonic() - self._failing_since)
        self._failing_since = None


class Content(NamedTuple):
    """Everything that a checkpoint holds, except for digests."""

    model: Mapping[str, AnyArray]
    labels: Mapping[str, AnyArray]
    """Features and labels that wait for each other."""
    auxiliary: Mapping[str, AnyArray]
    """Arrays that do not influence learning."""
    metadata: Mapping[str, Any]
    position: Position | None
    """Where reading resumes."""
    mark: Mark | None = None
    """The moment at which it was taken, where the daemon may roll back to it."""

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """All arrays by name."""
        return {**self.model, **self.labels, **self.auxiliary}

    def copied(self, copies: Copies) -> Content:
        """Return a copy that shares nothing that learning changes."""
        held = copies.of(self.arrays)
        return Content(
            model={name: held[name] for name in self.model},
            labels={name: held[name] for name in self.labels},
            auxiliary={name: held[name] for name in self.auxiliary},
            metadata=copy.deepcopy(self.metadata),
            position=copy.deepcopy(self.position),
            mark=self.mark,
        )


class Copies:
    """Copies of arrays in reused memory, since allocating it costs more than copying."""

    def __init__(self) -> None:
        self._held: dict[str, AnyArray] = {}

    def of(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return copies by name, valid until the next call; memory of names that are not given any more is released.

        Read-only arrays never change, so they are not copied.
        """
        self._held = {
            name: self._copy(name, array) if array.flags.writeable else array for name, array in arrays.items()
        }
        return self._held

    def missing(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return the arrays for whose copies there is no memory yet."""
        return {name: array for name, array in arrays.items() if array.flags.writeable and not self._fits(name, array)}

    def make_room(self, arrays: Mapping[str, AnyArray]) -> None:
        """Allocate memory for copies of arrays of these shapes, which takes longer than copying."""
        for name, array in arrays.items():
            self._held[name] = np.empty(array.shape, array.dtype)
            self._held[name].fill(0)

    def _copy(self, name: str, array: AnyArray) -> AnyArray:
        into = self._held[name] if self._fits(name, array) else np.empty(array.shape, array.dtype)
        np.copyto(into, array)
        return into

    def _fits(self, name: str, array: AnyArray) -> bool:
        held = self._held.get(name)
        return held is not None and held.flags.writeable and (held.shape, held.dtype) == (array.shape, array.dtype)


class Written(NamedTuple):
    """A durable checkpoint."""

    generation: int
    position: Position | None
    """See `Content`, as for `mark`."""
    mark: Mark | None
    taken_at: float
    """When its state was taken, in seconds of `time.monotonic`."""
    seconds: float
    """Time from then until it was durable."""


class CheckpointWriter:
    """Writer of checkpoints, one at a time: immediately, or in a background thread while learning continues.

    Args:
        store: the target; it has no other writer from the first call on.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._copies = Copies()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[Written | None] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is work in the background whose result `outcome` has not returned yet."""
        return self._under_way is not None

    def write(self, content: Content, taken_at: float) -> Written:
        """Write a checkpoint, and return once it is durable. None may be in progress.

        Raises:
            CheckpointError: it cannot be written; earlier ones are unchanged.
        """
        return self._write(content, (), taken_at)

    def make_room(self, content: Content) -> bool:
        """Return whether `begin` can copy this without delay; otherwise begin to allocate the memory in the background.

        There is no need to wait: `begin` allocates what is still missing. No checkpoint may be in progress.
        """
        missing = self._copies.missing(content.arrays)
        if sum(array.nbytes for array in missing.values()) < _MUCH:
            return True
        self._under_way = self._thread.submit(self._copies.make_room, missing)
        return False

    def begin(self, content: Content, sinks: Sequence[Callable[[], None]], taken_at: float) -> None:
        """Copy the content of a checkpoint and write it in the background. None may be in progress.

        Args:
            content: may change after this call.
            sinks: functions that make the output of the events in it durable; called first, in the background.
            taken_at: when the state was taken, in seconds of `time.monotonic`.
        """
        self._under_way = self._thread.submit(self._write, content.copied(self._copies), sinks, taken_at)

    def outcome(self, *, wait: bool) -> Written | None:
        """Return the checkpoint of the latest `begin` once, when it is durable; ``None`` before and afterwards.

        Args:
            wait: whether to wait for the one in progress.

        Raises:
            CheckpointError: it could not be written; earlier ones are unchanged.
            SinkError: dead letters or predictions could not be made durable, so it was not written.
        """
        if self._under_way is None or not (wait or self._under_way.done()):
            return None
        done, self._under_way = self._under_way, None
        # Not `result` alone: a signal that arrives just before an unlimited wait is noticed only after it.
        while not done.done():
            futures.wait((done,), timeout=_NOTICE_SECONDS)
        return done.result()

    def close(self) -> None:
        """Finish a checkpoint in progress; its failure is logged, since there is no caller left to handle it."""
        try:
            self.outcome(wait=True)
        except Exception:
            LOGGER.exception("the checkpoint in progress was not written")
        self._thread.shutdown()

    def _write(self, content: Content, sinks: Sequence[Callable[[], None]], taken_at: float) -> Written:
        for make_durable in sinks:
            make_durable()
        metadata = {**content.metadata, "state_digest": fingerprint(content.model, content.labels)}
        generation = self._store.save(content.arrays, metadata)
        return Written(generation, content.position, content.mark, taken_at, time.monotonic() - taken_at)
