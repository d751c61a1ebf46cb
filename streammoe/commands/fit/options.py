"""Convert the command-line options of `fit` to settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streammoe.commands.evaluate.options import check_overrides, tables_from
from streammoe.configuration import load_settings, settings_from
from streammoe.settings import Settings


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
