"""What a daemon has learned and counted, and where it reads on: all that a checkpoint holds."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from streammoe.daemon.challenger import saved
from streammoe.daemon.guards import BadRecordGuard, JumpGuard
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import Checkpoint
from streammoe.pipeline.label_join import LabelJoin
from streammoe.pipeline.pipeline import BatchResult, Pipeline
from streammoe.ports import Batch, Position
from streammoe.serving.figures import MOST_REJECTED, rejection
from streammoe.settings import Settings
from streammoe.text import cut, time_of_day
from streammoe.types import AnyArray

MOST_NOTED = 100
"""Number of entries of the history, the latest ones, that a checkpoint holds."""


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[object]]:
    """Return the settings that differ, each with its value before and now; None where it was not there."""
    return {
        f"{section}.{name}": [was, value]
        for section in {**before, **now}
        for name in {**before.get(section, {}), **now.get(section, {})}
        if (was := before.get(section, {}).get(name)) != (value := now.get(section, {}).get(name))
    }


@dataclass
class RunState:
    """The state of a run; `streammoe.daemon.resume` restores it."""

    pipeline: Pipeline
    labels: LabelJoin | None
    bad_records: BadRecordGuard
    jumps: JumpGuard | None
    description: Mapping[str, Any]
    """Version and settings, for the metadata."""
    position: Position | None = None
    """Where reading resumes."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Events by outcome, since the first start."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Rejected records by reason, since the first start."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """What has changed the model or how it learns, the latest `MOST_NOTED` entries; see `note`."""
    digest: str | None = None
    """Of what is learned, in the newest checkpoint."""
    latest_rejected: deque[dict[str, Any]] = field(default_factory=partial(deque, maxlen=MOST_REJECTED))
    """What is shown of the latest rejected records, of this run."""

    @property
    def model(self) -> MixtureOfExperts:
        """The current model."""
        return self.pipeline.model

    @property
    def pending(self) -> int:
        """Number of events that wait for their label or features."""
        return 0 if self.labels is None else self.labels.pending

    def note(self, event: str, **details: object) -> None:
        """Add an entry to the history.

        It says what happened, when, after how many events and in which version; with the digests of the last checkpoint
        before and the first one after.
        """
        entry = {"time": time_of_day(), "event": event, "n": self.model.n, "version": self.description["version"]}
        entry |= {"revision": self.description["revision"], "before": self.digest, "after": None}
        self.history = [*self.history, {**entry, **details}][-MOST_NOTED:]

    def noted(self, digest: str) -> list[dict[str, Any]]:
        """Return the history for a checkpoint with this digest."""
        self.digest = digest
        self.history = [entry if entry["after"] else {**entry, "after": digest} for entry in self.history]
        return self.history

    def process(self, batch: Batch) -> BatchResult:
        """Learn a batch; `count` counts it.

        Raises:
            FitCancelled: a stop was requested during a fit; everything is as it was before the batch.
        """
        processed = self.pipeline.process(batch) if self.labels is None else self.labels.process(batch, self.pipeline)
        challenger = self.pipeline.challenger
        if challenger is not None and challenger.failure:
            self.pipeline.challenger = None
            self.note("challenger failed", error=cut(challenger.failure))
        return processed

    def count(self, batch: Batch, processed: BatchResult) -> None:
        """Count a batch that was processed, and resume behind it."""
        self.position = batch.end
        self.outcomes.update(processed.outcomes)
        self.reasons.update(processed.reasons)
        self.latest_rejected.extend(map(rejection, processed.letters[-MOST_REJECTED:]))

    def arrays(self) -> dict[str, AnyArray]:
        """Return what influences learning: the arrays of the model, and those of the records that wait."""
        return {**self.model.arrays(), **({} if self.labels is None else self.labels.arrays())}

    def content(self, *, ended: bool) -> Checkpoint:
        """Return the content of a checkpoint, whose arrays change as learning goes on.

        Args:
            ended: whether the source has ended.
        """
        scores, jumps = self.pipeline.scores, self.jumps
        challenger = saved(self.pipeline.challenger)
        return Checkpoint(
            {
                **self.arrays(),
                **scores.arrays(),
                "guard.latest": self.bad_records.to_save(ended=ended),
                **challenger.arrays,
            },
            {
                **self.description,
                **self.model.identify(),
                **challenger.metadata,
                "positions": [self.position],
                "counters": {"outcomes": dict(self.outcomes), "reasons": dict(self.reasons)},
                "scores": scores.to_json(),
                **({} if jumps is None else {"guard": jumps.to_json()}),
                "created": time_of_day(),
            },
        )

    def apply(self, settings: Settings) -> None:
        """Apply the settings that may change between two batches; the others are the same as before."""
        settings = settings.exchanged() if "promoted" in self.description else settings
        self.bad_records.max_ratio = settings.dead_letters.max_ratio
        self.model.take_over(settings.model, "reload")
        if self.pipeline.challenger is not None and settings.challenger is not None:
            self.pipeline.challenger.model.take_over(settings.challenger, "reload")
        predictions = self.pipeline.predictions
        if self.labels is not None:
            self.labels.settings = settings.labels
        if predictions is not None:
            interval, gate = settings.predictions.interval, settings.predictions.gate
            self.pipeline.predictions = replace(predictions, interval=interval, gate=gate)
        before, now = self.description["settings"], settings.learning_settings()
        self.description = {**self.description, "settings": now}
        self.note("reloaded", settings=changed(before, now))
