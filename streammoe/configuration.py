"""Load settings against the connectors that are installed; opens nothing else."""

from __future__ import annotations

import fnmatch
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from streammoe import settings as settings_module
from streammoe.errors import ConfigError
from streammoe.persistence import CONFIRMED, LOCK_NAME
from streammoe.settings import Kinds, Settings

LOGGER = logging.getLogger("streammoe.assembly")
CONNECTORS = "streammoe.connectors"
PREDICTIONS = "streammoe.predictions"
DEAD_LETTERS = "streammoe.dead_letters"
WRITERS = "streammoe.writers"
"""Groups of entry points. Classes of the last two are called with their own settings and with those of the sources.
A ``check`` of theirs takes the same and the settings of checkpoints, and raises `ConfigError` for what does not go
together."""


@cache
def connectors(group: str = CONNECTORS) -> Mapping[str, Any]:
    """The installed connectors by the ``kind`` that selects them: sources, or those of another group.

    They are looked up once in a process: to look through all installed packages takes longer than to read settings.
    """
    return {entry.name: entry.load() for entry in entry_points(group=group)}


def _kinds() -> Kinds:
    """What each installed connector wants to be told."""
    return Kinds(
        *(
            {kind: connector.Settings for kind, connector in connectors(group).items()}
            for group in (CONNECTORS, PREDICTIONS, DEAD_LETTERS)
        )
    )


def load_settings(
    path: str | Path, *, overrides: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> Settings:
    """Parse a configuration against the installed connectors; opens nothing else.

    Raises:
        ConfigError: with every problem at once.
    """
    settings = settings_module.load(path, kinds=_kinds(), environment=environment, overrides=overrides)
    _refuse_own_output(settings, path)
    if settings.guard.on_jump == "rollback" and getattr(settings.predictions, "transactional", False):
        rule = 'must not be "rollback" where predictions are transactional: what was seen cannot be taken back'
        raise ConfigError(f'guard.on_jump: {rule}; set "stop", or predictions.transactional = false')
    for group, section in ((PREDICTIONS, settings.predictions), (DEAD_LETTERS, settings.dead_letters)):
        check = getattr(connectors(group).get(section.kind), "check", None)
        if check is not None:
            check(section, settings.sources, settings.checkpoint)
    return settings


def _refuse_own_output(settings: Settings, config: str | Path) -> None:
    """Refuse files that would be read and written, or written as two things: each would spoil the other.

    Raises:
        ConfigError: with each setting that names such a file.
    """
    sections = {"dead_letters.path": settings.dead_letters, "predictions.path": settings.predictions}
    written = {setting: getattr(section, "path", None) for setting, section in sections.items()}
    known = connectors()
    problems = [
        f"{setting}: is {path!r}, which source.path {getattr(source, 'path', None)!r} reads; name another file"
        for source in settings.sources
        if hasattr(known[source.kind], "reads")  # type: ignore[attr-defined]
        for setting, path in written.items()
        if path is not None and known[source.kind].reads(source, path)  # type: ignore[attr-defined]
    ]
    folder = os.path.realpath(settings.checkpoint.dir)
    for setting, path in written.items():
        if path is None:
            continue
        place, name = os.path.split(os.path.realpath(path))
        if place == folder and (name in {LOCK_NAME, CONFIRMED} or fnmatch.fnmatch(name, "*checkpoint-*")):
            problems.append(f"{setting}: is {path!r}, a name that checkpoint.dir keeps for itself; name another file")
        if os.path.realpath(path) == os.path.realpath(config):
            problems.append(f"{setting}: is {path!r}, the configuration itself; name another file")
    if None not in written.values() and len(set(map(os.path.realpath, filter(None, written.values())))) == 1:
        problems.append(f"predictions.path: is {written['predictions.path']!r}, as dead_letters.path is; name another")
    if problems:
        raise ConfigError(*problems)


def settings_from(tables: Mapping[str, Any], name: str, *, overrides: Sequence[str] = ()) -> Settings:
    """The same of tables that are in no file; messages call them `name`.

    Raises:
        ConfigError: with every problem at once.
    """
    return settings_module.from_tables(tables, name, kinds=_kinds(), overrides=overrides)
