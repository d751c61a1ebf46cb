"""The reduction of shards' models, as a watcher asks for it, and the inputs of a file at which models are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streammoe.errors import ConfigError
from streammoe.estimators import MixtureOfExperts
from streammoe.notation import BOOLEANS
from streammoe.reduction import reduce_with_details
from streammoe.scaleout.watcher import Merged, Reduction
from streammoe.text import cut, listed, printable

MOST_ROWS = 10_000
"""Rows of a file that are used; of a longer one they are evenly spaced."""
_SUFFIXES = (".csv", ".jsonl", ".parquet")


def reduction_of(n_experts: int | None, support: Path | None) -> Reduction:
    """Return the reduction to this many experts, compared at the rows of a file.

    Args:
        n_experts: by default what most events were learned by.
        support: by default rows of the models' own reservoirs.

    Raises:
        ConfigError: the file cannot be read.
    """
    rows = None if support is None else Support(support)

    def reduce(models: Mapping[str, MixtureOfExperts], weights: Sequence[float], n: int) -> Merged:
        names, all_models = list(models), list(models.values())
        given = None if rows is None else rows.events(all_models[0])
        found = reduce_with_details(all_models, n_experts=n_experts, weights=weights, support=given, names=names, n=n)
        return Merged(found.model, found.divergences.tolist())

    return reduce


class Support:
    """Rows of inputs from a file, read once.

    Args:
        path: csv with a header, jsonl or parquet, by its suffix; other columns than the models' are ignored.

    Raises:
        ConfigError: it cannot be read, or holds no rows.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix not in _SUFFIXES:
            raise ConfigError(f"--support {path}: its name must end in {listed(_SUFFIXES, 'or')}")
        try:
            self._rows = _spaced(_READERS[path.suffix](path))
        except (OSError, ValueError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or cut(printable(str(error)))
            rule = "it must hold rows of inputs, csv with a header"
            raise ConfigError(f"--support {path}: cannot be read ({reason}); {rule}") from error
        if not self._rows:
            raise ConfigError(f"--support {path}: holds no rows; give a file with inputs such as those of the shards")

    def events(self, model: MixtureOfExperts) -> list[dict[str, Any]]:
        """Return the rows as events of this model; what everything is text in is read as the model's columns are.

        Raises:
            ConfigError: a text is no number, or no column is one of the model's.
        """
        kinds = model.column_kinds
        if not any(name in kinds for row in self._rows for name in row):
            names = listed([str(name) for name in list(kinds)[:10]], "and")
            raise ConfigError(f"--support {self.path}: holds no column of the models, which have {names}")
        if self.path.suffix != ".csv":
            return self._rows
        found = []
        for at, row in enumerate(self._rows):
            try:
                values = {name: _value(text, kinds[name]) for name, text in row.items() if name in kinds}
            except ValueError as error:
                raise ConfigError(f"--support {self.path}: row {at + 1} of those used: {error}") from None
            found.append(values)
        return found


def _value(text: str, kind: str) -> object:
    """Return the value of a csv field; None where it is empty."""
    if not text.strip():
        return None
    if kind != "number":
        return text
    truth = BOOLEANS.get(text.strip().lower())
    return float(text) if truth is None else truth


def _csv(path: Path) -> list[dict[str, Any]]:
    from pyarrow import csv, string

    with path.open("rb") as file:
        names = csv.open_csv(file).schema.names
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    options = csv.ConvertOptions(column_types=dict.fromkeys(names, string()))
    table = csv.read_csv(path, convert_options=options)
    return _taken(table)


def _jsonl(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("a line is not a JSON object")
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    from pyarrow import parquet

    table = parquet.read_table(path)
    return _taken(table)


def _taken(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a table that are used; of a long one all others stay out of Python."""
    rows: list[dict[str, Any]] = table.take(np.array(_places(table.num_rows), dtype=np.int64)).to_pylist()
    return rows


_READERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}


def _spaced(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rows[at] for at in _places(len(rows))]


def _places(n: int) -> list[int]:
    """Return which of n rows are used."""
    places: list[int] = np.unique(np.linspace(0, n - 1, min(n, MOST_ROWS)).round().astype(np.int64)).tolist()
    return places if n else []
