"""Reproduce all tables of the papers: `python -m benchmarks.papers`, or some: `--only gridlock`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks.papers.sheets import misses, options_of, shown
from benchmarks.report import machine

NAMES = ("optimizers", "crime", "gridlock", "links", "fashion", "streams")


def main(argv: list[str] | None = None) -> None:
    """Print all tables, then the missed targets."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description=str(__doc__))
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="scripts; default: all")
    parser.add_argument("--quick", action="store_true", help="a tiny form, to see that it runs")
    parser.add_argument("--data", type=Path, help="folder that holds the data sets; default: $STREAMMOE_DATA")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    arguments = parser.parse_args(argv)
    print(machine(), flush=True)
    missed: list[str] = []
    with options_of(arguments) as options:
        for name in arguments.only:
            script = import_module(f"benchmarks.papers.{name}")
            since = time.perf_counter()
            print(f"\n== {name}: {str(script.__doc__).splitlines()[0]}", flush=True)
            for sheet in script.sheets(options):
                print(f"\n{shown(sheet)}", flush=True)
                missed += misses(sheet)
            print(f"{name}: {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
    print("\n== short of a target:\n")
    print("\n".join(missed) or "nothing")
    if arguments.quick:
        print("\nThis was the quick form: its figures are meaningless.")


if __name__ == "__main__":
    main()
