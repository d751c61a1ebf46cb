"""Checkpoints: what goes into one, and writing it beside the learning or before it goes on."""

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
"""Bytes that the kernel does not give within a millisecond or two."""
_NOTICE_SECONDS = 0.5
"""How long a wait for the other thread may keep a signal waiting."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds between two attempts."""


class RetryPolicy:
    """A disk that is full for five minutes must not end a run of months.

    What a crash costs grows meanwhile, since everything after the last checkpoint is learned again; so it has a bound.

    Args:
        patience: seconds from the first failure to the last attempt; 0 gives up at once.
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
        """Whether it is time for another attempt."""
        return self.failing and time.monotonic() >= self._next_at

    def failed(self, error: RetriableCheckpointError) -> None:
        """Take note of a failed attempt.

        Raises:
            RetriableCheckpointError: `error`, since patience is at its end.
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
            "nothing can be saved: %s. Learning goes on, saving is tried again in %.0f s, and given up, with exit "
            "code 4, in %.0f s (checkpoint.retry_seconds = %g)",
            error,
            pause,
            left,
            self.patience,
        )

    def succeeded(self) -> None:
        """Take note of a checkpoint."""
        if self._failing_since is not None:
            LOGGER.warning("saving works again after %.0f s", time.monotonic() - self._failing_since)
        self._failing_since = None


class Content(NamedTuple):
    """All that a checkpoint holds, but for what is computed from it."""

    model: Mapping[str, AnyArray]
    labels: Mapping[str, AnyArray]
    """What waits for its other half."""
    beside: Mapping[str, AnyArray]
    """What shapes nothing that is learned."""
    metadata: Mapping[str, Any]
    position: Position | None
    """Where reading goes on after it."""
    mark: Mark | None = None
    """The moment that it is of, where there may be a way back to it."""

    @property
    def arrays(self) -> dict[str, AnyArray]:
        """All of them, by name."""
        return {**self.model, **self.labels, **self.beside}

    def copied(self, copies: Copies) -> Content:
        """The same, sharing nothing that learning changes."""
        held = copies.of(self.arrays)
        return Content(
            model={name: held[name] for name in self.model},
            labels={name: held[name] for name in self.labels},
            beside={name: held[name] for name in self.beside},
            metadata=copy.deepcopy(self.metadata),
            position=copy.deepcopy(self.position),
            mark=self.mark,
        )


class Copies:
    """Copies of arrays in memory that is used again, since fresh memory costs more than the copying."""

    def __init__(self) -> None:
        self._held: dict[str, AnyArray] = {}

    def of(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Copies by name, good until the next call; of names that do not come again the memory is let go.

        An array that is read-only is never changed by anybody, so it is not copied.
        """
        self._held = {
            name: self._copy(name, array) if array.flags.writeable else array for name, array in arrays.items()
        }
        return self._held

    def missing(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Those for whose copies there is no memory yet."""
        return {name: array for name, array in arrays.items() if array.flags.writeable and not self._fits(name, array)}

    def make_room(self, arrays: Mapping[str, AnyArray]) -> None:
        """Get memory for copies of arrays of these shapes from the kernel, which takes longer than the copying."""
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
    """A checkpoint that is durable."""

    generation: int
    position: Position | None
    """What it holds of the source."""
    mark: Mark | None
    """See `Content`."""
    taken_at: float
    """When its state was that of the model, in seconds of `time.monotonic`."""
    seconds: float
    """From then until it was durable."""


class CheckpointWriter:
    """Writes checkpoints, one at a time: at once, or in a thread of its own while learning goes on.

    Args:
        store: where they go; from the first call on nobody else writes there.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._copies = Copies()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[Written | None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the other thread does something of which `outcome` has not told yet."""
        return self._under_way is not None

    def write(self, content: Content, taken_at: float) -> Written:
        """Write a checkpoint, and return once it is durable. None may be under way.

        Raises:
            CheckpointError: it cannot be written; the older ones are untouched.
        """
        return self._write(content, (), taken_at)

    def make_room(self, content: Content) -> bool:
        """Whether `begin` can copy this at once; else the other thread gets the memory for it first.

        Nobody need wait for that: `begin` gets what is not there yet. None may be under way.
        """
        missing = self._copies.missing(content.arrays)
        if sum(array.nbytes for array in missing.values()) < _MUCH:
            return True
        self._under_way = self._thread.submit(self._copies.make_room, missing)
        return False

    def begin(self, content: Content, sinks: Sequence[Callable[[], None]], taken_at: float) -> None:
        """Copy a checkpoint's content and write it while the caller goes on. None may be under way.

        Args:
            content: may change after this call.
            sinks: what makes that durable which it has passed over; called first, in the other thread.
            taken_at: when that was, in seconds of `time.monotonic`.
        """
        self._under_way = self._thread.submit(self._write, content.copied(self._copies), sinks, taken_at)

    def outcome(self, *, wait: bool) -> Written | None:
        """What has become of the checkpoint of the latest `begin`, told once; ``None`` if there is nothing to tell.

        Args:
            wait: until it is durable; else ``None`` is returned of one that is still under way.

        Raises:
            CheckpointError: it could not be written; the older ones are untouched.
            SinkError: what it passes over could not be made durable, so it was not written.
        """
        if self._under_way is None or not (wait or self._under_way.done()):
            return None
        done, self._under_way = self._under_way, None
        # Not `result` alone: a signal that comes just before a wait without an end is noticed when that has ended.
        while not done.done():
            futures.wait((done,), timeout=_NOTICE_SECONDS)
        return done.result()

    def close(self) -> None:
        """Let a checkpoint that is under way come to its end; of its failure, which nobody waits for, the log tells."""
        try:
            self.outcome(wait=True)
        except Exception:
            LOGGER.exception("the checkpoint that was under way is not written")
        self._thread.shutdown()

    def _write(self, content: Content, sinks: Sequence[Callable[[], None]], taken_at: float) -> Written:
        for make_durable in sinks:
            make_durable()
        metadata = {**content.metadata, "state_digest": fingerprint(content.model, content.labels)}
        generation = self._store.save(content.arrays, metadata)
        return Written(generation, content.position, content.mark, taken_at, time.monotonic() - taken_at)
