"""Convert the command-line options of `evaluate` to tables of settings."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import Any

from streammoe.errors import ConfigError
from streammoe.settings import parsed

SECTIONS = ("source", "schema", "model")
COLUMNS = ("features", "ignore", "categorical", "timestamps", "numeric")
"""Options that are settings of the schema; all others are those of the model."""
LISTS = (*COLUMNS, "classes")


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
