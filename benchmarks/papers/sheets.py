"""Shared code of the scripts: options of a run, tables with targets, processes."""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from benchmarks.report import TARGETS, Target, table, targets

UNKNOWN = "not known here"
"""Stands where a paper has a figure that this package does not know."""


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
    map: Callable[[Callable[..., Any], Iterable[Any]], Iterator[Any]]
    """Calls of a function, spread over processes; results in order."""

    def count(self, full: int, quick: int) -> int:
        """Choose a number of repetitions."""
        return quick if self.quick else full


def not_run(title: str, why: Sequence[str]) -> Sheet:
    """Reason why a table cannot be computed."""
    return Sheet(title, ["not run"], [[line] for line in why])


def shown(sheet: Sheet) -> str:
    """Format as text."""
    parts = [sheet.title, table(sheet.headers, sheet.rows)]
    if sheet.targets:
        parts += ["", table(TARGETS, targets(sheet.targets))]
    return "\n".join([*parts, *(f"· {note}" for note in sheet.notes)])


def misses(sheet: Sheet) -> list[str]:
    """Return the missed targets, each with the sheet's title."""
    return [
        f"{sheet.title}: {target.what}: {target.verdict} ({target.measured:.5g})"
        for target in sheet.targets
        if target.verdict != "met"
    ]


@contextmanager
def options_of(arguments: argparse.Namespace) -> Iterator[Options]:
    """Provide the options, with a pool of processes."""
    if arguments.jobs == 1:
        with threadpool_limits(1):
            yield Options(arguments.quick, arguments.data, map)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, context, initializer=threadpool_limits, initargs=(1,)) as pool:
        yield Options(arguments.quick, arguments.data, pool.map)
