"""SIGHUP: the settings are read again, and those that may change are taken between two batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from streammoe.daemon.metrics import REFUSED
from streammoe.daemon.signals import HangupFlag
from streammoe.errors import RetriableCheckpointError, StreammoeError
from streammoe.settings import Settings, change_policy

LOGGER = logging.getLogger("streammoe.reload")

JUDGING = ("labels", "model", "predictions")
"""Sections whose settings say what becomes of an event, or what is written of it."""


class Reconfigurable(Protocol):
    """What takes other settings while it runs."""

    def reconfigure(self, settings: Settings, *, judging: bool) -> None:
        """Take those settings that may change; with `judging`, what came before is made safe from the new ones.

        Raises:
            RetriableCheckpointError: that cannot be done for now; nothing was changed.
        """
        ...


class Reload:
    """Reads the settings again when that is asked for, and has all of them taken, or none.

    Args:
        flag: set by SIGHUP.
        settings: in force.
        load: reads and checks them as at the start: flag over environment over file.
        file: that one.
    """

    def __init__(self, flag: HangupFlag, settings: Settings, load: Callable[[], Settings], file: Path) -> None:
        self._flag = flag
        self._settings = settings
        self._load = load
        self._file = file

    @property
    def requested(self) -> bool:
        """Whether SIGHUP has come since the last time."""
        return self._flag.requested

    def carry_out(self, daemon: Reconfigurable) -> str:
        """Read the settings, and hand them to the daemon; one of `metrics.RELOAD_OUTCOMES`."""
        self._flag.requested = False
        if self._file.exists() and not self._file.is_file():  # a pipe would be waited for, with all of the learning
            return _refused(f"{self._file}: is no regular file, so it cannot be read again; restart")
        try:
            new = self._load()
        except (StreammoeError, OSError) as error:
            return _refused(str(error))
        before, after = _flat(self._settings), _flat(new)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        fixed = [name for name in changed if name not in reloadable(new)]
        if fixed:
            return _refused(f"{', '.join(fixed)} cannot change while the daemon runs; change that back, or restart")
        if not changed:
            LOGGER.info("SIGHUP: the settings are what they were")
            return "unchanged"
        try:
            daemon.reconfigure(new, judging=any(name.partition(".")[0] in JUDGING for name in changed))
        except RetriableCheckpointError as error:
            return _refused(f"a checkpoint has to come before them. {error}; then send SIGHUP again")
        self._settings = new
        said = ", ".join(f"{name} = {after.get(name)!r} (was {before.get(name)!r})" for name in changed)
        LOGGER.info("SIGHUP: from now on %s", said)
        return "applied"


def _refused(why: str) -> str:
    for line in why.splitlines():
        LOGGER.error("SIGHUP: all settings stay as they were: %s", line)
    return REFUSED


def reloadable(settings: Settings) -> set[str]:
    """Return the settings that may change while the daemon runs."""
    sections = _sections(settings).items()
    return {
        f"{section}.{name}"
        for section, table in sections
        for name in type(table).model_fields
        if change_policy(section, type(table), name) == "reload"
    }


def _flat(settings: Settings) -> dict[str, object]:
    """Every setting by its name."""
    return {f"{name}.{field}": value for name, section in _sections(settings).items() for field, value in section}


def _sections(settings: Settings) -> dict[str, BaseModel]:
    one = len(settings.sources) == 1
    sections = {"source" if one else f"source.{i}": source for i, source in enumerate(settings.sources)}
    return sections | {name: getattr(settings, name) for name in settings.__dataclass_fields__ if name != "sources"}
