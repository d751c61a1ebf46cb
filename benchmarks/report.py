"""Output shared by the benchmarks: the machine, and aligned tables."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

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


def _shown(cell: object) -> str:
    return f"{cell:.4g}" if isinstance(cell, float | np.floating) else str(cell)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").rstrip("%×"))
    except ValueError:
        return text in {"", "-", "–"}
    return True
