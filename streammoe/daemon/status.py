"""What a daemon is doing, in a file of its checkpoint folder: for people, health checks and the count of starts."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from streammoe.checked import is_count
from streammoe.daemon.health import Health
from streammoe.persistence import STATUS
from streammoe.persistence.durable import TEMPORARY_SUFFIX
from streammoe.serving.figures import figures_of, to_json
from streammoe.text import time_of_day

if TYPE_CHECKING:  # a health check imports this module often, and would wait for all that learns
    from streammoe.daemon.run_state import RunState

LOGGER = logging.getLogger("streammoe.daemon")
MOST_BYTES = 1 << 24
"""Size from which on a file is none of ours."""
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
        # It is replaced as a whole, and not flushed to disk: nothing depends on it.
        self._path = folder / STATUS
        self._health = health
        self.to_save: Callable[[], tuple[int, float | None]] = lambda: (0, None)
        """Returns the number of unsaved records, and the seconds until they are saved."""
        self._learned: Mapping[str, Any] = {}
        self._began = time.monotonic()
        self._cpu, self._cores_used = (self._began, time.process_time()), 0.0
        before = read(folder)
        killed = {"error": "it was killed, or the machine stopped"} if before else None
        self.starts = before.get("starts", 0) + 1
        """How often a daemon was started with this folder, since the file is there."""
        self._constant = {
            "version": version,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "starts": self.starts,
            "started": time_of_day(),
            "previous_end": before.get("end") or killed,
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
        self._write({"at": time_of_day(), "error": None if error is None else str(error) or type(error).__name__})

    def publish(self, state: RunState) -> None:
        """Take what has been learned."""
        events = {**state.outcomes, "pending": state.pending}
        self._learned = {
            **figures_of(state.model, state.pipeline.scores, events, state.reasons),
            "challenger": None if state.pipeline.challenger is None else state.pipeline.challenger.summary(),
            "latest_rejected": list(state.latest_rejected),
            "columns_missing": state.pipeline.presence.lacking,
            "position": state.position,
        }

    def _run(self) -> None:
        while not self._closing.wait(WRITE_SECONDS):
            self._write(None)

    def _write(self, end: Mapping[str, Any] | None) -> None:
        """Replace the file; where that fails, such as on a full disk, the log says so once."""
        (wall, cpu), self._cpu = self._cpu, (time.monotonic(), time.process_time())
        self._cores_used = (self._cpu[1] - cpu) / max(self._cpu[0] - wall, 1e-9)
        status = self.content(end)
        content = to_json(status, indent=1)
        temporary = self._path.with_name(f".{STATUS}{TEMPORARY_SUFFIX}")
        try:
            temporary.unlink(missing_ok=True)
            with temporary.open("x", encoding="utf-8") as file:  # never through a link, or into a pipe
                file.write(content)
            temporary.replace(self._path)
        except OSError as error:
            if not self._failed:
                LOGGER.warning("%s: cannot be written (%s), so `streammoe status` is out of date", self._path, error)
            self._failed = True
        else:
            self._failed = False

    def content(self, end: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what the daemon is doing, or how it came to its end."""
        health, source, (unsaved, next_save) = self._health, self._health.source(), self.to_save()
        return {
            **self._constant,
            "written": time_of_day(),
            "end": end,
            "problem": health.problem,
            "silent_seconds": health.silent_seconds,
            "alive": health.alive,
            "uptime_seconds": time.monotonic() - self._began,
            "cores_used": self._cores_used,
            "connected": source.connected,
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
            "next_checkpoint_seconds": next_save,
            "unsaved_events": unsaved,
            **self._learned,
        }


def read(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's file; empty if there is none that can be read."""
    with suppress(OSError, ValueError, RecursionError):
        # Neither a pipe nor a link, which others may have put there.
        descriptor = os.open(folder / STATUS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - it is open already
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {}
            found = json.loads(file.read(MOST_BYTES))
        is_sound = isinstance(found, dict) and isinstance(found.get("end"), dict | None)
        if is_sound and is_count(found.get("starts", 0)):
            return dict(found)
    return {}


def age_seconds(since: object) -> float | None:
    """Return the seconds since a time in ISO 8601, or None if it is none with a zone."""
    try:
        began = datetime.fromisoformat(str(since))
        return (datetime.now(UTC) - began).total_seconds()  # noqa: TID251 - for people
    except (ValueError, TypeError):
        return None
