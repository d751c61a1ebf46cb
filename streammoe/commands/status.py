"""Show what a daemon is doing, or how it ended."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import click

from streammoe.console import echo_values, logged, setting_options
from streammoe.daemon.status import MOST_BYTES, WRITE_SECONDS, age_seconds, read
from streammoe.errors import CheckpointError
from streammoe.persistence import STATUS
from streammoe.persistence.lock import is_locked

LIVE = (
    *("alive", "silent_seconds", "cores_used", "connected"),
    *("events_per_second", "next_checkpoint_seconds", "waiting_seconds"),
)
"""What says something only of a daemon that runs."""
PATIENCE = 15 * WRITE_SECONDS
"""Age of the file, in seconds, from which its writer counts as not alive."""


def status_of(folder: Path) -> dict[str, Any]:
    """Return what the daemon of a checkpoint folder is doing, as JSON values.

    Its ``state`` is ``learning``, ``not ready``, with the ``problem``, ``hanging``, ``stopped``, ``failed``, or
    ``killed`` if it has not said how it ended.

    Raises:
        CheckpointError: no daemon has run with this folder.
    """
    found = read(folder)
    if not found:
        raise CheckpointError(f"{folder}: there is no {STATUS} that can be read; give a daemon's checkpoint.dir")
    age, end, problem = age_seconds(found.get("written")), found.get("end"), found.get("problem")
    is_fresh = age is not None and age < PATIENCE
    unwritable = "" if is_fresh or end else why_unwritable(folder)
    if is_locked(folder):
        problem = unwritable or problem
        is_alive = found.get("alive") is True and (is_fresh or bool(unwritable))
        state = ("not ready" if problem else "learning") if is_alive else "hanging"
    else:
        state, problem = "killed" if end is None else "failed" if end.get("error") else "stopped", unwritable
        for name in LIVE:
            found.pop(name, None)
    return {"state": state, "age_seconds": age, **found, "problem": problem}


def why_unwritable(folder: Path) -> str:
    """Return why nothing can be written to a folder, and what was written may be old; empty if that can be."""
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY:
        why = "its file system is read-only"
    elif disk.f_bavail * disk.f_frsize < MOST_BYTES:
        why = f"its disk has {disk.f_bavail * disk.f_frsize:,} bytes left"
    elif not os.stat(folder).st_mode & stat.S_IWUSR:  # noqa: PTH116 - with the line above
        why = "its owner may not write to it"
    else:
        return ""
    return f"nothing can be saved in {folder}: {why}; this may be what was before"


@click.command("status")
@click.argument("place", metavar="DIR_OR_CONFIG", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--check", is_flag=True, help="Exit with 1 unless the daemon is alive, for health checks.")
@setting_options
@logged
def command(place: Path, overrides: tuple[str, ...], as_json: bool, check: bool) -> None:
    """Show what the daemon with this checkpoint folder, or configuration, is doing, or how it ended.

    No Prometheus is needed, nor an open port.

    \b
    Example:
      streammoe status state
    """
    if place.is_file():
        from streammoe.configuration import load_settings

        place = Path(load_settings(place, overrides=overrides).checkpoint.dir)
    status = status_of(place)
    said = {
        name: value for name, value in status.items() if value not in (None, "", [], {}) and name != "latest_rejected"
    }
    echo_values(status if as_json else said, as_json=as_json)
    if check and status["state"] not in {"learning", "not ready"}:
        sys.exit(1)
