"""A source of files, by path or glob: csv and jsonl, also gzipped or growing, and Parquet."""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Batch, Position, Source, SourceStatus
from streammoe_connectors.files.finite import FiniteFiles
from streammoe_connectors.files.follow import FollowedFiles
from streammoe_connectors.files.listing import expand, is_same_file, matches_pattern
from streammoe_connectors.files.settings import FileSettings

_LOGGER = logging.getLogger("streammoe.source")


class FileSource(Source):
    """A source of whole records from files, in name order.

    `RecordReader` determines where records of csv and jsonl end; a row of a Parquet file is a record.
    """

    Settings = FileSettings
    can_look_ahead = True

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._can_open = True
        self._files = FollowedFiles(settings) if settings.follow else FiniteFiles(settings)

    @staticmethod
    def reads(settings: FileSettings, path: str) -> bool:
        """Whether a source with these settings reads the file at `path`, under whatever name."""
        if matches_pattern(os.path.realpath(settings.path), os.path.realpath(path)):
            return True
        with suppress(SourceError):  # which a start reports
            return any(is_same_file(path, name) for name in expand(settings.path))
        return False

    def seek(self, position: Position | None) -> None:
        self._files.seek(position)

    def poll(self, timeout: float) -> Batch | None:
        try:
            batch = self._files.poll(timeout)
        except RetriableSourceError as error:
            if self._can_open:
                _LOGGER.warning("%s. Reading resumes once it can be opened", error)
            self._can_open = False
            time.sleep(timeout)
            return None
        self._can_open = True
        return batch

    @property
    def finished(self) -> bool:
        return self._files.finished

    def progress(self) -> tuple[int, int] | None:
        return self._files.progress()

    def status(self) -> SourceStatus:
        return SourceStatus(connected=self._can_open)

    def close(self) -> None:
        self._files.close()
