"""The learning loop: poll, process, checkpoint when due; one thread, one model, one folder.

The order of the steps between two polls is what makes each event count once, so they are all in this file.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from streammoe.daemon.checkpointer import CheckpointContent, CheckpointWriter, RetryPolicy, WrittenCheckpoint
from streammoe.daemon.guards import BadRecordGuard, Jump, LossGuard, SavedGenerations
from streammoe.daemon.health import Health
from streammoe.daemon.metrics import OUTCOMES, Metrics
from streammoe.daemon.observer import Observer
from streammoe.daemon.reload import Reload
from streammoe.daemon.signals import StopFlag
from streammoe.engine.interruption import FitCancelled, cancellable, uncancellable
from streammoe.errors import ModelJumped, RetriableCheckpointError, SourceError, TooManyBadRecords
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.label_join import LabelJoin, Limits, digest_with
from streammoe.pipeline.pipeline import BatchResult, Pipeline, joined_results
from streammoe.pipeline.scores import Scores
from streammoe.ports import EXPIRED, Batch, DeadLetter, DeadLetterSink, Position, Source
from streammoe.settings import Settings
from streammoe.text import listed, shown, some_of

LOGGER = logging.getLogger("streammoe.daemon")
ProgressListener = Callable[[tuple[int, int] | None], None]
"""Called with the source's progress after each batch."""
POLL_SECONDS = 0.5
"""Timeout of `Source.poll`; a stop signal or a due checkpoint may wait this long."""
RETRY_CHECK_SECONDS = 0.1
"""Interval of checks whether another attempt to save is due, while nothing else can be done."""


class CheckpointPolicy(NamedTuple):
    """Number of events or seconds after which a checkpoint is due, whichever comes first."""

    every_events: int
    every_seconds: float


class JumpHandler(NamedTuple):
    """Reaction to a jump of the loss."""

    stops: bool
    """Whether it ends the daemon; else it is only reported."""
    guard: LossGuard
    saved: SavedGenerations


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
        fields = self._asdict()
        index = list(fields).index("scores")
        items = list(fields.items())
        return dict([*items[:index], *self.scores.items(), *items[index + 1 :]])


class Daemon:
    """Learns from a source until it ends or a signal asks to stop, and makes every event count exactly once.

    Positions live inside the checkpoints. A restart seeks to them, so what was learned after the last checkpoint is
    learned again, from the same state, with the same result.
    """

    def __init__(
        self,
        *,
        source: Source,
        pipeline: Pipeline,
        store: CheckpointStore,
        dead_letters: DeadLetterSink,
        guard: BadRecordGuard,
        metrics: Metrics,
        policy: CheckpointPolicy,
        description: Mapping[str, Any],
        position: Position | None,
        generation: int,
        outcomes: Mapping[str, int],
        reasons: Mapping[str, int],
        health: Health,
        retries: RetryPolicy | None = None,
        reload: Reload | None = None,
        labels: LabelJoin | None = None,
        jump_handler: JumpHandler | None = None,
        on_begin: Callable[[], object] | None = None,
        observer: Observer | None = None,
        checkpoint_model_first: bool = False,
        checkpoint_predictions_first: bool = False,
        on_batch: ProgressListener | None = None,
    ) -> None:
        self._source = source
        self._labels = labels
        self._pipeline = pipeline
        self._store = store
        self._writer = CheckpointWriter(store)
        self._dead_letters = dead_letters
        self._guard = guard
        self._metrics = metrics
        self._policy = policy
        self._description = description
        self._position = position
        self._generation = generation
        self._health = health
        self._retries = RetryPolicy(0.0) if retries is None else retries
        self._reload = reload
        self._outcomes: Counter[str] = Counter(outcomes)
        self._reasons: Counter[str] = Counter(reasons)
        self._jump_handler = jump_handler
        self._observer = observer
        self._on_begin = on_begin
        """Called once reading can begin, before anything is saved."""
        self._checkpoint_model_first = checkpoint_model_first
        """Whether to save the model before anything is read: the file it came from may be gone at the next start."""
        self._checkpoint_predictions_first = checkpoint_predictions_first
        """Whether a checkpoint should record where predictions begin before any are made; if the disk is full, a later
        one does."""
        self._on_batch = on_batch
        self._latest_rejection = ""
        """Why the latest rejected record of this run was rejected."""
        self._unsaved = 0
        """Records since the state of the latest checkpoint, written or in progress."""
        self._in_progress = 0
        """Records before that since the latest one that is durable."""
        self._processed = 0
        self._resumed_at = time.monotonic()
        """When learning went on after that checkpoint."""
        self._paused = 0.0
        """How many seconds it had waited for it."""
        self._memory_requested = False
        """Whether memory was requested for the checkpoint that is due."""
        self._path = ""
        self._is_prepared = False
        self._start_is_saved = position is not None
        """Whether there is a checkpoint that knows where reading began."""
        metrics.follow(source.status)
        health.source_refused = lambda: source.status().refused
        for outcome in outcomes:
            metrics.count(outcome, outcomes[outcome])
        for reason in reasons:
            metrics.count_rejected(reason, reasons[reason])
        metrics.count_drifts(pipeline.model.drifts)
        if jump_handler is not None:
            metrics.count_jumps(jump_handler.guard.jumps)

    @property
    def model(self) -> MixtureOfExperts:
        """The current model."""
        return self._pipeline.model

    @property
    def scores(self) -> Scores:
        """The current prequential scores."""
        return self._pipeline.scores

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
        try:
            return self._learn_until(stop)
        finally:
            self._writer.close()
            if self._observer is not None:
                self._observer.close()

    def _learn_until(self, stop: StopFlag) -> Summary:
        started = time.monotonic()
        self._publish()
        self._begin(stop)
        gave_up = False
        """Whether a batch that was read was not learned."""
        try:
            while not stop.requested and not self._source.finished:
                if self._reload is not None and self._reload.requested:
                    self._metrics.count_reload(self._reload.apply_to(self))
                if self._must_wait:
                    self._pause()
                else:
                    with cancellable(lambda: stop.requested):
                        self._advance()
                if self._observer is not None:
                    self._observer.after_batch(self._pipeline)
                self._try_saving(self._checkpoint_if_due)
        except FitCancelled:
            gave_up = True
        except SourceError:
            self._try_saving(partial(self._collect_checkpoint, wait=True))
            if self._unsaved or self._retries.failing:
                self._write_last_checkpoint(stop)
            raise
        if gave_up:
            LOGGER.info(
                "stop requested during a fit, which is abandoned; saving what was learned before its batch, which the "
                "next start learns again"
            )
        elif stop.requested:
            LOGGER.info("stop requested; saving what was learned")
        self._try_saving(partial(self._collect_checkpoint, wait=True))
        if self._source.finished and not stop.requested:
            self._check_guard(self._guard.judge_end)
            self._require_targets()
        if self._source.finished and self._outcomes["rejected"] and not self._outcomes["learned"]:
            LOGGER.warning(
                "nothing was learned: %d records were rejected (%s); see the dead letters, correct the files or the "
                "schema, and start again with --fresh",
                self._outcomes["rejected"],
                ", ".join(f"{count} {reason}" for reason, count in self._reasons.items()),
            )
        # Even without new events: a run that ends normally always leaves a checkpoint to inspect.
        if gave_up:
            has_moved, is_saved = False, bool(self._path) or self._position is None
        else:
            has_moved, is_saved = self._is_prepared and self._take_position(), bool(self._path)
        if self._is_prepared and (has_moved or self._unsaved or self._retries.failing or not is_saved):
            self._write_last_checkpoint(stop)
        self._health.ready = False
        return self._summary(time.monotonic() - started)

    def _begin(self, stop: StopFlag) -> None:
        """Wait, without a time limit, until reading can begin."""
        while not stop.requested and not self._source.prepare(POLL_SECONDS):
            self._health.beat()
        if stop.requested:
            return
        if self._observer is not None:
            self._observer.start(self._pipeline)
        self._is_prepared = self._health.ready = True
        if self._on_begin is not None:
            self._on_begin()
        if self._take_position() or self._checkpoint_model_first:
            self.checkpoint()
        elif self._checkpoint_predictions_first:
            self._save()
        else:
            self._report_position(self._position)
        self._health.beat()

    def _take_position(self) -> bool:
        """Take the source's position if it has changed without a record, and return whether it has.

        It has to be saved: after a crash reading would otherwise start at another one.
        """
        position = self._source.position
        if position is None or position == self._position:
            return False
        self._position = position
        return True

    def _save(self) -> None:
        """Checkpoint; schedule another attempt if it fails.

        Raises:
            RetriableCheckpointError: attempts have failed for too long.
        """
        self._try_saving(self.checkpoint)

    def _try_saving(self, saving: Callable[[], None]) -> None:
        """Call `saving`; schedule another attempt if it fails.

        Raises:
            RetriableCheckpointError: attempts have failed for too long.
        """
        try:
            saving()
        except RetriableCheckpointError as error:
            self._health.unsaved = str(error)
            self._metrics.count_failed_checkpoint()
            self._retries.record_failure(error)

    def _checkpoint_if_due(self) -> None:
        """Collect the result of the checkpoint in progress, and begin one if it is due."""
        self._collect_checkpoint()
        if self._retries.failing:
            if self._retries.is_due:
                self.checkpoint()
        elif self._is_first_due():
            self.checkpoint()
        elif self._is_due():
            self._begin_checkpoint()

    def _write_last_checkpoint(self, stop: StopFlag) -> None:
        """Write the last checkpoint; retry until it succeeds, but not once a stop was requested.

        Raises:
            RetriableCheckpointError: it cannot be written.
        """
        if stop.requested:
            self.checkpoint()
            return
        self._save()
        while self._retries.failing:
            if stop.requested:
                self.checkpoint()
                return
            if self._retries.is_due:
                self._save()
            else:
                self._pause()

    @property
    def _must_wait(self) -> bool:
        """Whether nothing can be saved and buffers are full, so that no more may be read."""
        return self._retries.failing and self._is_overdue

    @property
    def _is_overdue(self) -> bool:
        predictions = self._pipeline.predictions
        return self._dead_letters.overdue or (predictions is not None and predictions.sink.overdue)

    def _pause(self) -> None:
        time.sleep(RETRY_CHECK_SECONDS)
        self._health.beat()

    def checkpoint(self) -> None:
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
        self._collect_checkpoint(wait=True)
        taken_at = time.monotonic()
        self._dead_letters.flush()
        if self._pipeline.predictions is not None:
            self._pipeline.predictions.sink.flush()
        written = self._writer.write(self._with_predictions(self._content()), taken_at)
        self._mark_saved()
        self._report(written)
        self._resume(started)

    def _begin_checkpoint(self) -> None:
        """Checkpoint in the same order in a background thread; `_collect_checkpoint` commits once all is durable."""
        if self._is_transactional or self._stops_at_jumps:
            # In the background, later predictions would fall into the transaction that belongs to this state. And which
            # checkpoint is the last good one must not depend on how fast the disk is.
            self.checkpoint()
            return
        taken_at = time.monotonic()
        content = self._content()
        if not self._memory_requested:
            self._memory_requested = True
            if not self._writer.reserve_memory(content):
                return  # until the next turn; only once, since a state may grow with each batch
        self._memory_requested = False
        sinks = [self._dead_letters.begin_flush()]
        if self._pipeline.predictions is not None:
            sinks.append(self._pipeline.predictions.sink.begin_flush())
        self._writer.begin(self._with_predictions(content), sinks, taken_at)
        self._mark_saved()
        self._resume(taken_at)

    def _mark_saved(self) -> None:
        """Record that a checkpoint holds the current state."""
        self._in_progress += self._unsaved
        self._unsaved = 0

    def _resume(self, since: float) -> None:
        """Record that learning, which has waited for a checkpoint since then, goes on."""
        self._resumed_at = time.monotonic()
        self._paused = self._resumed_at - since
        self._metrics.observe_checkpoint_pause(self._paused)

    def _collect_checkpoint(self, *, wait: bool = False, sound: int | None = None) -> None:
        """Report the checkpoint that was written in the background, if one has become durable.

        Args:
            wait: whether to wait for the one in progress.
            sound: see `_report`.
        """
        written = self._writer.outcome(wait=wait)
        if written is not None:
            self._report(written, sound)

    def _report(self, written: WrittenCheckpoint, sound: int | None = None) -> None:
        """Report a checkpoint as durable.

        Args:
            written: the checkpoint.
            sound: number of events learned before those in doubt, where a jump has just reset the guard's own count.
        """
        self._health.unsaved = ""
        self._retries.record_success()
        self._generation = written.generation
        self._start_is_saved = written.position is not None
        if self._jump_handler is not None:
            sound = self._jump_handler.guard.sound if sound is None else sound
            self._jump_handler.saved.add(written.generation, written.learned, sound)
        self._path = str(self._store.path(written.generation))
        self._report_position(written.position)
        self._metrics.observe_checkpoint(written.taken_at, written.seconds)
        self._in_progress = 0
        self._metrics.set_unsaved(self._unsaved)
        LOGGER.debug("checkpoint %s after %.3f seconds", self._path, written.seconds)

    def _content(self) -> CheckpointContent:
        guard: dict[str, Any] = {}
        if self._jump_handler is not None:
            losses, saved = self._jump_handler.guard, self._jump_handler.saved
            guard = {"guard": {"jumps": losses.to_json(), "saved": saved.to_json()}}
            if self._stops_at_jumps:
                # An earlier run may have left newer generations than the one that this run resumed from.
                self._store.keep = saved.n_to_keep(max(self._store.generations(), default=0), losses.sound)
        return CheckpointContent(
            model=self.model.arrays(),
            labels=self._labels.arrays() if self._labels is not None else {},
            auxiliary={**self.scores.arrays(), "guard.latest": self._guard.to_save(ended=self._source.finished)},
            metadata={
                **self._description,
                **self.model.identify(),
                "positions": [self._position],
                "counters": {"outcomes": dict(self._outcomes), "reasons": dict(self._reasons)},
                "scores": self.scores.to_json(),
                **guard,
                "transactional": self._is_transactional,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            position=self._position,
            learned=self.model.n,
        )

    def _with_predictions(self, content: CheckpointContent) -> CheckpointContent:
        """Add the end of the flushed predictions, to which a restart truncates them."""
        predictions = self._pipeline.predictions
        position = None if predictions is None else predictions.sink.position()
        if position is None:
            return content
        return content._replace(metadata={**content.metadata, "predictions": position})

    def reconfigure(self, settings: Settings, *, affects_events: bool) -> None:
        """Apply the settings that may change between two batches.

        Args:
            settings: all settings; those that may not change are the same as before.
            affects_events: whether the change affects the outcome of events or what is written about them. Earlier
                events are then saved first, so that they are not processed again by other rules after a crash.

        Raises:
            RetriableCheckpointError: they cannot be saved at present; nothing was changed.
        """
        if affects_events and (self._unsaved or self._writer.busy or self._retries.failing):
            self.checkpoint()
        checkpoint, labels, predictions = settings.checkpoint, settings.labels, self._pipeline.predictions
        self._policy = CheckpointPolicy(checkpoint.every_events, checkpoint.every_seconds)
        self._store.keep = checkpoint.keep
        if self._jump_handler is not None:
            self._jump_handler.saved.keep = checkpoint.keep
        self._retries.patience = checkpoint.retry_seconds
        self._guard.max_ratio = settings.dead_letters.max_ratio
        self._health.patience = settings.metrics.alive_seconds
        self._health.sink_patience = settings.metrics.sink_wait_seconds
        self.model.take_over(settings.model, "reload")
        if self._labels is not None:
            self._labels.limits = Limits(labels.max_pending, labels.expire_events, labels.expire_seconds)
            self._labels.keep_expired = labels.keep_expired
        if predictions is not None:
            interval, gate = settings.predictions.interval, settings.predictions.gate
            self._pipeline.predictions = predictions._replace(interval=interval, gate=gate)
        self._description = {**self._description, "settings": settings.learning_settings()}

    @property
    def _is_transactional(self) -> bool:
        predictions = self._pipeline.predictions
        return predictions is not None and predictions.sink.transactional

    def _report_position(self, position: Position | None) -> None:
        """Commit the position of the last checkpoint where other tools look for it."""
        if position is None or not self._is_prepared:
            return
        if self._pipeline.predictions is not None and self._is_transactional:
            self._pipeline.predictions.sink.commit(position, self._generation)
            self._store.confirm(self._generation)
        else:
            self._source.commit(position, self._generation)

    def _advance(self) -> None:
        batch = self._source.poll(POLL_SECONDS)
        self._health.beat()
        if batch is None:
            if not self._must_defer() and self._take_position():
                self._save()
            return
        started = time.monotonic()
        was_warming_up = self.model.is_warming_up
        drifts = self.model.drifts
        processed = self._process(batch)
        if processed.letters:
            self._dead_letters.write(processed.letters)
        rejected = [letter for letter in processed.letters if letter.reason != EXPIRED]
        if rejected:
            self._report_new_reasons(rejected)
            self._latest_rejection = rejected[-1].detail
        self._check_guard(partial(self._guard.judge, processed.bad), batch.caveat)
        if not self._outcomes["learned"] and not processed.outcomes["learned"] and processed.outcomes["predicted_only"]:
            LOGGER.warning("no record so far has a target, so nothing has been learned; is schema.target right?")
        if was_warming_up and not self.model.is_warming_up:
            # The batch may have gone on.
            n = self.model.learner.context.warmed_up_at
            LOGGER.info("warm-up is over; learning by steps from here (%d events so far)", n)
        self._report_drifts(self.model.drifts - drifts, batch)
        self._position = batch.end
        self._unsaved += len(batch) + batch.skipped
        self._metrics.set_unsaved(self._in_progress + self._unsaved)
        self._processed += len(batch)
        self._outcomes.update(processed.outcomes)
        self._reasons.update(processed.reasons)
        for outcome, events in processed.outcomes.items():
            self._metrics.count(outcome, events)
        for reason, records in processed.reasons.items():
            self._metrics.count_rejected(reason, records)
        self._metrics.observe_batch(time.monotonic() - started)
        if self._jump_handler is not None:
            jump = self._jump_handler.guard.watch(processed.losses)
            if jump is not None:
                self._handle_jump(self._jump_handler, jump, batch)
        self._publish()

    def _require_targets(self) -> None:
        """Fail at the end of a source if a model that knows nothing was given nothing to learn.

        Most likely `schema.target` is misspelt, which a source without a header cannot show. Where labels arrive late,
        they may still come.

        Raises:
            SourceError: the model and its positions stay at the last checkpoint, so that a corrected run reads all.
        """
        without = self._outcomes["predicted_only"]
        if self.model.n or not without or self._labels is not None:
            return
        self._dead_letters.flush()
        schema = self._pipeline.schema
        weighted = f", or a weight above 0 in schema.weight ({shown(schema.weight)})" if schema.weight else ""
        is_saved = self._unsaved < sum(self._outcomes.values())
        raise SourceError(
            f"nothing was learned: no record up to the end of the source, of {without:,} valid, has a value of "
            f"schema.target ({listed([*map(shown, schema.targets)], 'and')}){weighted}; the features are "
            f"{some_of(self.model.fields)}. Correct the settings or the data, and start again"
            f"{' with --fresh' if is_saved else ''}"
        )

    def _check_guard(self, judge: Callable[[], None], caveat: str = "") -> None:
        """Call a check of the guard; if it fails the run, dead letters are made durable first, since they say why.

        Args:
            judge: the check.
            caveat: why the records may be at fault rather than their producer.

        Raises:
            TooManyBadRecords: the model and its positions stay at the last checkpoint.
        """
        try:
            judge()
        except TooManyBadRecords as error:
            self._dead_letters.flush()
            also = f". Besides, {caveat}" if caveat else ""
            raise TooManyBadRecords(f"{error}. The latest: {self._latest_rejection}{also}") from None

    @property
    def _stops_at_jumps(self) -> bool:
        return self._jump_handler is not None and self._jump_handler.stops

    def _handle_jump(self, jump_handler: JumpHandler, jump: Jump, batch: Batch) -> None:
        """React to a jump as `guard.on_jump` says."""
        self._metrics.count_jumps(1)
        message = (
            f"{batch.origin}: the loss has jumped: {jump.loss:.3g} an event lately, {jump.usual:.3g} before, over "
            f"{jump.events} events"
        )
        if not jump_handler.stops:
            LOGGER.warning(
                "%s. The data or their meaning have changed. They are learned, and the usual loss is measured again "
                'from here; guard.on_jump = "stop" would not have learned them',
                message,
            )
            return
        self._try_saving(partial(self._collect_checkpoint, wait=True, sound=jump.sound))
        good = jump_handler.saved.last_good(jump.sound)
        if good is None or good not in self._store.generations():
            self._dead_letters.flush()
            raise ModelJumped(
                f"{message}. There is no checkpoint from before the jump; look at the data, and lower "
                'checkpoint.every_events so that there will be one, or set guard.on_jump = "alarm" to learn them'
            )
        self._dead_letters.flush()
        self._store.set_aside(after=good)
        raise ModelJumped(
            f"{message}. The newest checkpoint is now generation {good}, from before the jump, and the next start "
            'resumes from it. Look at the data first; guard.on_jump = "alarm" would learn them'
        )

    def _process(self, batch: Batch) -> BatchResult:
        if self._labels is None:
            return self._pipeline.process(batch)
        before = self._labels.copy() if self.model.is_warming_up else None
        results: list[BatchResult] = []
        try:
            for part in self._labels.parts(batch):
                # Only the first part can be given up as if the batch had never come.
                with uncancellable() if results else nullcontext():
                    results.append(self._labels.settle(self._pipeline.process(part)))
            return joined_results(results)
        except FitCancelled:
            self._labels = before
            raise

    def _report_new_reasons(self, letters: list[DeadLetter]) -> None:
        """Log the first rejection for each reason; the dead letters have all of them."""
        first_of = {letter.reason: letter for letter in reversed(letters)}
        for reason in first_of.keys() - self._reasons.keys():
            detail = first_of[reason].detail
            LOGGER.warning("rejected a record (%s); further ones are only counted: %s", reason, detail)

    def _report_drifts(self, n_drifts: int, batch: Batch) -> None:
        """Report the drifts found in a batch, with the numbers of the latest."""
        self._metrics.count_drifts(n_drifts)
        drift = self.model.last_drift
        if n_drifts and drift is not None:
            LOGGER.warning(
                "%s: drift: the loss was %.3g an event and is %.3g, found at event %d%s; step sizes and average "
                "restart, the next step size is %.3g",
                batch.origin,
                drift.before,
                drift.after,
                drift.n,
                f" (the last of {n_drifts})" if n_drifts > 1 else "",
                self.model.step_size,
            )

    def _is_first_due(self) -> bool:
        """Whether the first checkpoint is due: it records which files an endless source reads before they rotate."""
        return self._unsaved > 0 and not self._start_is_saved and self._source.progress() is None

    def _must_defer(self) -> bool:
        """Whether a checkpoint would pass over records that may fail the run at the end of the source.

        It waits, so that the next run, after a repair, still reads all of them. While a source is being read this
        lasts for less than a window of records. An endless source, whose records may come slowly, is saved anyway.
        """
        is_ending = self._guard.is_short and self._source.progress() is not None
        return self._guard.fails_at_end and (is_ending or self._source.finished)

    def _is_due(self) -> bool:
        # One at a time: the next waits until the one in progress is durable, and then holds everything learned since.
        if not self._unsaved or self._writer.busy or self._must_defer():
            return False
        if self._is_overdue:
            return True
        if self._unsaved >= self._policy.every_events:
            return True
        # Where checkpoints take long, learning gets half of the time.
        return time.monotonic() - self._resumed_at >= max(self._policy.every_seconds, self._paused)

    def _publish(self) -> None:
        progress = self._source.progress()
        self._metrics.publish(self.model, self.scores, progress)
        self._metrics.set_pending(self._pending)
        if self._jump_handler is not None:
            self._metrics.set_high_windows(self._jump_handler.guard.high)
        if self._on_batch is not None:
            self._on_batch(progress)

    @property
    def _pending(self) -> int:
        return 0 if self._labels is None else self._labels.pending

    def _summary(self, seconds: float) -> Summary:
        counts = {outcome: self._outcomes[outcome] for outcome in OUTCOMES}
        return Summary(
            events=sum(counts.values()) + self._pending,
            **counts,
            pending=self._pending,
            model_events=self.model.n,
            vanished={} if self._pipeline.presence is None else self._pipeline.presence.vanished,
            scores=self.scores.summary(),
            events_per_second=self._processed / max(seconds, 1e-9),
            checkpoint=self._path or (str(self._store.path(self._generation)) if self._generation else ""),
            state_digest=digest_with(self.model, {} if self._labels is None else self._labels.arrays()),
        )
