"""Shared code of the scripts: arguments, tables with verdicts, processes, plots."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from benchmarks.report import machine, table

UNKNOWN = "not known here"
"""Stands where a paper has a figure that this package does not know."""


class Target(NamedTuple):
    """A target for a figure."""

    what: str
    measured: float
    limit: float
    least: bool = False
    """Whether it should be at least that, instead of at most."""

    @property
    def verdict(self) -> str:
        """Return whether a target is met, or by how much it is missed."""
        short = self.limit - self.measured if self.least else self.measured - self.limit
        return "met" if short <= 0.0 else f"missed by {short:.2g}"

    def cells(self) -> list[str]:
        """Format a row."""
        return [self.what, f"{self.measured:.5g}", f"{'≥' if self.least else '≤'} {self.limit:.5g}", self.verdict]


class Sheet(NamedTuple):
    """A table."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    targets: Sequence[Target] = ()
    notes: Sequence[str] = ()
    """Sentences below it: what the paper leaves open and what was chosen."""


class Options(NamedTuple):
    """Options of a run."""

    quick: bool
    """A tiny form, to see that it runs; its figures mean nothing."""
    data: Path | None
    """Folder of the data sets that are not generated."""
    plots: Path | None
    """Folder for pictures."""
    map: Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]
    """Calls of a function, spread over processes; results in order."""

    def count(self, full: int, quick: int) -> int:
        """Parse a number of repetitions."""
        return quick if self.quick else full


def not_run(title: str, why: Sequence[str]) -> Sheet:
    """Reason why a table cannot be computed."""
    return Sheet(title, ["not run"], [[line] for line in why])


def shown(sheet: Sheet) -> str:
    """Format as text."""
    parts = [sheet.title, table(sheet.headers, sheet.rows)]
    if sheet.targets:
        parts += ["", table(["target", "measured", "wanted", "verdict"], [target.cells() for target in sheet.targets])]
    return "\n".join([*parts, *(f"· {note}" for note in sheet.notes)])


def misses(sheet: Sheet) -> list[str]:
    """Return the missed targets, each with the sheet's title."""
    return [
        f"{sheet.title}: {target.what}: {target.verdict} ({target.measured:.5g})"
        for target in sheet.targets
        if target.verdict != "met"
    ]


def parser_of(doc: str, prog: str | None = None) -> argparse.ArgumentParser:
    """Create the parser of the arguments that all scripts take."""
    parser = argparse.ArgumentParser(prog=prog, description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny form, to see that it runs")
    parser.add_argument("--data", type=Path, help="folder that holds the data sets; default: $STREAMMOE_DATA")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there, too")
    parser.add_argument(
        "--plots", type=Path, metavar="DIR", help="write plots to this folder; requires the extra `plot`"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    return parser


@contextmanager
def options_of(arguments: argparse.Namespace) -> Iterator[Options]:
    """Parse the arguments, with a pool of processes."""
    if arguments.plots is not None:
        arguments.plots.mkdir(parents=True, exist_ok=True)
    chosen = (arguments.quick, arguments.data, arguments.plots)
    if arguments.jobs == 1:
        with threadpool_limits(1):
            yield Options(*chosen, map)
        return
    with (
        ProcessPoolExecutor(
            arguments.jobs, multiprocessing.get_context("spawn"), initializer=threadpool_limits, initargs=(1,)
        ) as pool,
        threadpool_limits(1),
    ):
        yield Options(*chosen, pool.map)


def run(scripts: Sequence[ModuleType], arguments: argparse.Namespace) -> None:
    """Print the tables of some scripts, and write them if requested."""
    print(machine(), flush=True)
    begun = time.perf_counter()
    missed: list[str] = []
    written = []
    with options_of(arguments) as options:
        for script in scripts:
            name = (
                script.__name__.rpartition(".")[2] if script.__name__ != "__main__" else Path(str(script.__file__)).stem
            )
            since = time.perf_counter()
            print(f"\n== {name}: {str(script.__doc__).splitlines()[0]}", flush=True)
            for sheet in script.sheets(options):
                print(f"\n{shown(sheet)}", flush=True)
                missed += misses(sheet)
                targets = [{**target._asdict(), "verdict": target.verdict} for target in sheet.targets]
                written.append({"script": name, **sheet._asdict(), "targets": targets})
            print(f"{name}: {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
    print(f"\n== {(time.perf_counter() - begun) / 60.0:.1f} minutes; short of a target:\n")
    print("\n".join(missed) or "nothing")
    if arguments.quick:
        print("\nThis was the quick form: its figures are meaningless.")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(written, ensure_ascii=False, indent=1, default=float), encoding="utf-8")


def main(doc: str | None, argv: Sequence[str] | None = None) -> None:
    """Run the command line of the script that was started."""
    run([sys.modules["__main__"]], parser_of(str(doc)).parse_args(argv))


@contextmanager
def picture(options: Options, name: str) -> Iterator[Any]:
    """Provide a matplotlib `Axes`, saved as NAME.png; only to be used if plots are requested."""
    from matplotlib.figure import Figure

    assert options.plots is not None
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
    yield figure.add_subplot()
    figure.savefig(options.plots / f"{name}.png", dpi=120)
