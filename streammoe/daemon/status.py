"""What a daemon is doing, in a file of its checkpoint folder: for people, health checks and the count of starts."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from streammoe.daemon.health import Health
from streammoe.ports import SourceStatus

if TYPE_CHECKING:  # a health check imports this module often, and would wait for all that learns
    from streammoe.daemon.run_state import RunState

LOGGER = logging.getLogger("streammoe.daemon")
NAME = "status.json"
"""Name of the file. It is replaced as a whole, and not flushed to disk: nothing depends on it."""
WRITE_SECONDS = 2.0
"""Time between two versions of the file."""


class Status:
    """The file, which a thread writes from construction to the end of the context, with how that came about.

    Args:
        folder: holds the checkpoints, and is locked.
        version: of this program.
        health: of the daemon.
    """

    def __init__(self, folder: Path, version: str, health: Health) -> None:
        self._path = folder / NAME
        self._health = health
        self._source: Callable[[], SourceStatus] = SourceStatus
        self._next_save: Callable[[], float | None] = lambda: None
        self._learned: Mapping[str, Any] = {}
        self._cpu = (time.monotonic(), time.process_time())
        before = read(folder)
        self.starts = int(before.get("starts", 0)) + 1
        """How often a daemon was started with this folder, since the file is there."""
        self._constant = {
            "version": version,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "starts": self.starts,
            "started": _now(),
            "previous_end": before.get("end"),
        }
        self._failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._write(None)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        self._write({"at": _now(), "error": None if error is None else str(error) or type(error).__name__})

    def follow(self, source: Callable[[], SourceStatus], next_save: Callable[[], float | None]) -> None:
        """Ask these at each look: for the state of the source, and for the seconds until the next checkpoint."""
        self._source, self._next_save = source, next_save

    def publish(self, state: RunState, unsaved: int) -> None:
        """Take what has been learned; the learning loop calls this after each batch."""
        model, drift = state.model, state.model.last_drift
        self._learned = {
            "events": {**state.outcomes, "pending": state.pending},
            "rejected": dict(state.reasons),
            "model_events": model.n,
            "unsaved_events": unsaved,
            "scores": state.pipeline.scores.summary(),
            "predicts": max(model.member_weights.items(), key=lambda item: item[1], default=("warm-up", 1.0))[0],
            "member_weights": model.member_weights,
            "drifts": model.drifts,
            "last_drift": drift and drift._asdict(),
            "columns_missing": [] if state.pipeline.presence is None else state.pipeline.presence.lacking,
            "position": state.position,
        }

    def _run(self) -> None:
        while not self._closing.wait(WRITE_SECONDS):
            self._write(None)

    def _write(self, end: Mapping[str, Any] | None) -> None:
        """Replace the file; where that fails, such as on a full disk, the log says so once."""
        content = json.dumps(self._content(end), indent=1, default=str)
        temporary = self._path.with_name(f".{NAME}.tmp")
        try:
            temporary.write_text(content, encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            if not self._failed:
                LOGGER.warning("%s: cannot be written (%s), so `streammoe status` is out of date", self._path, error)
            self._failed = True
        else:
            self._failed = False

    def _content(self, end: Mapping[str, Any] | None) -> dict[str, Any]:
        health, source = self._health, self._source()
        (wall, cpu), self._cpu = self._cpu, (time.monotonic(), time.process_time())
        return {
            **self._constant,
            "written": _now(),
            "end": end,
            "problem": health.problem,
            "silent_seconds": health.silent_seconds,
            "alive": health.alive,
            "cores_used": (self._cpu[1] - cpu) / max(self._cpu[0] - wall, 1e-9),
            "behind_seconds": source.behind,
            "lag": sum(source.lags.values()),
            "partitions": {
                f"{tp.topic}/{tp.partition}": {"offset": offset, "lag": source.lags.get(tp)}
                for tp, offset in source.positions.items()
            },
            "stalled": {f"{tp.topic}/{tp.partition}": reason for tp, reason in source.stalled.items()},
            "incidents": {event: times for event, times in source.counters.items() if times},
            "waiting_seconds": {section: wait.seconds for section, wait in health.waits.items() if wait.seconds},
            "checkpoint_age_seconds": time.monotonic() - health.saved_at,
            "next_checkpoint_seconds": self._next_save(),
            **self._learned,
        }


def read(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's file; empty if there is none that can be read."""
    with suppress(OSError, ValueError):
        found = json.loads((folder / NAME).read_bytes())
        if isinstance(found, dict) and isinstance(found.get("starts", 0), int):
            return found
    return {}


def age_seconds(since: object, now: datetime | None = None) -> float | None:
    """Return the seconds since a time in ISO 8601, or None if it is none with a zone."""
    try:
        began = datetime.fromisoformat(str(since))
        return ((now or datetime.now(UTC)) - began).total_seconds()  # noqa: TID251 - for people
    except (ValueError, TypeError):
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")  # noqa: TID251 - for people
