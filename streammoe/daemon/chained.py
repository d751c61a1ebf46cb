"""Several sources read one after the other, such as files with history and then the topic that continues it."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Sequence
from dataclasses import replace

from streammoe.errors import ConfigError, SourceError
from streammoe.ports import CHAINED, Batch, Position, Source, SourceStatus, chained


class ChainedSource(Source):
    """Sources, each read to its end before the next one; the last one may be endless.

    All of them are opened at the start, so that a topic that is read from its latest offset is read from the offset
    before the files were read.

    Args:
        sources: at least one; all but the last must have an end.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self._positions: list[Position | None] = [None] * len(sources)
        self._prepared = 0

    def seek(self, position: Position | None) -> None:
        """Go to a position of this class, or of the first source alone."""
        if position is not None:
            known = position.get("positions") if position.get("kind") == CHAINED else [position]
            if not (isinstance(known, list) and all(isinstance(own, dict | None) for own in known)):
                raise SourceError(
                    "the checkpoint's position must hold one for each source, and does not; roll back to an "
                    "earlier checkpoint, or start with an empty checkpoint folder"
                )
            if len(known) > len(self._sources):
                raise SourceError(
                    f"the checkpoint holds positions of {len(known)} sources, and there are {len(self._sources)} now; "
                    "name all of them again as [[source]], in the same order, or start again with --fresh"
                )
            self._positions[: len(known)] = known
        for source, own in zip(self._sources, self._positions, strict=True):
            source.seek(own)

    def prepare(self, timeout: float) -> bool:
        while self._prepared < len(self._sources):
            source = self._sources[self._prepared]
            if not source.prepare(timeout):
                return False
            if self._prepared < len(self._sources) - 1 and source.progress() is None:
                raise ConfigError(
                    f"source.{self._prepared}: never ends, so that sources after it would never be read; put it last"
                )
            self._prepared += 1
        return True

    @property
    def position(self) -> Position | None:
        now_at = [source.position for source in self._sources]
        self._positions = [own if now is None else now for own, now in zip(self._positions, now_at, strict=True)]
        return None if now_at == [None] * len(now_at) else self._joined()

    def poll(self, timeout: float) -> Batch | None:
        for i, source in enumerate(self._sources):
            if not source.finished:
                batch = source.poll(timeout)
                if batch is None:
                    return None
                self._positions[i] = batch.end
                return replace(batch, end=self._joined())
        return None

    @property
    def finished(self) -> bool:
        return all(source.finished for source in self._sources)

    def commit(self, position: Position, generation: int) -> None:
        for source, own in zip(self._sources, position["positions"], strict=True):
            if own is not None:
                source.commit(own, generation)

    def progress(self) -> tuple[int, int] | None:
        """Return the progress of the source that is being read."""
        return next((source for source in self._sources if not source.finished), self._sources[-1]).progress()

    def status(self) -> SourceStatus:
        each = [source.status() for source in self._sources]
        counters: Counter[str] = Counter()
        for status in each:
            counters.update(status.counters)
        return SourceStatus(
            ready=all(status.ready for status in each),
            connected=all(status.connected for status in each),
            refused=next((status.refused for status in each if status.refused), ""),
            positions=ChainMap(*(dict(status.positions) for status in reversed(each))),
            lags=ChainMap(*(dict(status.lags) for status in reversed(each))),
            held_back=ChainMap(*(dict(status.held_back) for status in reversed(each))),
            stalled=[partition for status in each for partition in status.stalled],
            counters=counters,
        )

    def close(self) -> None:
        for source in self._sources:
            source.close()

    def _joined(self) -> Position:
        return chained(self._positions)
