"""The learning loop: poll, process, observe, checkpoint when due; one thread, one model, one folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from streammoe.daemon.checkpoints import Checkpoints, learned_digest
from streammoe.daemon.guards import Jump
from streammoe.daemon.metrics import OUTCOMES, Metrics
from streammoe.daemon.outputs import Outputs
from streammoe.daemon.reload import Reload
from streammoe.daemon.run_state import RunState
from streammoe.daemon.signals import StopFlag
from streammoe.daemon.status import Status
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.errors import ModelJumped, SourceError, TooManyBadRecords
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.pipeline import BatchResult, Pipeline
from streammoe.ports import Batch, Source
from streammoe.serving.snapshot import Published
from streammoe.settings import Settings
from streammoe.text import listed, shown, some_of

LOGGER = logging.getLogger("streammoe.daemon")
ProgressListener = Callable[[tuple[int, int] | None], None]
"""Called with the source's progress after each batch."""
POLL_SECONDS = 0.5
"""Timeout of `Source.poll`; a stop signal or a due checkpoint may wait this long."""
LOOK_SECONDS = 1.0
"""Time between two looks at what was learned, which take up to milliseconds; events are counted at any time."""


class Observer(Protocol):
    """An observer of a daemon, whose thread calls every method; whatever goes wrong with it must not stop learning."""

    def start(self, pipeline: Pipeline) -> None:
        """Begin; reading begins next."""

    def after_batch(self, pipeline: Pipeline) -> None:
        """Look at what the model has become; there need not have been a batch, since calls do not wait for records."""

    def close(self) -> None:
        """End."""


class Summary(NamedTuple):
    """Result of a run; events are counted since the first start, over all restarts."""

    events: int
    learned: int
    predicted_only: int
    rejected: int
    skipped: int
    pending: int
    expired: int
    model_events: int
    """Events that the model has learned: `learned`, plus those that a given model had learned before."""
    vanished: dict[str, int]
    """Features that vanished during this run, each with the number of events in succession that came without it."""
    scores: dict[str, float | None]
    """``rmse``, ``log_loss`` and ``baseline_rmse``, or ``accuracy``, ``log_loss`` and ``baseline_accuracy``."""
    events_per_second: float
    checkpoint: str
    state_digest: str

    def flat(self) -> dict[str, Any]:
        """Return all fields by name, with the scores in place of `scores`."""
        fields: dict[str, Any] = {}
        for name, value in self._asdict().items():
            fields |= value if name == "scores" else {name: value}
        return fields


class Daemon:
    """Learns from a source until it ends or a signal asks to stop, and makes every event count exactly once.

    Positions live inside the checkpoints. A restart seeks to them, so what was learned after the last checkpoint is
    learned again, from the same state, with the same result.
    """

    def __init__(
        self,
        source: Source,
        state: RunState,
        outputs: Outputs,
        checkpoints: Checkpoints,
        metrics: Metrics,
        reload: Reload | None = None,
        observer: Observer | None = None,
        on_batch: ProgressListener | None = None,
        status: Status | None = None,
        published: Published | None = None,
    ) -> None:
        self.source = source
        self.state = state
        self.checkpoints = checkpoints
        self.metrics = metrics
        self.observer = observer
        self._outputs = outputs
        self._health = metrics.health
        self._reload = reload
        self._on_batch = on_batch or (lambda _: None)
        self._status = status
        self._published = published
        self._processed = 0
        """Records of this run."""
        self._health.source = source.status
        if status is not None:
            status.to_save = lambda: (self.checkpoints.unsaved, self.checkpoints.seconds_to_next)
        metrics.count(state)
        self._look()

    @property
    def model(self) -> MixtureOfExperts:
        """The current model."""
        return self.state.model

    def last_words(self) -> str:
        """Return what to say if a stop takes too long; another thread asks."""
        checkpoints = self.checkpoints
        return (
            f"the stop has taken longer than checkpoint.stop_seconds = {checkpoints.stop_seconds():g}, so the process "
            f"ends now; at least {checkpoints.unsaved:,} records were not saved, and the next start learns them again"
        )

    def run(self, stop: StopFlag) -> Summary:
        """Learn until the source is finished or `stop` is requested, save, and return a summary.

        Raises:
            SourceError: reading failed for good, and what was learned before has been saved; or a source has ended
                without a single target, and nothing was saved beyond the last checkpoint.
            CheckpointError: saving has failed for longer than ``checkpoint.retry_seconds``.
            TooManyBadRecords: see `BadRecordGuard`; nothing was saved beyond the last checkpoint, not even at the end
                of the source.
            ModelJumped: see `LossGuard`; the newest checkpoint is one from before the jump.
        """
        started = time.monotonic()
        self.checkpoints.stop = stop
        try:
            self._on_batch(self.source.progress())
            if self._begin(stop):
                self._learn(stop)
        except (TooManyBadRecords, ModelJumped, SourceError):
            self._outputs.flush_letters()  # which say why
            raise
        finally:
            if self.observer is not None:
                self.observer.close()
            self._show(is_last=True)
        self._health.ready = False
        return self._summary(time.monotonic() - started)

    def reconfigure(self, settings: Settings, *, affects_events: bool) -> None:
        """Apply the settings that may change between two batches.

        Args:
            settings: all settings; those that may not change are the same as before.
            affects_events: whether the change affects the outcome of events or what is written about them. Earlier
                events are then saved first, so that they are not processed again by other rules after a crash.
        """
        if affects_events:
            self.checkpoints.save_rest()
        self.checkpoints.apply(settings.checkpoint)
        self.state.apply(settings)

    def _begin(self, stop: StopFlag) -> bool:
        """Wait, without a time limit, until reading can begin; return whether it can, before a stop was requested."""
        while not stop.requested and not self.source.prepare(POLL_SECONDS):
            self._health.beat()
        if stop.requested:
            return False
        if self.observer is not None:
            self.observer.start(self.state.pipeline)
        self._health.ready = True
        self.checkpoints.begin()
        self._health.beat()
        self._show()
        return True

    def _show(self, *, is_last: bool = False) -> None:
        """Show what has been learned to those who ask this or another process."""
        state = self.state
        if time.monotonic() >= self._look_at or is_last:
            self._look()
        if self._published is not None:
            self._published.is_wanted |= is_last
            self._published.offer(state.model, state.pipeline.schema, state.position, state.digest)

    def _learn(self, stop: StopFlag) -> None:
        """Learn to the end, and save."""
        gave_up = False
        """Whether a batch that was read was not learned."""
        try:
            while not stop.requested and not self.source.finished:
                if self._reload is not None and self._reload.requested:
                    self.metrics.count_reload(self._reload.apply(self.reconfigure))
                with cancellable(lambda: stop.requested):
                    batch = self.source.poll(POLL_SECONDS)
                    self._health.beat()
                    if batch is not None:
                        self._process(batch)
                    else:
                        self.checkpoints.save_move()
                if self.observer is not None:
                    self.observer.after_batch(self.state.pipeline)
                self.checkpoints.save_if_due()
                self._show()
        except FitCancelled:
            gave_up = True
        except SourceError:
            self.checkpoints.save_rest()
            raise
        if gave_up:
            LOGGER.info(
                "stop requested during a fit, which is abandoned; saving what was learned before its batch, which the "
                "next start learns again"
            )
        elif stop.requested:
            LOGGER.info("stop requested; saving what was learned", extra={"event": "stopping"})
        if self.source.finished:
            self._judge_end(stop)
        self.checkpoints.end(gave_up=gave_up)

    def _process(self, batch: Batch) -> None:
        """Learn a batch, and judge and count what became of its records."""
        started = time.monotonic()
        state = self.state
        was_warming_up, drifts = state.model.is_warming_up, state.model.drifts
        processed = state.process(batch)
        self._outputs.write(processed.letters)
        _report(state, batch, processed, was_warming_up=was_warming_up, drifts=drifts)
        state.bad_records.judge(processed.bad, processed.latest_rejection)
        state.count(batch, processed)
        self.checkpoints.add(len(batch) + batch.skipped)
        self._processed += len(batch)
        self.metrics.histogram("streammoe_batch_seconds").observe(time.monotonic() - started)
        jump = None if state.jumps is None else state.jumps.losses.watch(processed.losses)
        self.metrics.count(state)
        if jump is not None:
            self._handle_jump(jump, batch)
        self._on_batch(self.source.progress())

    def _handle_jump(self, jump: Jump, batch: Batch) -> None:
        """React to a jump as `guard.on_jump` says."""
        message = (
            f"{batch.origin}: the loss has jumped: {jump.loss:.3g} an event lately, {jump.usual:.3g} before, over "
            f"{jump.events} events"
        )
        if self.state.jumps is None or not self.state.jumps.stops:
            LOGGER.warning(
                "%s. The data or their meaning have changed. They are learned, and the usual loss is measured again "
                'from here; guard.on_jump = "stop" would not have learned them',
                message,
                extra={"event": "jumped"},
            )
            return
        good = self.checkpoints.go_back(jump.sound)
        if good is None:
            raise ModelJumped(
                f"{message}. There is no checkpoint from before the jump; look at the data, and lower "
                'checkpoint.every_events so that there will be one, or set guard.on_jump = "alarm" to learn them'
            )
        raise ModelJumped(
            f"{message}. The newest checkpoint is now generation {good}, from before the jump, and the next start "
            'resumes from it. Look at the data first; guard.on_jump = "alarm" would learn them'
        )

    def _judge_end(self, stop: StopFlag) -> None:
        """Judge all records of a source that has ended, unless a stop was requested.

        Raises:
            TooManyBadRecords: the model and its positions stay at the last checkpoint, so that a corrected run reads
                all.
            SourceError: same.
        """
        outcomes, reasons = self.state.outcomes, self.state.reasons
        if not stop.requested:
            self.state.bad_records.judge_end()
            self._require_targets()
        if outcomes["rejected"] and not outcomes["learned"]:
            LOGGER.warning(
                "nothing was learned: %d records were rejected (%s); see the dead letters, correct the files or the "
                "schema, and start again with --fresh",
                outcomes["rejected"],
                ", ".join(f"{count} {reason}" for reason, count in reasons.items()),
            )

    def _require_targets(self) -> None:
        """Fail if a model that knows nothing was given nothing to learn.

        Most likely `schema.target` is misspelt, which a source without a header cannot show. Where labels arrive late,
        they may still come.
        """
        without = self.state.outcomes["predicted_only"]
        if self.model.n or not without or self.state.labels is not None:
            return
        schema = self.state.pipeline.schema
        weighted = f", or a weight above 0 in schema.weight ({shown(schema.weight)})" if schema.weight else ""
        is_saved = self.checkpoints.unsaved < sum(self.state.outcomes.values())
        raise SourceError(
            f"nothing was learned: no record up to the end of the source, of {without:,} valid, has a value of "
            f"schema.target ({listed([*map(shown, schema.targets)], 'and')}){weighted}; the features are "
            f"{some_of(self.model.fields)}. Correct the settings or the data, and start again"
            f"{' with --fresh' if is_saved else ''}"
        )

    def _look(self) -> None:
        """Show what has been learned in metrics and status."""
        state, self._look_at = self.state, time.monotonic() + LOOK_SECONDS
        self.metrics.publish(state, self.source.progress())
        if self._status is not None:
            self._status.publish(state)

    def _summary(self, seconds: float) -> Summary:
        state = self.state
        counts = {outcome: state.outcomes[outcome] for outcome in OUTCOMES}
        return Summary(
            events=sum(counts.values()) + state.pending,
            **counts,
            pending=state.pending,
            model_events=self.model.n,
            vanished=state.pipeline.presence.vanished,
            scores=state.pipeline.scores.summary(),
            events_per_second=self._processed / max(seconds, 1e-9),
            checkpoint=self.checkpoints.path,
            state_digest=learned_digest(state.arrays()),
        )


def _report(state: RunState, batch: Batch, processed: BatchResult, *, was_warming_up: bool, drifts: int) -> None:
    """Log what is new with a batch, each thing once, before it is counted."""
    model = state.model
    for reason in processed.reasons.keys() - state.reasons.keys():
        detail = next(letter.detail for letter in processed.letters if letter.reason == reason)
        LOGGER.warning(
            "rejected a record (%s); further ones are only counted: %s", reason, detail, extra={"event": "rejected"}
        )
    if not state.outcomes["learned"] and not processed.outcomes["learned"] and processed.outcomes["predicted_only"]:
        LOGGER.warning(
            "no record so far has a target, so nothing has been learned; is schema.target right?",
            extra={"event": "no_target"},
        )
    if was_warming_up and not model.is_warming_up:
        # The batch may have gone on.
        n = model.learner.context.warmed_up_at
        state.note("fitted", at_event=n)
        LOGGER.info("warm-up is over; learning by steps from here (event %d)", n, extra={"event": "fitted"})
    n_drifts, drift = model.drifts - drifts, model.last_drift
    if n_drifts and drift is not None:
        state.note("drift", drift=drift._asdict())
        LOGGER.warning(
            "%s: drift: the loss was %.3g an event and is %.3g, found at event %d%s; step sizes and average "
            "restart, the next step size is %.3g",
            batch.origin,
            drift.before,
            drift.after,
            drift.n,
            f" (the last of {n_drifts})" if n_drifts > 1 else "",
            model.step_size,
            extra={"event": "drift"},
        )
