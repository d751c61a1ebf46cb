"""Arguments and output shared by the benchmarks: the machine, tables, and targets."""

from __future__ import annotations

import argparse
import logging
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np

# Log lines about the experts of hundreds of models would hide the tables.
logging.getLogger("streammoe").addHandler(logging.NullHandler())


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
    """Say whether a target is met that is more than one number."""
    return "met" if met else "missed"


class Target(NamedTuple):
    """A figure, and what it should be at most, or at least."""

    what: str
    measured: float
    limit: float
    least: bool = False

    @property
    def verdict(self) -> str:
        """Return whether the target is met, or by how much it is missed."""
        short = self.limit - self.measured if self.least else self.measured - self.limit
        return "met" if short <= 0.0 else f"missed by {short:.2g}"

    @property
    def cells(self) -> list[str]:
        """Format limit and verdict."""
        return [f"{'≥' if self.least else '≤'} {self.limit:g}", self.verdict]


def targets(each: Iterable[Target]) -> list[list[str]]:
    """Return the rows of a table of targets, headed by `TARGETS`."""
    return [[target.what, f"{target.measured:.4g}", *target.cells] for target in each]


TARGETS = ("figure", "measured", "target", "verdict")


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


def _shown(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float | np.floating) else str(cell)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").rstrip("%×"))
    except ValueError:
        return text in {"", "-", "–"}
    return True
