"""Convert the command-line options of `evaluate` and `fit` to settings."""

from __future__ import annotations

import csv
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streammoe.configuration import load_settings, settings_from
from streammoe.console import FileOptions
from streammoe.errors import ConfigError, SourceError
from streammoe.settings import Settings

SECTIONS = ("source", "schema", "model")
LIMIT = "dead_letters.max_ratio"
"""The only setting of other sections that is used."""
SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
"""Ends of the names of files in a folder that are read, perhaps with .gz."""


def settings_of(file: str, options: FileOptions, *, command: str, config: Path | None = None) -> Settings:
    """Return settings with a file as source; model and schema are those of the configuration, if there is one.

    So is the allowed share of rejected records.

    Args:
        file: path, or ``-`` for standard input.
        options: override everything; without targets, those of the configuration hold.
        command: for messages.
        config: of a daemon; its source is ignored.

    Raises:
        ConfigError: with every problem at once.
    """
    names = [flag.partition("=")[0].strip() for flag in options.overrides]
    used = ", ".join([*SECTIONS, LIMIT])
    others = [name for name in names if name.partition(".")[0].strip() not in SECTIONS and name != LIMIT]
    if others:
        raise ConfigError(*(f"--set {name}: {command} has no such setting; it uses those of {used}" for name in others))
    if file == "-" and options.format is None:
        raise ConfigError("--format: required if FILE is -, which has no extension; such as csv")
    tables: dict[str, dict[str, Any]] = {
        "source": {"kind": "stdin"} if file == "-" else {"kind": "file", "path": file},
        "schema": {name: _columns(listed) for name, listed in options.columns.items() if listed is not None},
        "model": {"kind": "classifier"} if options.classify else {},
    }
    if options.format is not None:
        tables["source"]["format"] = options.format
    if options.targets:
        tables["schema"]["target"] = list(options.targets)
    if config is not None:
        said = load_settings(config)
        for section in ("model", "schema"):
            tables[section] = {**said.given.get(section, {}), **tables[section]}
        tables["dead_letters"] = {"max_ratio": said.dead_letters.max_ratio}
    return settings_from(tables, "the command line", overrides=options.overrides)


def _columns(listed: str) -> list[str]:
    """Split a list at commas, with quotes as in CSV."""
    return [name.strip() for name in next(csv.reader([listed], skipinitialspace=True), [])]


def files_of(data: Sequence[str]) -> list[str]:
    """Return the files that paths, globs and folders name, each once, in their order; those of one are sorted.

    Raises:
        SourceError: one of them names no file.
    """
    found: dict[str, None] = {}
    for name in data:
        path = Path(name)
        if path.is_dir():
            inside = [str(each) for each in sorted(path.iterdir()) if each.name.removesuffix(".gz").endswith(SUFFIXES)]
        elif path.exists():
            inside = [name]
        else:
            inside = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - Path.glob rejects absolute patterns
        if not inside:
            raise SourceError(f"{name}: no such file, and no file whose name fits; give files, globs or folders")
        found.update(dict.fromkeys(inside))
    return list(found)
