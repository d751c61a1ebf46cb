"""Reload on SIGHUP: settings are read again, and those that may change are applied between two batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from streammoe.daemon.metrics import REFUSED
from streammoe.daemon.signals import HangupFlag
from streammoe.errors import RetriableCheckpointError, StreammoeError
from streammoe.settings import LEARNING, Settings, change_policy, section_name

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
        """The current settings."""
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
        before, after = _flat(self.settings), _flat(new)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        # Another kind of a section has other settings, which need not be listed.
        kinds = {name.removesuffix("kind") for name in changed if name.endswith(".kind")}
        listed = [name for name in changed if name.endswith(".kind") or not name.startswith(tuple(kinds))]
        free = reloadable(new)
        fixed = [name for name in listed if name not in free]
        if fixed:
            at_restart = [name for name in fixed if may_change_at_restart(name, self.settings, new)]
            never = [name for name in fixed if name not in at_restart]
            problems = {
                "cannot change while the daemon runs; change it back, or restart the daemon": at_restart,
                "cannot change over a checkpoint, not even at a restart; change it back, or start over with --fresh or "
                "in another checkpoint.dir": never,
            }
            return _rejected("\n".join(f"{', '.join(names)} {why}" for why, names in problems.items() if names))
        if not changed:
            LOGGER.info("SIGHUP: the settings have not changed")
            return "unchanged"
        try:
            reconfigure(new, affects_events=any(name.partition(".")[0] in EVENT_SECTIONS for name in changed))
        except RetriableCheckpointError as error:
            return _rejected(f"a checkpoint must be saved before they change. {error}; then send SIGHUP again")
        self.settings = new
        changes = ", ".join(f"{name} = {after.get(name)!r} (was {before.get(name)!r})" for name in changed)
        LOGGER.info("SIGHUP: applied %s", changes)
        return "applied"


def _rejected(why: str) -> str:
    for line in why.splitlines():
        LOGGER.error("SIGHUP: no setting was changed: %s", line)
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


def may_change_at_restart(name: str, before: Settings, after: Settings) -> bool:
    """Return whether a daemon with a checkpoint would start with the new value of a setting."""
    section, _, field = name.rpartition(".")
    was, now = _sections(before).get(section), _sections(after).get(section)
    if section.partition(".")[0] == "source":
        # Another kind of source does not know the position in a checkpoint.
        return field != "kind" or was is None or now is None
    if was is None or now is None or type(was) is not type(now):
        return section not in LEARNING
    policy = change_policy(section, type(now), field)
    return policy in {"reload", "restart"} or (policy == "rise" and getattr(now, field) > getattr(was, field))


def _flat(settings: Settings) -> dict[str, object]:
    """Return every setting by its name."""
    return {f"{name}.{field}": value for name, section in _sections(settings).items() for field, value in section}


def _sections(settings: Settings) -> dict[str, BaseModel]:
    one = len(settings.sources) == 1
    sections = {"source" if one else f"source.{i}": source for i, source in enumerate(settings.sources)}
    others = [name for name in settings.__dataclass_fields__ if name not in {"sources", "given"}]
    return sections | {section_name(name): getattr(settings, name) for name in others}
