"""Convert the command-line options of `evaluate` and `fit` to settings."""

from __future__ import annotations

import csv
import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streammoe.configuration import load_settings, settings_from
from streammoe.errors import ConfigError, SourceError
from streammoe.settings import Settings, parsed

SECTIONS = ("source", "schema", "model")
COLUMNS = ("features", "ignore", "categorical", "timestamps", "numeric")
"""Options that are settings of the schema; all others are those of the model."""
LISTS = (*COLUMNS, "classes")
SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
"""Ends of the names of files in a folder that are read, perhaps with .gz."""


def tables_from(
    file: str, targets: Sequence[str], *, classify: bool, format: str | None, given: Mapping[str, str | None]
) -> dict[str, dict[str, Any]]:
    """Return tables as a configuration file would contain them.

    Args:
        file: path, or ``-`` for standard input.
        targets: columns.
        classify: whether the target is a label.
        format: of the records, or None to use the file extension.
        given: further settings of schema and model by name, as on the command line; None means the default.

    Raises:
        ConfigError: standard input has no format.
    """
    if file == "-" and format is None:
        raise ConfigError("--format: required if FILE is -, which has no extension; such as csv")
    source: dict[str, Any] = {"kind": "stdin"} if file == "-" else {"kind": "file", "path": file}
    source |= {} if format is None else {"format": format}
    schema: dict[str, Any] = {"target": list(targets)}
    model: dict[str, Any] = {"kind": "classifier" if classify else "regressor"}
    for name, value in given.items():
        if value is not None:
            # A list is split at commas, with quotes as in CSV.
            listed = name in LISTS and [each.strip() for each in next(csv.reader([value], skipinitialspace=True), [])]
            (schema if name in COLUMNS else model)[name] = listed or parsed(value)
    return {"source": source, "schema": schema, "model": model}


def check_overrides(overrides: Sequence[str], command: str = "evaluate", also: Sequence[str] = ()) -> None:
    """Reject settings that a command does not use.

    Args:
        overrides: settings, ``section.field=value``.
        command: name of the command.
        also: settings that it uses in addition to those of source, schema and model.

    Raises:
        ConfigError: a setting is not used.
    """
    names = [flag.partition("=")[0].strip() for flag in overrides]
    used = ", ".join([*SECTIONS, *also])
    others = [name for name in names if name.partition(".")[0].strip() not in SECTIONS and name not in also]
    if others:
        raise ConfigError(*(f"--set {name}: {command} has no such setting; it uses those of {used}" for name in others))


def settings_of(
    file: str,
    targets: Sequence[str],
    config: Path | None,
    overrides: Sequence[str],
    *,
    classify: bool,
    format: str | None,
    given: Mapping[str, Any],
) -> Settings:
    """Return settings with the file as source; model and schema are those of the configuration, if there is one.

    So is the allowed share of rejected records.

    Args:
        file: path, or ``-`` for standard input.
        targets: columns; none means those of the configuration.
        config: of a daemon; its source is ignored.
        overrides: ``section.field=value``; they override everything.
        classify: whether the target is a label; the configuration may say so too.
        format: of the records, or None to use the file extension.
        given: further settings of schema and model by name; None changes nothing.

    Raises:
        ConfigError: with every problem at once.
    """
    check_overrides(overrides, "fit", also=["dead_letters.max_ratio"])
    tables = tables_from(file, targets, classify=classify, format=format, given=given)
    if config is not None:
        said = load_settings(config)
        if not targets:
            del tables["schema"]["target"]
        if not classify:
            del tables["model"]["kind"]
        for section in ("model", "schema"):
            tables[section] = {**said.given.get(section, {}), **tables[section]}
        tables["dead_letters"] = {"max_ratio": said.dead_letters.max_ratio}
    return settings_from(tables, "the command line", overrides=overrides)


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
