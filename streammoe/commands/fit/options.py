"""Convert the command-line options of `fit` to settings."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streammoe.commands.evaluate.options import check_overrides, tables_from
from streammoe.configuration import load_settings, settings_from
from streammoe.errors import SourceError
from streammoe.settings import Settings

SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
"""Ends of the names of files in a folder that are read, perhaps with .gz."""


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
