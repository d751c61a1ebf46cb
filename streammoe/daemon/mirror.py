"""A mirror of the newest checkpoint in another place, kept while the daemon runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import suppress
from datetime import datetime

from streammoe.daemon.checkpoints import Checkpoints
from streammoe.daemon.metrics import Metrics
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore
from streammoe.persistence.backup import Target, back_up

LOGGER = logging.getLogger("streammoe.mirror")
LOOK_SECONDS = 1.0
CLOSE_SECONDS = 5.0
"""How long an end waits for the last checkpoint to be copied."""
QUIET_SECONDS = 600.0
"""How long after a warning failures are only counted."""


class Mirror:
    """A thread that copies the newest checkpoint to where the settings say at present; learning never waits for it."""

    def __init__(self, store: CheckpointStore, checkpoints: Checkpoints, metrics: Metrics) -> None:
        self._store, self._checkpoints = store, checkpoints
        self._failures = metrics.counter("streammoe_mirror_failures_total")
        self._taken_at = time.time()  # noqa: TID251 - that of a checkpoint of an earlier process is known by it alone
        self._tried_at = self._warned_at = -math.inf
        self._mirrored: object = None
        """What was seen of the folder before its newest checkpoint was copied, and where to."""
        self._has_failed = False
        if checkpoints.settings.mirror:
            with suppress(CheckpointError):  # what is not installed is said at the start; all else may pass
                Target(checkpoints.settings.mirror)
        metrics.gauge("streammoe_mirror_age_seconds").set_function(self._age)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy the last checkpoint, or say that it could not be copied in time."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        if self._has_failed or self._thread.is_alive():
            LOGGER.warning("checkpoint.mirror: the last checkpoint was not copied there; `streammoe backup` does that")

    def _age(self) -> float:
        is_set = self._checkpoints.settings.mirror
        return time.time() - self._taken_at if is_set else math.nan  # noqa: TID251 - see above

    def _run(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            if time.monotonic() - self._tried_at >= self._checkpoints.settings.mirror_every_seconds:
                self._copy()
        self._copy()

    def _copy(self) -> None:
        settings, self._tried_at = self._checkpoints.settings, time.monotonic()
        try:
            seen = settings.mirror, self._store.generations()[-1:], self._store.confirmed
            if settings.mirror and seen != self._mirrored:
                target = Target(settings.mirror)
                if (copied := back_up(self._store, target)) is not None:
                    self._taken_at = datetime.fromisoformat(copied["created"]).timestamp()
                    target.prune(settings.keep)
                    self._mirrored = seen
            self._has_failed, self._warned_at = False, -math.inf
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop learning
            self._has_failed = True
            self._failures.inc()
            if self._tried_at >= self._warned_at + QUIET_SECONDS:
                self._warned_at = self._tried_at
                LOGGER.warning("checkpoint.mirror: %s. Learning goes on; further failures are counted", error)
