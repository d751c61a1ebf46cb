"""Load settings and validate them against the installed connectors; open nothing else."""

from __future__ import annotations

import fnmatch
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from streammoe.errors import ConfigError
from streammoe.persistence import CONFIRMED, LOCK_NAME, STATUS
from streammoe.persistence.durable import TEMPORARY_SUFFIX, AnyPath, overlaps
from streammoe.secrets import unreadable
from streammoe.settings import Settings
from streammoe.settings.reader import Kinds, from_tables, load

LOGGER = logging.getLogger("streammoe.assembly")
CONNECTORS = "streammoe.connectors"
PREDICTIONS = "streammoe.predictions"
DEAD_LETTERS = "streammoe.dead_letters"
"""Entry-point groups. Classes of `PREDICTIONS` and `DEAD_LETTERS` are called with their own settings and those of the
source. Their optional ``check`` also takes the settings of checkpoints, and raises
`ConfigError` for settings that contradict each other."""
EXTENSIONS = "streammoe.extensions"
"""Entry-point group of what is called without being imported: ``observer``, called with settings and metrics where
``global.path`` is set, returns a `streammoe.daemon.loop.Observer`; and ``fit_files`` fits files by several
processes."""


@cache
def connectors(group: str = CONNECTORS) -> Mapping[str, Any]:
    """Return the installed connectors of a group by the ``kind`` that selects them; by default sources.

    The result is cached: searching all installed packages takes longer than reading settings.
    """
    return {entry.name: entry.load() for entry in entry_points(group=group)}


def extension(name: str) -> Any:
    """Return the extension of this name; see `EXTENSIONS`.

    Raises:
        ConfigError: it is not installed.
    """
    for entry in entry_points(group=EXTENSIONS, name=name):
        return entry.load()
    raise ConfigError(f"entry point {name} of {EXTENSIONS}: is not installed; install streammoe again")


def _kinds() -> Kinds:
    """Return the settings class of each installed connector."""
    return Kinds(
        *(
            {kind: connector.Settings for kind, connector in connectors(group).items()}
            for group in (CONNECTORS, PREDICTIONS, DEAD_LETTERS)
        )
    )


def load_settings(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    inputs: Iterable[tuple[str, AnyPath]] = (),
) -> Settings:
    """Parse a configuration and validate it against the installed connectors; open nothing else.

    Args:
        path: of the configuration.
        overrides: settings, ``section.field=value``.
        environment: the variables.
        inputs: further files that are read, each with what names it.

    Raises:
        ConfigError: with every problem at once.
    """
    settings = load(path, kinds=_kinds(), environment=environment, overrides=overrides)
    outputs = _outputs(settings)
    read = [("the configuration", path), *inputs]
    problems = [*_impossible_places(settings), *contested(settings, outputs, read)]
    for group, section in ((PREDICTIONS, settings.predictions), (DEAD_LETTERS, settings.dead_letters)):
        check = getattr(connectors(group).get(section.kind), "check", None)
        if check is not None:
            try:
                check(section, settings.source, settings.checkpoint)
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return settings


def check_readable_files(settings: Settings) -> None:
    """Check the secrets, certificates and keys that settings name.

    Raises:
        ConfigError: with all that cannot be read.
    """
    names = ["source", "predictions", "dead_letters"]
    names += [each.section for each in (settings.metrics, settings.serve) if each.enabled]
    if problems := [problem for name in names for problem in unreadable(getattr(settings, name), name)]:
        raise ConfigError(*problems)


def _impossible_places(settings: Settings) -> Iterator[str]:
    """Find what cannot be written since something else is there; a folder that is missing will be created."""
    folder = Path(settings.checkpoint.dir)
    if file := _file_on_the_way(folder):
        where = "a file" if file == folder else f"inside {str(file)!r}, which is a file"
        yield f"checkpoint.dir: is {str(folder)!r}, {where}; name a folder, which may be missing"
    for setting, path in _outputs(settings).items():
        parent = Path(path).parent
        if parent != folder and (file := _file_on_the_way(parent)):
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


def _reserved(settings: Settings, outputs: Mapping[str, str]) -> Iterator[str]:
    """Find outputs that have the name of a file of a checkpoint folder, this one or another, which has a lock."""
    folder = os.path.realpath(settings.checkpoint.dir)
    for setting, path in outputs.items():
        parent, name = os.path.split(os.path.realpath(path))
        of_ours = name.removeprefix(".").removesuffix(TEMPORARY_SUFFIX)
        is_reserved = of_ours in {LOCK_NAME, CONFIRMED, STATUS} or fnmatch.fnmatch(name, "*checkpoint-*")
        if is_reserved and (parent == folder or Path(parent, LOCK_NAME).is_file()):
            yield f"{setting}: is {path!r}, a name that is reserved in a daemon's checkpoint.dir; name another file"


def contested(
    settings: Settings, outputs: Mapping[str, str], inputs: Iterable[tuple[str, AnyPath]] = ()
) -> Iterator[str]:
    """Yield a sentence for each output that is also read, a daemon's, or written twice, under whatever name.

    Args:
        settings: of what is read.
        outputs: files that are to be written, by the option or setting that names each.
        inputs: further files that are read, each with what names it.
    """
    yield from _reserved(settings, outputs)
    source: Any = settings.source
    kind: Any = connectors()[source.kind]
    others = dict(outputs)
    for setting, path in outputs.items():
        if hasattr(kind, "reads") and kind.reads(source, path):
            what = f"source.path {source.path!r}" if hasattr(source, "path") else source.kind
            yield f"{setting}: is {path!r}, which {what} reads; name another file"
            others.pop(setting, None)
    named = [
        (name, file)
        for section in ("source", "metrics", "serve", "predictions", "dead_letters")
        for name, file in _texts(section, getattr(settings, section).model_dump())
        if os.path.isfile(file) and name not in outputs  # noqa: PTH113 - whatever the text is
    ]
    yield from overlaps(others, [*inputs, *named])


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the texts among some settings, each with its name."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _texts(f"{name}.{inner}", each)


def settings_from(tables: Mapping[str, Any], name: str, *, overrides: Sequence[str] = ()) -> Settings:
    """Like `load_settings`, from in-memory tables; `name` stands for the file in error messages.

    Raises:
        ConfigError: with every problem at once.
    """
    return from_tables(tables, name, kinds=_kinds(), overrides=overrides)
