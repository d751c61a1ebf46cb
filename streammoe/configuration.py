"""Load settings and validate them against the installed connectors; open nothing else."""

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
"""Entry-point groups. Classes of `PREDICTIONS` and `DEAD_LETTERS` are called with their own settings and those of the
sources. Their optional ``check`` also takes the settings of checkpoints, and raises `ConfigError` for settings that
contradict each other."""


@cache
def connectors(group: str = CONNECTORS) -> Mapping[str, Any]:
    """Return the installed connectors of a group by the ``kind`` that selects them; by default sources.

    The result is cached: searching all installed packages takes longer than reading settings.
    """
    return {entry.name: entry.load() for entry in entry_points(group=group)}


def _kinds() -> Kinds:
    """Return the settings class of each installed connector."""
    return Kinds(
        *(
            {kind: connector.Settings for kind, connector in connectors(group).items()}
            for group in (CONNECTORS, PREDICTIONS, DEAD_LETTERS)
        )
    )


def load_settings(
    path: str | Path, *, overrides: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> Settings:
    """Parse a configuration and validate it against the installed connectors; open nothing else.

    Raises:
        ConfigError: with every problem at once.
    """
    settings = settings_module.load(path, kinds=_kinds(), environment=environment, overrides=overrides)
    _check_outputs(settings, path)
    if settings.guard.on_jump == "rollback" and getattr(settings.predictions, "transactional", False):
        rule = 'must not be "rollback" with transactional predictions, which cannot be withdrawn'
        raise ConfigError(f'guard.on_jump: {rule}; set "stop", or predictions.transactional = false')
    for group, section in ((PREDICTIONS, settings.predictions), (DEAD_LETTERS, settings.dead_letters)):
        check = getattr(connectors(group).get(section.kind), "check", None)
        if check is not None:
            check(section, settings.sources, settings.checkpoint)
    return settings


def _check_outputs(settings: Settings, config: str | Path) -> None:
    """Reject output files that are also read, or written twice.

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
        parent, name = os.path.split(os.path.realpath(path))
        if parent == folder and (name in {LOCK_NAME, CONFIRMED} or fnmatch.fnmatch(name, "*checkpoint-*")):
            problems.append(f"{setting}: is {path!r}, a name that is reserved in checkpoint.dir; name another file")
        if os.path.realpath(path) == os.path.realpath(config):
            problems.append(f"{setting}: is {path!r}, the configuration itself; name another file")
    if None not in written.values() and len(set(map(os.path.realpath, filter(None, written.values())))) == 1:
        problems.append(
            f"predictions.path: is {written['predictions.path']!r}, like dead_letters.path; name another file"
        )
    if problems:
        raise ConfigError(*problems)


def settings_from(tables: Mapping[str, Any], name: str, *, overrides: Sequence[str] = ()) -> Settings:
    """Like `load_settings`, from in-memory tables; `name` stands for the file in error messages.

    Raises:
        ConfigError: with every problem at once.
    """
    return settings_module.from_tables(tables, name, kinds=_kinds(), overrides=overrides)
