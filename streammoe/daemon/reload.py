"""Reload on SIGHUP: settings are read again, and those that may change are applied between two batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from streammoe.daemon.metrics import REFUSED
from streammoe.daemon.run_state import changed
from streammoe.daemon.signals import HangupFlag
from streammoe.errors import StreammoeError
from streammoe.secrets import masked
from streammoe.settings import Settings, change_policy, section_name

LOGGER = logging.getLogger("streammoe.reload")

EVENT_SECTIONS = ("labels", "model", "predictions")
"""Sections whose settings determine what happens to an event, or what is written about it."""


class Reload:
    """Reload of the settings on request: all changes are applied, or none.

    Args:
        flag: set by SIGHUP.
        settings: the current settings.
        load: reads and validates settings as at the start: flag over environment over file.
        file: the config file.
    """

    def __init__(self, flag: HangupFlag, settings: Settings, load: Callable[[], Settings], file: Path) -> None:
        self._flag = flag
        self.settings = settings
        self._load = load
        self._file = file

    @property
    def requested(self) -> bool:
        """Whether SIGHUP was received since the last reload."""
        return self._flag.requested

    def apply(self, reconfigure: Callable[..., None]) -> str:
        """Read the settings and apply them by `Daemon.reconfigure`; return one of `metrics.RELOAD_OUTCOMES`."""
        self._flag.requested = False
        if self._file.exists() and not self._file.is_file():  # reading from a pipe would block learning
            return _rejected(f"{self._file}: is not a regular file, so it cannot be read again; restart")
        try:
            new = self._load()
        except (StreammoeError, OSError) as error:
            return _rejected(str(error))
        before, after = (
            {name: dict(section) for name, section in _sections(each).items()} for each in (self.settings, new)
        )
        found = dict(sorted(changed(before, after).items()))
        # Another kind of a section has other settings, which need not be listed.
        kinds = {name.removesuffix("kind") for name in found if name.endswith(".kind")}
        listed = [name for name in found if name.endswith(".kind") or not name.startswith(tuple(kinds))]
        if fixed := [name for name in listed if name not in reloadable(new)]:
            # One name is enough of a section that comes or goes.
            both = before.keys() & after.keys()
            names = (name if section in both else f"[{section}]" for name in fixed for section in name.split(".")[:1])
            return _rejected(
                f"{', '.join(dict.fromkeys(names))} cannot change while the daemon runs; change it back, or "
                "restart the daemon, which says what cannot change over a checkpoint either"
            )
        if not found:
            LOGGER.info("SIGHUP: the settings have not changed")
            return "unchanged"
        reconfigure(new, affects_events=any(name.partition(".")[0] in EVENT_SECTIONS for name in found))
        self.settings = new
        changes = ", ".join(f"{name} = {now!r} (was {was!r})" for name, (was, now) in found.items())
        LOGGER.info("SIGHUP: applied %s", masked(changes), extra={"event": "reloaded"})
        return "applied"


def _rejected(why: str) -> str:
    for line in why.splitlines():
        LOGGER.error("SIGHUP: no setting was changed: %s", line, extra={"event": "reload_refused"})
    return REFUSED


def reloadable(settings: Settings) -> set[str]:
    """Return the settings that may change while the daemon runs."""
    return {
        f"{section}.{name}"
        for section, table in _sections(settings).items()
        for name in type(table).model_fields
        if change_policy(section, type(table), name) == "reload"
    }


def _sections(settings: Settings) -> dict[str, BaseModel]:
    sections = {
        section_name(name): getattr(settings, name) for name in settings.__dataclass_fields__ if name != "given"
    }
    return {name: section for name, section in sections.items() if section is not None}
