"""Where a model is read from that something else writes: a file, a checkpoint folder, or backups."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from streammoe.checked import restoring
from streammoe.errors import CheckpointError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.persistence import Checkpoint, CheckpointStore, read_checkpoint
from streammoe.persistence.backup import Target
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import saved_scores
from streammoe.serving.figures import figures_of
from streammoe.serving.snapshot import Snapshot
from streammoe.settings import SchemaSettings

RETRY_SECONDS = 60.0
"""Time after which what could not be read is tried again."""


class Place:
    """A saved model, a daemon's checkpoint folder, or a folder or URL to which backups are written.

    Args:
        address: path, or URL of fsspec.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._path, self._seen, self._again_at = Path(address), object(), 0.0
        is_bare = self._path.is_dir() and not CheckpointStore(self._path).generations()
        self._target = Target(address) if "://" in address or (is_bare and Target(address).backups()) else None

    def read(self) -> Checkpoint:
        """Read the newest sound checkpoint; raise `CheckpointError` if there is none."""
        if self._target is not None:
            return self._target.latest()[1]
        return read_checkpoint(self._path)

    def read_if_new(self) -> Checkpoint | None:
        """Read it if something was written since the last call, else return None.

        What cannot be read raises `CheckpointError` once, and is tried again when it has changed, or after a minute.
        """
        try:
            seen = self._newest()
        except CheckpointError:
            self._again_at = 0.0  # read it as soon as it can be listed
            raise
        if seen == self._seen and time.monotonic() < self._again_at:
            return None
        self._seen, self._again_at = seen, time.monotonic() + RETRY_SECONDS
        checkpoint = self.read()
        self._again_at = math.inf
        return checkpoint

    def _newest(self) -> object:
        """Return what differs once something new is there."""
        if self._target is not None:
            return self._target.backups()[-1:]
        path, store = self._path, CheckpointStore(self._path)
        if path.is_dir():
            path = next(map(store.path, reversed(store.generations())), path)
        with suppress(OSError):
            status = path.stat()
            return path, status.st_ino, status.st_mtime_ns, status.st_size
        return None

    def snapshot_of(self, checkpoint: Checkpoint) -> Snapshot:
        """Return what a checkpoint predicts by; raise `CheckpointError` if it is not valid."""
        model, metadata = model_of(checkpoint, self.address), checkpoint.metadata
        with restoring(self.address):
            if settings := metadata.get("settings"):
                lags = model.options.given_lags
                section = SchemaSettings.model_validate(settings["schema"])
                schema = Schema.of(section, () if lags is None else lags.inputs, settings["labels"]["key"])
            else:  # saved in Python
                schema = Schema(tuple(map(str, model.output_names)) if len(model.output_names) > 1 else ("y",))
            positions, digest = list(metadata.get("positions", [])), metadata.get("state_digest")
        return Snapshot(model, schema, positions, digest, time.monotonic())

    def figures_of(self, checkpoint: Checkpoint, model: MixtureOfExperts) -> dict[str, Any]:
        """Return what a checkpoint says of its model and stream; raise `CheckpointError` if it is not valid."""
        metadata = checkpoint.metadata
        with restoring(self.address):
            counters = metadata.get("counters", {"outcomes": {"learned": model.n}, "reasons": {}})
            found = figures_of(model, saved_scores(checkpoint), counters["outcomes"], counters["reasons"])
        return {**found, "created": metadata.get("created"), "position": metadata.get("positions", [])}
