"""The sinks of a daemon, which a checkpoint makes durable together."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streammoe.ports import DeadLetterSink, PredictionSink


class Outputs(NamedTuple):
    """The sinks that a daemon writes to."""

    letters: DeadLetterSink
    predictions: PredictionSink | None

    @property
    def overdue(self) -> bool:
        """Whether nothing more should be written before a flush."""
        return self.letters.overdue or (self.predictions is not None and self.predictions.overdue)

    @property
    def transactional(self) -> bool:
        """Whether predictions become visible together with the position of the source."""
        return self.predictions is not None and self.predictions.transactional

    def flush(self) -> None:
        """Return once everything written is durable."""
        self.letters.flush()
        if self.predictions is not None:
            self.predictions.flush()

    def begin_flush(self) -> list[Callable[[], None]]:
        """Return functions that make everything written so far durable, in another thread."""
        predictions = [] if self.predictions is None else [self.predictions]
        return [sink.begin_flush() for sink in (self.letters, *predictions)]
