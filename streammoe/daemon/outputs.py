"""The sinks of a daemon, which a checkpoint makes durable together."""

from __future__ import annotations

from collections.abc import Mapping

from streammoe.pipeline.sink_wait import SinkWait
from streammoe.ports import DeadLetter, DeadLetterSink, Position, PredictionSink


class Outputs:
    """The sinks that a daemon writes to, each of which may keep it waiting.

    `PredictionWriter` writes the predictions; here they are flushed and committed.

    Args:
        letters: takes rejected records.
        predictions: takes predictions, if they are wanted.
        waits: measure how long each takes, by its section of the settings.
    """

    def __init__(
        self, letters: DeadLetterSink, predictions: PredictionSink | None, waits: Mapping[str, SinkWait]
    ) -> None:
        self._letters = letters
        self._predictions = predictions
        self._waits = waits

    @property
    def overdue(self) -> bool:
        """Whether nothing more should be written before a flush."""
        return self._letters.overdue or (self._predictions is not None and self._predictions.overdue)

    @property
    def transactional(self) -> bool:
        """Whether predictions become visible together with the position of the source."""
        return self._predictions is not None and self._predictions.transactional

    def write(self, letters: list[DeadLetter]) -> None:
        """Write dead letters, in order; durable after a flush."""
        if letters:
            with self._waits["dead_letters"].call(is_answer=False):
                self._letters.write(letters)

    def flush_letters(self) -> None:
        """Return once all dead letters are durable."""
        with self._waits["dead_letters"].call():
            self._letters.flush()

    def flush(self) -> None:
        """Return once everything written is durable."""
        self.flush_letters()
        if self._predictions is not None:
            with self._waits["predictions"].call():
                self._predictions.flush()

    def end(self) -> Position | None:
        """Return the end of the flushed predictions, to which a restart can truncate them; None if it cannot."""
        return None if self._predictions is None else self._predictions.position()

    def commit(self, position: Position, generation: int) -> bool:
        """Publish predictions together with a position; return whether they are transactional."""
        if self._predictions is None or not self._predictions.transactional:
            return False
        with self._waits["predictions"].call():
            self._predictions.commit(position, generation)
        return True
