"""A model as it was at some position of its stream, for whoever asks while it learns."""

from __future__ import annotations

import copy
import json
import threading
import time
from typing import Any, NamedTuple

from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.schema import Schema


class Snapshot(NamedTuple):
    """A model that does not change any more, and where it stood."""

    model: MixtureOfExperts
    schema: Schema
    positions: list[Any]
    """Where reading went on."""
    digest: str | None
    """Of the newest checkpoint at that time; None before the first one."""
    taken_at: float
    """In monotonic seconds."""

    @property
    def version(self) -> int:
        """Number of events that it has learned."""
        return self.model.n

    @property
    def positions_in_ascii(self) -> str:
        """The positions as JSON that fits in a header, whatever bytes the paths in it have."""
        return json.dumps(self.positions, separators=(",", ":"))


class Published:
    """The latest snapshot; one thread replaces it, and all others may read it."""

    def __init__(self) -> None:
        self.latest: Snapshot | None = None
        """None before the first one."""
        self.is_wanted = True
        """Whether the next one that is offered is taken."""
        self.arrived = threading.Event()

    def offer(self, model: MixtureOfExperts, schema: Schema, position: Any, digest: str | None) -> None:
        """Publish a model as it is now, if that is wanted, and it has learned, moved on or been saved since."""
        before, now = self.latest, (model.n, [position], digest)
        has_moved = before is None or (before.version, before.positions, before.digest) != now
        if self.is_wanted and model.n and has_moved:
            self.is_wanted = False
            self.latest = Snapshot(copy.copy(model), schema, [position], digest, time.monotonic())
            self.arrived.set()
