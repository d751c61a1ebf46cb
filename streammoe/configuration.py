"""Load settings and validate them against the installed connectors; open nothing else."""

from __future__ import annotations

import fnmatch
import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
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
    problems = [*_impossible_places(settings), *_contested_outputs(settings, path)]
    if settings.guard.on_jump == "rollback" and getattr(settings.predictions, "transactional", False):
        rule = 'must not be "rollback" with transactional predictions, which cannot be withdrawn'
        problems.append(f'guard.on_jump: {rule}; set "stop", or predictions.transactional = false')
    for group, section in ((PREDICTIONS, settings.predictions), (DEAD_LETTERS, settings.dead_letters)):
        check = getattr(connectors(group).get(section.kind), "check", None)
        if check is not None:
            try:
                check(section, settings.sources, settings.checkpoint)
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return settings


def _impossible_places(settings: Settings) -> Iterator[str]:
    """Find what cannot be written since something else is there; a folder that is missing will be created."""
    folder = Path(settings.checkpoint.dir)
    if file := _file_on_the_way(folder):
        where = "a file" if file == folder else f"inside {str(file)!r}, which is a file"
        yield f"checkpoint.dir: is {str(folder)!r}, {where}; name a folder, which may be missing"
    for setting, path in _outputs(settings).items():
        if file := _file_on_the_way(Path(path).parent):
            yield f"{setting}: is {path!r}, inside {str(file)!r}, which is a file; name a file in a folder"
        elif _is_folder(Path(path)):
            yield f"{setting}: is {path!r}, a folder; name a file"


def _file_on_the_way(folder: Path) -> Path | None:
    """Return the path, this one or one above it, that exists and is no folder."""
    return next((path for path in (folder, *folder.parents) if _is_folder(path) is False), None)


def _is_folder(path: Path) -> bool | None:
    """Return whether there is a folder under a path; None if nothing is there that can be looked at."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return None


def _outputs(settings: Settings) -> dict[str, str]:
    """Return the files that are written, by the setting that names them."""
    sections = {"dead_letters.path": settings.dead_letters, "predictions.path": settings.predictions}
    return {setting: path for setting, section in sections.items() if (path := getattr(section, "path", None))}


def _contested_outputs(settings: Settings, config: str | Path) -> list[str]:
    """Return a sentence for each setting that names an output file which is also read, or written twice."""
    written = _outputs(settings)
    known = connectors()
    problems = [
        f"{setting}: is {path!r}, which source.path {getattr(source, 'path', None)!r} reads; name another file"
        for source in settings.sources
        if hasattr(known[source.kind], "reads")  # type: ignore[attr-defined]
        for setting, path in written.items()
        if known[source.kind].reads(source, path)  # type: ignore[attr-defined]
    ]
    folder = os.path.realpath(settings.checkpoint.dir)
    for setting, path in written.items():
        parent, name = os.path.split(os.path.realpath(path))
        if parent == folder and (name in {LOCK_NAME, CONFIRMED} or fnmatch.fnmatch(name, "*checkpoint-*")):
            problems.append(f"{setting}: is {path!r}, a name that is reserved in checkpoint.dir; name another file")
        if os.path.realpath(path) == os.path.realpath(config):
            problems.append(f"{setting}: is {path!r}, the configuration itself; name another file")
    if len(written) == 2 and len(set(map(os.path.realpath, written.values()))) == 1:
        problems.append(
            f"predictions.path: is {written['predictions.path']!r}, like dead_letters.path; name another file"
        )
    return problems


def settings_from(tables: Mapping[str, Any], name: str, *, overrides: Sequence[str] = ()) -> Settings:
    """Like `load_settings`, from in-memory tables; `name` stands for the file in error messages.

    Raises:
        ConfigError: with every problem at once.
    """
    return settings_module.from_tables(tables, name, kinds=_kinds(), overrides=overrides)
