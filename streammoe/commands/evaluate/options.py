"""Convert the command-line options of `evaluate` to tables of settings."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from streammoe.errors import ConfigError
from streammoe.notation import EVERY, ISO, TICKS
from streammoe.options import CHOICES
from streammoe.settings import parsed

SECTIONS = ("source", "schema", "model")
LISTS = ("features", "ignore", "categorical", "numeric", "header", "classes")
NOTATION = ("missing", "thousands", "units", "time_zone")
SCHEMA = ("features", "ignore", "categorical", "timestamps", "numeric", "weight", *NOTATION)
SOURCE = ("delimiter", "decimal", "header", "skip_lines", "comment", "encoding", "record")


def tables_from(
    file: str,
    targets: Sequence[str],
    *,
    classify: bool,
    format: str | None,
    given: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return tables as a configuration file would contain them.

    Args:
        file: path, or ``-`` for standard input.
        targets: columns.
        classify: whether the target is a label.
        format: of the records, or None to use the file extension.
        given: further settings of source, schema and model by name; None means the default.

    Raises:
        ConfigError: standard input has no format, or an option has too many values or columns.
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
        if value not in (None, ()):
            table = source if name in SOURCE else schema if name in SCHEMA else model
            as_list = name in LISTS and not isinstance(value, list)
            if name in REPEATED:
                table[name] = REPEATED[name](value)
            else:
                table[name] = _columns(value) if as_list else option_value(name, value) if table is model else value
    return {"source": source, "schema": schema, "model": model}


def option_value(name: str, text: object) -> object:
    """Return the value of an option on the command line: TOML, plain text, or a kind with its values in order.

    >>> option_value("schedule", "power:0.7"), option_value("warmup", "200")
    ({'kind': 'power', 'alpha': 0.7}, 200)
    >>> option_value("warmup", "200:3")
    {'size': 200, 'restarts': 3}

    Raises:
        ConfigError: there are too many values.
    """
    if not isinstance(text, str):
        return text
    kind, *values = text.split(":")
    choice = CHOICES.get(name)
    if choice is not None and values and "" in choice.kinds:  # the only kind, which has no name
        kind, values = "", [kind, *values]
    if choice is None or not values or kind not in choice.kinds:
        return parsed(text)
    names = list(signature(choice.kinds[kind]).parameters)
    if len(values) > len(names):
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(
            f"{flag} {text!r}: has {len(values)} values; {kind or name} takes {':'.join(names) or 'none'}"
        )
    given = dict(zip(names, map(parsed, values), strict=False))
    return {"kind": kind, **given} if kind else given


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


def _timestamps(texts: Sequence[str]) -> list[str] | dict[str, str]:
    """Return columns of times, with their formats if any has one.

    >>> _timestamps(["a,b"]), _timestamps(["a", "when=%b %d, %Y"])
    (['a', 'b'], {'a': 'iso', 'when': '%b %d, %Y'})

    Raises:
        ConfigError: several columns have one format.
    """
    formats: dict[str, str] = {}
    for text in texts:
        name, _, form = text.rpartition("=")
        has_form = bool(name) and ("%" in form or form in TICKS)
        names = _columns(name if has_form else text)
        if has_form and len(names) > 1:
            raise ConfigError(
                f"--timestamp {text!r}: a format is that of one column; repeat the option for each, and put quotes "
                "around a name that holds a comma"
            )
        formats |= dict.fromkeys(names, form if has_form else ISO)
    return formats if set(formats.values()) - {ISO} else list(formats)


def _missing(texts: Sequence[str]) -> dict[str, list[object]]:
    """Return what stands for missing values, by column.

    >>> _missing(["n.a.", "CO=-200", "CO=-999", "country="])
    {'*': ['n.a.'], 'CO': [-200, -999], 'country': []}
    """
    found: dict[str, list[object]] = {}
    for text in texts:
        name, _, marker = text.rpartition("=")
        value = parsed(marker)
        column = found.setdefault(name or EVERY, [])
        column += [value if isinstance(value, int | float) and not isinstance(value, bool) else marker] * bool(marker)
    return found


def _units(texts: Sequence[str]) -> dict[str, object]:
    """Return units and their factors.

    >>> _units(["°C", "M=1e6"])
    {'°C': 1, 'M': 1000000.0}
    """
    pairs = [text.rpartition("=") for text in texts]
    return {name or text: parsed(text) if name else 1 for name, _, text in pairs}


REPEATED: Mapping[str, Callable[[Sequence[str]], object]] = {
    "timestamps": _timestamps,
    "missing": _missing,
    "units": _units,
}
"""How to read the options that may be repeated."""
