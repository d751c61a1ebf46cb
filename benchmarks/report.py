"""Arguments and output shared by the benchmarks: the machine, tables, targets, and results that a file keeps."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

# Log lines about the experts of hundreds of models would hide the tables.
logging.getLogger("streammoe").addHandler(logging.NullHandler())

Record = dict[str, Any]


def machine() -> str:
    """Describe processor, cores, and the versions that affect speed, in one line."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()}; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, Numba {numba.__version__}"
    )


def parsed(doc: str | None, argv: Sequence[str] | None = None, **defaults: float) -> argparse.Namespace:
    """Parse the numbers that a script takes, each by a flag of its name, and print the machine."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value:,}")
    given = parser.parse_args(argv)
    print(machine(), "\n", flush=True)
    return given


def verdict(met: bool) -> str:
    """Say whether a target is met."""
    return "met" if met else "MISSED"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Align columns for a terminal: numbers to the right, words to the left.

    Floats are shown with four significant digits; pass a string for another format.
    """
    shown = [[_shown(cell) for cell in row] for row in rows]
    widths = [max(len(line[j]) for line in [list(headers), *shown]) for j in range(len(headers))]
    right = [all(_is_number(line[j]) for line in shown) for j in range(len(headers))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join([line(headers), "  ".join("-" * width for width in widths), *map(line, shown)])


def markdown(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as Markdown; cells as in `table`."""
    lines = [headers, ["---"] * len(headers), *([_shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Verdicts:
    """Targets, and what was measured."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []

    def add_most(self, name: str, measured: float, most: float) -> None:
        """Note a figure that should be no more than its target."""
        self._rows.append([name, f"{measured:.4g}", f"≤ {most:g}", verdict(measured <= most)])

    def add_least(self, name: str, measured: float, least: float) -> None:
        """Note a figure that should be no less than its target."""
        self._rows.append([name, f"{measured:.4g}", f"≥ {least:g}", verdict(measured >= least)])

    def shown(self, form: Callable[[Sequence[str], Iterable[Sequence[object]]], str] = table) -> str:
        """Return all of them as a table."""
        return form(["figure", "measured", "target", "verdict"], self._rows)


class Results:
    """Records that a file keeps, one on each line, so that a run resumes where it stopped."""

    def __init__(self, path: Path | None) -> None:
        lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        self._path = path
        self.records: list[Record] = [json.loads(line) for line in lines]

    def has(self, key: Record) -> bool:
        return any(key.items() <= record.items() for record in self.records)

    def add(self, key: Record, measured: Record) -> None:
        record = {**key, **measured}
        self.records.append(record)
        print(" ".join(str(value) for value in key.values()), "done", file=sys.stderr, flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def once(self, key: Record, measure: Callable[[], Record]) -> None:
        """Measure what is not known yet."""
        if not self.has(key):
            self.add(key, measure())


def _shown(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float | np.floating) else str(cell)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").rstrip("%×"))
    except ValueError:
        return text in {"", "-", "–"}
    return True
