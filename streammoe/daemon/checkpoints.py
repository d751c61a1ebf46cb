"""When a daemon saves, and in which order, so that each event counts once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from streammoe.daemon.checkpointer import CheckpointWriter, RetryPolicy, WrittenCheckpoint
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.outputs import Outputs
from streammoe.daemon.run_state import RunState
from streammoe.daemon.signals import StopFlag
from streammoe.errors import RetriableCheckpointError
from streammoe.persistence import Checkpoint, CheckpointStore
from streammoe.pipeline.predictions import RestartPlan
from streammoe.ports import Position, Source
from streammoe.settings import CheckpointSettings

LOGGER = logging.getLogger("streammoe.daemon")


class Checkpoints:
    """The checkpoints of a run: when one is due, what it passes over, and who learns of it.

    Args:
        store: where they go.
        state: what they hold.
        source: is told of the position in each.
        outputs: must be durable before the state that has passed over them.
        metrics: show them.
        settings: the section ``[checkpoint]``.
        generation: that of the checkpoint that the state comes from, or 0.
        restart: what has to be done before anything is read.
    """

    def __init__(
        self,
        store: CheckpointStore,
        state: RunState,
        source: Source,
        outputs: Outputs,
        metrics: Metrics,
        settings: CheckpointSettings,
        generation: int = 0,
        restart: RestartPlan | None = None,
    ) -> None:
        self._store = store
        self._state = state
        self._source = source
        self._outputs = outputs
        self._metrics = metrics
        self._unsaved_events = metrics.gauge("streammoe_unsaved_events")
        self._settings = settings
        self._generation = generation
        """That of the newest one."""
        self._restart = restart or RestartPlan()
        self._writer = CheckpointWriter(store)
        self._retries = RetryPolicy(settings.retry_seconds)
        self._has_saved = False
        """Whether this run has."""
        self._start_is_saved = state.position is not None
        """Whether there is one that knows where reading began."""
        self.unsaved = 0
        """Records since the state of the latest one, written or in progress."""
        self._in_progress = 0
        """Records before that since the latest one that is durable."""
        self._resumed_at = time.monotonic()
        """When learning went on after the latest one."""
        self._paused = 0.0
        """How many seconds it had waited for that."""

    @property
    def path(self) -> str:
        """Path of the newest checkpoint; empty if there is none."""
        return str(self._store.path(self._generation)) if self._generation else ""

    @property
    def must_wait(self) -> bool:
        """Whether nothing can be saved and buffers are full, so that no more may be read."""
        return self._retries.failing and self._outputs.overdue

    def begin(self) -> None:
        """Save or report where reading begins, once it can."""
        self._restart.begin()
        if self._take_position() or self._restart.must_save_model:
            self.save()
        elif self._restart.must_record_end:
            self._attempt(self.save)
        else:
            self._commit(self._state.position)

    def add(self, records: int) -> None:
        """Record that the state has gone on by so many records."""
        self.unsaved += records
        self._unsaved_events.set(self._in_progress + self.unsaved)

    def save(self) -> None:
        """Make everything learned so far survive a crash, before learning continues.

        1. Dead letters and predictions are flushed, so that they are durable. 2. State, positions, counters and the
        length of prediction files replace the checkpoint, durably. 3. The position is committed to the source, for lag
        tools; or a transaction publishes predictions and position. The order is the guarantee: nothing is ahead of the
        state.

        A checkpoint in progress is finished first.

        Raises:
            CheckpointError: it cannot be written, or the one in progress could not.
            SinkError: dead letters or predictions cannot be made durable.
        """
        started = time.monotonic()
        self._collect(wait=True)
        taken_at = time.monotonic()
        self._outputs.flush()
        written = self._writer.write(self._content(), taken_at)
        self._mark_saved()
        self._report(written)
        self._resume(started)

    def save_if_due(self) -> None:
        """Report the checkpoint in progress if it is durable, and begin one if it is due.

        One that fails is tried again later, here and in other methods.

        Raises:
            RetriableCheckpointError: attempts have failed for too long.
        """
        self._attempt(self._save_if_due)

    def save_move(self) -> None:
        """Save the source's position if it has changed without a record."""
        if not self._must_defer() and self._take_position():
            self._attempt(self.save)

    def save_rest(self, stop: StopFlag) -> None:
        """Save what is not saved, and try until that succeeds, but not once a stop was requested.

        Raises:
            RetriableCheckpointError: it cannot be written.
        """
        self.finish()
        if self.unsaved or self._retries.failing:
            self._save_last(stop)

    def end(self, stop: StopFlag, *, gave_up: bool) -> None:
        """Do as `save_rest`; even without new events a run that ends normally leaves a checkpoint to inspect.

        Args:
            stop: ends attempts.
            gave_up: whether a batch that was read was not learned.
        """
        has_moved = not gave_up and self._take_position()
        is_new = not self._has_saved and not (gave_up and self._state.position is None)
        if has_moved or self.unsaved or self._retries.failing or is_new:
            self._save_last(stop)

    def finish(self) -> None:
        """Wait for the checkpoint in progress, and report it."""
        self._attempt(partial(self._collect, wait=True))

    def pause(self) -> None:
        """Wait a little for the next attempt, so that neither the loop stands still nor a processor is busy."""
        time.sleep(0.1)
        self._metrics.health.beat()

    def go_back(self, sound: int) -> int | None:
        """Set aside what was saved after event number `sound`; return the generation that is the newest then.

        ``None`` if there would be none; then all of them stay.
        """
        good = None if self._state.jumps is None else self._state.jumps.last_good(sound)
        if good is None or good not in self._store.generations():
            return None
        self._store.set_aside(after=good)
        return good

    def apply(self, settings: CheckpointSettings) -> None:
        """Apply other settings, of which only some may have changed."""
        self._settings = settings
        self._store.keep = settings.keep
        self._retries.patience = settings.retry_seconds

    def secure(self) -> None:
        """Save what is not durable yet, before other rules hold for events.

        Raises:
            RetriableCheckpointError: that is not possible at present.
        """
        if self.unsaved or self._writer.busy or self._retries.failing:
            self.save()

    def close(self) -> None:
        """Finish a checkpoint in progress."""
        self._writer.close()

    def _attempt(self, saving: Callable[[], None]) -> None:
        """Call `saving`; schedule another attempt if it fails.

        Raises:
            RetriableCheckpointError: attempts have failed for too long.
        """
        try:
            saving()
        except RetriableCheckpointError as error:
            self._metrics.health.unsaved = str(error)
            self._metrics.counter("streammoe_checkpoint_failures_total").inc()
            self._retries.record_failure(error)

    def _save_last(self, stop: StopFlag) -> None:
        if not stop.requested:
            self._attempt(self.save)
            while self._retries.failing and not stop.requested:
                if self._retries.is_due:
                    self._attempt(self.save)
                else:
                    self.pause()
            if not self._retries.failing:
                return
        self.save()

    def _save_if_due(self) -> None:
        self._collect()
        if self._retries.failing:
            if self._retries.is_due:
                self.save()
        elif self.unsaved and not self._start_is_saved and self._source.progress() is None:
            self.save()  # it records which files an endless source reads before they rotate
        elif self._is_due():
            self._save_in_background()

    def _is_due(self) -> bool:
        # One at a time: the next waits until the one in progress is durable, and then holds everything learned since.
        if not self.unsaved or self._writer.busy or self._must_defer():
            return False
        if self._outputs.overdue or self.unsaved >= self._settings.every_events:
            return True
        # Where checkpoints take long, learning gets half of the time.
        return time.monotonic() - self._resumed_at >= max(self._settings.every_seconds, self._paused)

    def _must_defer(self) -> bool:
        """Whether a checkpoint would pass over records that may fail the run at the end of the source.

        It waits, so that the next run, after a repair, still reads all of them. While a source is being read this
        lasts for less than a window of records. An endless source, whose records may come slowly, is saved anyway.
        """
        guard = self._state.bad_records
        is_ending = guard.is_short and self._source.progress() is not None
        return guard.fails_at_end and (is_ending or self._source.finished)

    def _save_in_background(self) -> None:
        """Do as `save` in a background thread; `_collect` commits once all is durable."""
        if self._outputs.transactional or (self._state.jumps is not None and self._state.jumps.stops):
            # In the background, later predictions would fall into the transaction that belongs to this state. And which
            # checkpoint is the last good one must not depend on how fast the disk is.
            self.save()
            return
        taken_at = time.monotonic()
        sinks = self._outputs.begin_flush()
        self._writer.begin(self._content(), sinks, taken_at)
        self._mark_saved()
        self._resume(taken_at)

    def _content(self) -> Checkpoint:
        """Return the content of a checkpoint after a flush."""
        jumps = self._state.jumps
        if jumps is not None and jumps.stops:
            # An earlier run may have left newer generations than the one that this run resumed from.
            newest = max(self._store.generations(), default=0)
            self._store.keep = jumps.n_to_keep(self._settings.keep, newest)
        content = self._state.content(ended=self._source.finished)
        content.metadata["transactional"] = self._outputs.transactional
        if (end := self._outputs.end()) is not None:  # to which a restart truncates predictions
            content.metadata["predictions"] = end
        return content

    def _mark_saved(self) -> None:
        """Record that a checkpoint holds the current state."""
        self._in_progress += self.unsaved
        self.unsaved = 0

    def _resume(self, since: float) -> None:
        """Record that learning, which has waited for a checkpoint since then, goes on."""
        self._resumed_at = time.monotonic()
        self._paused = self._resumed_at - since
        self._metrics.histogram("streammoe_checkpoint_pause_seconds").observe(self._paused)

    def _collect(self, *, wait: bool = False) -> None:
        """Report the checkpoint that was written in the background, if one has become durable.

        Args:
            wait: whether to wait for the one in progress.
        """
        written = self._writer.outcome(wait=wait)
        if written is not None:
            self._report(written)

    def _report(self, written: WrittenCheckpoint) -> None:
        """Report a checkpoint as durable."""
        self._metrics.health.unsaved = ""
        self._retries.record_success()
        self._generation, self._has_saved = written.generation, True
        position: Position | None = written.metadata["positions"][0]
        self._start_is_saved = position is not None
        if self._state.jumps is not None:
            self._state.jumps.add(written.generation, written.metadata["n"])
        self._commit(position)
        self._metrics.histogram("streammoe_checkpoint_seconds").observe(written.seconds)
        self._metrics.health.saved_at = written.taken_at
        self._in_progress = 0
        self._unsaved_events.set(self.unsaved)
        LOGGER.debug("checkpoint %s after %.3f seconds", self.path, written.seconds)

    def _commit(self, position: Position | None) -> None:
        """Commit the position of the newest checkpoint where other tools look for it."""
        if position is None:
            return
        if self._outputs.commit(position, self._generation):
            self._store.confirm(self._generation)
        else:
            self._source.commit(position, self._generation)

    def _take_position(self) -> bool:
        """Take the source's position if it has changed without a record, and return whether it has.

        It has to be saved: after a crash reading would otherwise start at another one.
        """
        position = self._source.position
        if position is None or position == self._state.position:
            return False
        self._state.position = position
        return True
