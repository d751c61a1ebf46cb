"""Checkpoints written in the background or while learning waits, and when one that failed is tried again."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import RetriableCheckpointError
from streammoe.model.checkpoint import ASIDE
from streammoe.persistence import Checkpoint, CheckpointStore, state_digest
from streammoe.pipeline.overlapped import result_of
from streammoe.types import AnyArray

LOGGER = logging.getLogger("streammoe.daemon")
FIRST_PAUSE = 1.0
"""Seconds to the second attempt; later ones double the time since the first, up to pauses of 30 seconds."""


class RetryPolicy:
    """Schedule of further attempts to save, so that a disk that is full for five minutes does not end a run of months.

    The cost of a crash grows meanwhile, since everything after the last checkpoint is learned again, so attempts end.

    Args:
        patience: seconds from the first failure to the last attempt; 0 gives up immediately.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._failing_since: float | None = None
        self._next_at = 0.0

    @property
    def failing(self) -> bool:
        """Whether the latest attempt failed."""
        return self._failing_since is not None

    @property
    def is_due(self) -> bool:
        """Whether another attempt is due."""
        return self.failing and time.monotonic() >= self._next_at

    def record_failure(self, error: RetriableCheckpointError) -> None:
        """Record a failed attempt.

        Raises:
            RetriableCheckpointError: `error`; `patience` is exhausted.
        """
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        failing = now - self._failing_since
        left = self.patience - failing
        if left <= 0:
            raise error
        pause = min(max(min(failing, 30.0), FIRST_PAUSE), left)
        self._next_at = now + pause
        LOGGER.warning(
            "cannot save: %s. Learning continues; the next attempt is in %.0f s, the last one, with exit code 4 if it "
            "fails, in %.0f s (checkpoint.retry_seconds = %g)",
            error,
            pause,
            left,
            self.patience,
        )

    def record_success(self) -> None:
        """Record a successful attempt."""
        if self._failing_since is not None:
            LOGGER.warning("saving works again after %.0f s", time.monotonic() - self._failing_since)
        self._failing_since = None


_NOT_LEARNED = (*ASIDE, "scores.", "guard.", "labels.origins", "labels.refused")
"""Beginnings of the names of arrays that do not influence learning."""


def learned_digest(arrays: Mapping[str, AnyArray]) -> str:
    """Hash those arrays of a checkpoint that influence what is learned next."""
    return state_digest({name: array for name, array in arrays.items() if not name.startswith(_NOT_LEARNED)})


class WrittenCheckpoint(NamedTuple):
    """A durable checkpoint."""

    generation: int
    metadata: Mapping[str, Any]
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
        self._copies: dict[str, AnyArray] = {}
        """Of arrays, in memory that is used again, since allocating it costs more than copying."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._in_progress: Future[WrittenCheckpoint] | None = None

    @property
    def busy(self) -> bool:
        """Whether there is work in the background whose result `outcome` has not returned yet."""
        return self._in_progress is not None

    def write(self, content: Checkpoint, taken_at: float) -> WrittenCheckpoint:
        """Write a checkpoint, and return once it is durable. None may be in progress.

        Raises:
            CheckpointError: it cannot be written; earlier ones are unchanged.
        """
        return self._write(content, (), taken_at)

    def begin(self, content: Checkpoint, sinks: Sequence[Callable[[], None]], taken_at: float) -> None:
        """Copy the content of a checkpoint and write it in the background. None may be in progress.

        Args:
            content: may change after this call.
            sinks: functions that make the output of the events in it durable; called first, in the background.
            taken_at: when the state was taken, in seconds of `time.monotonic`.
        """
        # Read-only arrays never change.
        self._copies = {
            name: self._copied(name, array) if array.flags.writeable else array
            for name, array in content.arrays.items()
        }
        copied = Checkpoint(self._copies, copy.deepcopy(content.metadata))
        self._in_progress = self._thread.submit(self._write, copied, sinks, taken_at)

    def outcome(self, *, wait: bool) -> WrittenCheckpoint | None:
        """Return the checkpoint of the latest `begin` once, when it is durable; ``None`` before and afterwards.

        Args:
            wait: whether to wait for the one in progress.

        Raises:
            CheckpointError: it could not be written; earlier ones are unchanged.
            SinkError: dead letters or predictions could not be made durable, so it was not written.
        """
        if self._in_progress is None or not (wait or self._in_progress.done()):
            return None
        done, self._in_progress = self._in_progress, None
        return result_of(done)

    def close(self) -> None:
        """Finish a checkpoint in progress; its failure is logged, since there is no caller left to handle it."""
        try:
            self.outcome(wait=True)
        except Exception:
            LOGGER.exception("the checkpoint in progress was not written")
        self._thread.shutdown()

    def _write(self, content: Checkpoint, sinks: Sequence[Callable[[], None]], taken_at: float) -> WrittenCheckpoint:
        for make_durable in sinks:
            make_durable()
        arrays, metadata = content
        generation = self._store.save(arrays, {**metadata, "state_digest": learned_digest(arrays)})
        return WrittenCheckpoint(generation, metadata, taken_at, time.monotonic() - taken_at)

    def _copied(self, name: str, array: AnyArray) -> AnyArray:
        into = self._copies.get(name)
        if into is None or not into.flags.writeable or (into.shape, into.dtype) != (array.shape, array.dtype):
            into = np.empty(array.shape, array.dtype)
        np.copyto(into, array)
        return into
