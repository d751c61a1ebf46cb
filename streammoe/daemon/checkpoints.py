"""When a daemon saves, and in which order, so that each event counts once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping

from streammoe.daemon.challenger import CHALLENGER, CHAMPION
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.outputs import Outputs
from streammoe.daemon.run_state import RunState
from streammoe.daemon.signals import StopFlag
from streammoe.errors import RetriableCheckpointError
from streammoe.model.checkpoint import ASIDE
from streammoe.persistence import CheckpointStore, state_digest
from streammoe.pipeline.predictions import RestartPlan
from streammoe.ports import Source
from streammoe.settings import CheckpointSettings
from streammoe.text import cut
from streammoe.types import AnyArray

LOGGER = logging.getLogger("streammoe.daemon")
LONGEST_PAUSE = 30.0
"""Seconds between two attempts to save; the first pause is one second, and each further one twice as long."""
_NOT_LEARNED = (*ASIDE, "scores", "guard.", "labels.origins", "labels.refused", CHALLENGER, CHAMPION)
"""Beginnings of the names of arrays that do not influence learning."""


def learned_digest(arrays: Mapping[str, AnyArray]) -> str:
    """Hash those arrays of a checkpoint that influence what is learned next."""
    return state_digest({name: array for name, array in arrays.items() if not name.startswith(_NOT_LEARNED)})


class Checkpoints:
    """The checkpoints of a run: when one is due, what it passes over, and who learns of it.

    Learning waits while one is saved.

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
        self.stop = StopFlag(armed=False)
        """Ends further attempts to save; that of the run."""
        self._store = store
        self._state = state
        self._source = source
        self._outputs = outputs
        self._metrics = metrics
        self.settings = settings
        """At present."""
        self._generation = generation
        """That of the newest one."""
        self._restart = restart or RestartPlan()
        self._has_saved = False
        """Whether this run has."""
        self._start_is_saved = state.position is not None
        """Whether there is one that knows where reading began."""
        self.unsaved = 0
        """Records since the latest one."""
        self._resumed_at = time.monotonic()
        """When learning went on after the latest one."""
        self._paused = 0.0
        """How many seconds it had waited for that."""

    @property
    def path(self) -> str:
        """Path of the newest checkpoint; empty if there is none."""
        return str(self._store.path(self._generation)) if self._generation else ""

    @property
    def seconds_to_next(self) -> float | None:
        """Seconds until one is due, unless so many events come that it is due before; None if there is nothing new."""
        if not self.unsaved:
            return None
        return max(0.0, self._resumed_at + max(self.settings.every_seconds, self._paused) - time.monotonic())

    def stop_seconds(self) -> float:
        """Return how long a stop may take."""
        return self.settings.stop_seconds

    def begin(self) -> None:
        """Save or report where reading begins, once it can."""
        self._restart.begin()
        if self._take_position() or self._restart.must_save:
            self.save()
        else:
            self._commit()

    def add(self, records: int) -> None:
        """Record that the state has gone on by so many records."""
        self.unsaved += records
        self._metrics.gauge("streammoe_unsaved_events").set(self.unsaved)

    def save(self) -> None:
        """Make everything learned so far survive a crash, before learning continues.

        1. Dead letters and predictions are flushed, so that they are durable. 2. State, positions, counters and the
        length of prediction files replace the checkpoint, durably. 3. The position is committed to the source, for lag
        tools; or a transaction publishes predictions and position. The order is the guarantee: nothing is ahead of the
        state.

        Where the system prevents that for now, such as by a full disk, it is tried again for
        ``checkpoint.retry_seconds``, so that a run of months survives it. Nothing is read meanwhile.

        Raises:
            CheckpointError: it cannot be written, or not in that time, or not once a stop was requested.
            SinkError: dead letters or predictions cannot be made durable.
        """
        started, pause = time.monotonic(), 1.0
        while True:
            try:
                self._save()
            except RetriableCheckpointError as error:
                self._wait(error, started, pause)
                pause = min(2.0 * pause, LONGEST_PAUSE)
            else:
                break
        failed, self._metrics.health.unsaved = self._metrics.health.unsaved, ""
        if failed:  # logged when probes say so, too
            LOGGER.warning(
                "saving works again after %.0f s", time.monotonic() - started, extra={"event": "saved_again"}
            )
        self._metrics.health.saved_at = started
        self._has_saved = True
        self._start_is_saved = self._state.position is not None
        self.unsaved = 0
        self._metrics.gauge("streammoe_unsaved_events").set(0)
        self._commit()
        self._resumed_at = time.monotonic()
        self._paused = self._resumed_at - started
        self._metrics.histogram("streammoe_checkpoint_seconds").observe(self._paused)
        LOGGER.debug("checkpoint %s after %.3f seconds", self.path, self._paused)

    def save_if_due(self) -> None:
        """Save what was learned if it is time to."""
        if not self.unsaved or self._must_defer():
            return
        # An endless source's first one records which files it reads before they rotate.
        is_first = not self._start_is_saved and self._source.progress() is None
        is_due = is_first or self._outputs.overdue or self.unsaved >= self.settings.every_events
        # Where checkpoints take long, learning gets half of the time.
        if is_due or self.seconds_to_next == 0.0:
            self.save()

    def save_move(self) -> None:
        """Save the source's position if it has changed without a record."""
        if not self._must_defer() and self._take_position():
            self.save()

    def save_rest(self) -> None:
        """Save what is not saved."""
        if self.unsaved:
            self.save()

    def end(self, *, gave_up: bool) -> None:
        """Save what is not saved; even without new events a run that ends normally leaves a checkpoint to inspect.

        Args:
            gave_up: whether a batch that was read was not learned.
        """
        has_moved = not gave_up and self._take_position()
        is_new = not self._has_saved and not (gave_up and self._state.position is None)
        if has_moved or self.unsaved or is_new:
            self.save()

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
        self.settings = settings
        self._store.keep = settings.keep

    def _must_defer(self) -> bool:
        """Whether a checkpoint would pass over records that may fail the run at the end of the source.

        It waits, so that the next run, after a repair, still reads all of them. While a source is being read this
        lasts for less than a window of records. An endless source, whose records may come slowly, is saved anyway.
        """
        guard = self._state.bad_records
        is_ending = guard.is_short and self._source.progress() is not None
        return guard.fails_at_end and (is_ending or self._source.finished)

    def _save(self) -> None:
        """Write the checkpoint; `save` reports it."""
        self._outputs.flush()
        jumps = self._state.jumps
        if jumps is not None and jumps.stops:
            # An earlier run may have left newer generations than the one that this run resumed from.
            newest = max(self._store.generations(), default=0)
            self._store.keep = jumps.n_to_keep(self.settings.keep, newest)
        arrays, metadata = self._state.content(ended=self._source.finished)
        digest = learned_digest(arrays)
        metadata |= {"transactional": self._outputs.transactional, "state_digest": digest}
        metadata["history"] = self._state.noted(digest)
        if (end := self._outputs.end()) is not None:  # to which a restart truncates predictions
            metadata["predictions"] = end
        self._generation = self._store.save(arrays, metadata)
        if jumps is not None:
            jumps.add(self._generation, metadata["n"])

    def _wait(self, error: RetriableCheckpointError, since: float, pause: float) -> None:
        """Wait for the next attempt to save, or for a stop; raise the error if there is to be none."""
        self._metrics.health.unsaved = str(error)
        self._metrics.counter("streammoe_checkpoint_failures_total").inc()
        now = time.monotonic()
        left = since + self.settings.retry_seconds - now
        if left <= 0 or self.stop.requested:
            raise error
        LOGGER.warning(
            "cannot save: %s. Learning waits; the next attempt is in %.0f s, the last one, with exit code 4 if it "
            "fails, in %.0f s (checkpoint.retry_seconds = %g)",
            error,
            min(pause, left),
            left,
            self.settings.retry_seconds,
            extra={"event": "not_saved"},
        )
        while time.monotonic() < now + min(pause, left) and not self.stop.requested:
            self._metrics.health.beat()
            time.sleep(0.1)

    def _commit(self) -> None:
        """Commit the position of the newest checkpoint where other tools look for it."""
        position = self._state.position
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
        if self._state.position is not None:
            self._state.note("moved", to=cut(json.dumps(position)))
        self._state.position = position
        return True
