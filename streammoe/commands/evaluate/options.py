"""Convert the command-line options of `evaluate` to tables of settings."""

from __future__ import annotations

import csv
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from streammoe.errors import ConfigError
from streammoe.schedules import SCHEDULES

SECTIONS = ("source", "schema", "model")
LISTS = ("features", "ignore", "categorical", "timestamps", "header")
CSV = ("delimiter", "decimal", "header")


def tables_from(
    file: str,
    targets: Sequence[str],
    *,
    classify: bool,
    format: str | None,
    schedule: str | None,
    given: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return tables as a configuration file would contain them.

    Args:
        file: path, or ``-`` for standard input.
        targets: columns.
        classify: whether the target is a label.
        format: of the records, or None to use the file extension.
        schedule: see `schedule_table`.
        given: further settings of source, schema and model by name; None means the default.

    Raises:
        ConfigError: standard input has no format, or there is no such schedule.
    """
    if file == "-":
        if format is None:
            raise ConfigError("--format: required if FILE is -, which has no extension; such as csv")
        source: dict[str, Any] = {"kind": "stdin", "format": format}
    else:
        source = {"kind": "file", "path": file, **({} if format is None else {"format": format})}
    schema: dict[str, Any] = {"target": list(targets)}
    model: dict[str, Any] = {"kind": "classifier" if classify else "regressor"}
    for name, value in given.items():
        if value is not None:
            table = source if name in CSV else schema if name in (*LISTS, "weight") else model
            table[name] = _columns(value) if name in LISTS else value
    if schedule is not None:
        model["schedule"] = schedule_table(schedule)
    return {"source": source, "schema": schema, "model": model}


def schedule_table(text: str) -> dict[str, Any]:
    """Parse a schedule: its kind and its numbers in order.

    >>> schedule_table("power:0.7")
    {'kind': 'power', 'alpha': 0.7}

    Raises:
        ConfigError: there is no such kind, or a number is invalid, or there are too many.
    """
    kind, *numbers = text.split(":")
    if kind not in SCHEDULES:
        raise ConfigError(f"--schedule {text!r}: must begin with one of {', '.join(SCHEDULES)}, such as power:0.6")
    names = list(typing.get_type_hints(SCHEDULES[kind]))
    if len(numbers) > len(names):
        raise ConfigError(f"--schedule {text!r}: has {len(numbers)} numbers; {kind} takes {':'.join(names)}")
    try:
        return {"kind": kind, **dict(zip(names, map(float, numbers), strict=False))}
    except ValueError:
        message = f"--schedule {text!r}: must have numbers after the colons, such as {kind}:0.5"
        raise ConfigError(message) from None


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


def _columns(text: str) -> list[str]:
    """Split comma-separated names; quotes as in CSV."""
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
