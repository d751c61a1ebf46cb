"""The learning loop: poll, process, now and then checkpoint; one thread, one model, one folder."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from streammoe.errors import SourceError, StreammoeError, TooManyBadRecords
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import CheckpointStore
from streammoe.ports import Batch, DeadLetter, DeadLetterSink, Position, Source
from streammoe.runtime.dead_letter import BadRecordGuard
from streammoe.runtime.health import Health
from streammoe.runtime.joining import LabelJoin, digest_with
from streammoe.runtime.metrics import OUTCOMES, Metrics
from streammoe.runtime.pipeline import Pipeline, Processed
from streammoe.runtime.scores import Scores
from streammoe.runtime.signals import StopFlag

LOGGER = logging.getLogger("streammoe.daemon")
ProgressListener = Callable[[tuple[int, int] | None], None]
"""Told the source's progress after each batch."""
POLL_SECONDS = 0.5
"""Longest wait for the source, so that a stop signal and a due checkpoint never wait longer."""


class CheckpointPolicy(NamedTuple):
    """When a checkpoint is due: after so many events or so many seconds, whichever comes first."""

    every_events: int
    every_seconds: float


class Summary(NamedTuple):
    """What a run did; the events are those since the first start, restarts included."""

    events: int
    learned: int
    predicted_only: int
    rejected: int
    skipped: int
    pending: int
    expired: int
    scores: dict[str, float | None]
    """``rmse``, ``log_loss`` and ``baseline_rmse``, or ``accuracy``, ``log_loss`` and ``baseline_accuracy``."""
    events_per_second: float
    checkpoint: str
    state_digest: str

    def flat(self) -> dict[str, Any]:
        """All of it by name, the scores among the others."""
        found = self._asdict()
        at = list(found).index("scores")
        items = list(found.items())
        return dict([*items[:at], *self.scores.items(), *items[at + 1 :]])


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
        labels: LabelJoin | None = None,
        on_begin: Callable[[], object] | None = None,
        on_batch: ProgressListener | None = None,
    ) -> None:
        self._source = source
        self._labels = labels
        self._pipeline = pipeline
        self._store = store
        self._dead_letters = dead_letters
        self._guard = guard
        self._metrics = metrics
        self._policy = policy
        self._description = description
        self._run = uuid.uuid4().hex[:12]
        self._position = position
        self._generation = generation
        self._health = health
        self._outcomes: Counter[str] = Counter(outcomes)
        self._reasons: Counter[str] = Counter(reasons)
        self._on_begin = on_begin
        """Called once reading can begin, before anything is saved."""
        self._on_batch = on_batch
        self._unsaved = 0
        self._processed = 0
        self._saved_at = time.monotonic()
        self._path = ""
        self._is_prepared = False
        self._begun = position is not None
        """Whether there is a checkpoint that knows where reading began."""
        for outcome in outcomes:
            metrics.count(outcome, outcomes[outcome])
        for reason in reasons:
            metrics.count_rejected(reason, reasons[reason])

    @property
    def model(self) -> MixtureOfExperts:
        """The model as it is now."""
        return self._pipeline.model

    @property
    def scores(self) -> Scores:
        """The prequential scores as they are now."""
        return self._pipeline.scores

    def run(self, stop: StopFlag) -> Summary:
        """Learn until the source is finished or `stop` is requested; save, and say what was done.

        Raises:
            SourceError: reading failed for good; what was learned before has been saved.
            TooManyBadRecords: see `BadRecordGuard`; nothing was saved beyond the last checkpoint.
        """
        started = time.monotonic()
        self._publish()
        self._begin(stop)
        try:
            while not stop.requested and not self._source.finished:
                self._advance()
                if self._is_due():
                    self.checkpoint()
        except SourceError:
            if self._unsaved:
                self.checkpoint()
            raise
        if stop.requested:
            LOGGER.info("asked to stop; saving what was learned")
        if self._source.finished and self._outcomes["rejected"] and not self._outcomes["learned"]:
            LOGGER.warning(
                "nothing was learned: %d records were refused (%s); see the dead letters, mend files or schema, "
                "and begin anew with --fresh",
                self._outcomes["rejected"],
                ", ".join(f"{count} {reason}" for reason, count in self._reasons.items()),
            )
        # Also without new events: a run that ends well always leaves a checkpoint to inspect.
        if self._is_prepared and not self._pin() and (self._unsaved or not self._path):
            self.checkpoint()
        self._health.ready = False
        return self._summary(time.monotonic() - started)

    def _begin(self, stop: StopFlag) -> None:
        """Wait until reading can begin, however long that takes."""
        while not stop.requested and not self._source.prepare(POLL_SECONDS):
            self._look_at_source()
        if stop.requested:
            return
        self._is_prepared = self._health.ready = True
        if self._on_begin is not None:
            self._on_begin()
        if not self._pin():
            self._tell_source()
        self._look_at_source()

    def _pin(self) -> bool:
        """Save where reading stands if no record has told it: a crash must not begin, or go on, elsewhere."""
        position = self._source.position
        if position is None or position == self._position:
            return False
        self._position = position
        self.checkpoint()
        return True

    def checkpoint(self) -> None:
        """Make everything learned so far survive a crash.

        1. Dead letters and predictions are flushed, so that they are durable. 2. State, positions and counters replace
        the checkpoint, durably. 3. The source is told, for the sake of lag tools; or a transaction makes predictions
        and position seen. The order is the guarantee: nothing is ahead of the state.
        """
        started = time.monotonic()
        if not self.scores.is_finite():
            message = (
                "the scores are not finite: the model has predicted numbers without bound, and is not saved; go back "
                "to an earlier checkpoint, or begin anew with --fresh"
            )
            raise StreammoeError(message)
        labels = self._labels.arrays() if self._labels is not None else {}
        self._dead_letters.flush()
        if self._pipeline.predictions is not None:
            self._pipeline.predictions.sink.flush()
        self._generation = self._store.save(
            {**self.model.arrays(), **self.scores.arrays(), **labels, "guard.latest": self._guard.latest},
            {
                **self._description,
                **self.model.describe(),
                "state_digest": digest_with(self.model, labels),
                # Which dead letters it has passed over: what a run did after its last checkpoint, the next one repeats.
                "runs": {**self._description.get("runs", {}), self._run: sum(self._outcomes.values())},
                "positions": [self._position],
                "counters": {"outcomes": dict(self._outcomes), "reasons": dict(self._reasons)},
                "scores": self.scores.to_json(),
                "transactional": self._is_transactional,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
        self._tell_source()
        self._unsaved = 0
        self._begun = True
        self._saved_at = time.monotonic()
        self._path = str(self._store.path(self._generation))
        self._metrics.checkpoint(self._saved_at - started)
        LOGGER.debug("checkpoint %s after %d events", self._path, self.model.n)

    @property
    def _is_transactional(self) -> bool:
        predictions = self._pipeline.predictions
        return predictions is not None and predictions.sink.transactional

    def _tell_source(self) -> None:
        """Mirror the position of the last checkpoint where others look for it."""
        if self._position is None or not self._is_prepared:
            return
        if self._pipeline.predictions is not None and self._is_transactional:
            self._pipeline.predictions.sink.commit(self._position, self._generation)
            self._store.confirm(self._generation)
        else:
            self._source.commit(self._position, self._generation)

    def _look_at_source(self) -> None:
        self._health.beat()
        self._metrics.source(self._source.status())

    def _advance(self) -> None:
        batch = self._source.poll(POLL_SECONDS)
        self._look_at_source()
        if batch is None:
            self._pin()
            return
        started = time.monotonic()
        was_warming_up = self.model.is_warming_up
        processed = self._process(batch)
        if processed.letters:
            events = sum(self._outcomes.values()) + sum(processed.outcomes.values())
            self._dead_letters.write([letter._replace(run=self._run, events=events) for letter in processed.letters])
            self._report_new_reasons(processed.letters)
        try:
            self._guard.judge(processed.bad)
        except TooManyBadRecords as error:
            # The letters say what is wrong with the deploy. The model and its positions stay at the last checkpoint.
            self._dead_letters.flush()
            raise TooManyBadRecords(f"{error}. The latest: {processed.letters[-1].detail}") from None
        if not self._outcomes["learned"] and not processed.outcomes["learned"] and processed.outcomes["predicted_only"]:
            LOGGER.warning("no record so far holds the target, so nothing has been learned; is schema.target right?")
        if was_warming_up and not self.model.is_warming_up:
            LOGGER.info("warm-up is over; learning by steps from here (%d events so far)", self.model.n)
        self._position = batch.end
        self._unsaved += len(batch) + batch.skipped
        self._processed += len(batch)
        self._outcomes.update(processed.outcomes)
        self._reasons.update(processed.reasons)
        for outcome, events in processed.outcomes.items():
            self._metrics.count(outcome, events)
        for reason, records in processed.reasons.items():
            self._metrics.count_rejected(reason, records)
        self._metrics.batch(time.monotonic() - started)
        self._publish()

    def _process(self, batch: Batch) -> Processed:
        if self._labels is None:
            return self._pipeline.process(batch)
        return self._labels.settle(self._pipeline.process(self._labels.join(batch)))

    def _report_new_reasons(self, letters: list[DeadLetter]) -> None:
        """Log the first refusal of each kind: the dead letters have them all, and a flood helps nobody."""
        first_of = {letter.reason: letter for letter in reversed(letters)}
        for reason in first_of.keys() - self._reasons.keys():
            detail = first_of[reason].detail
            LOGGER.warning("refused a record (%s), from now on such ones are only counted: %s", reason, detail)

    def _is_due(self) -> bool:
        if not self._unsaved:
            return False
        if not self._begun and self._source.progress() is None:
            # Only a checkpoint knows which files an endless source was reading, should they be rotated away.
            return True
        return (
            self._unsaved >= self._policy.every_events
            or time.monotonic() - self._saved_at >= self._policy.every_seconds
        )

    def _publish(self) -> None:
        progress = self._source.progress()
        self._metrics.publish(self.model, self.scores, progress)
        self._metrics.pending(self._pending)
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
            scores=self.scores.summary(),
            events_per_second=self._processed / max(seconds, 1e-9),
            checkpoint=self._path or (str(self._store.path(self._generation)) if self._generation else ""),
            state_digest=digest_with(self.model, {} if self._labels is None else self._labels.arrays()),
        )
