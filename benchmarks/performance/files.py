"""Speed of the daemon with files, next to Vowpal Wabbit's driver on the same events."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.daemon_throughput import daemon, run, write_csv, write_jsonl
from benchmarks.performance.contenders import has_vowpal
from benchmarks.report import Record

DRIVER, DRIVER_PAIRS = "Vowpal Wabbit's driver, predictions", "Vowpal Wabbit's driver, predictions, -q ff"
CSV, JSONL = "streammoe run, csv, predictions", "streammoe run, jsonl, predictions"
PLAIN = "streammoe run, csv, predictions without intervals and gate"
PREDICTIONS = ("predictions.kind=file", "predictions.path=predictions.jsonl")


class Cost(NamedTuple):
    """Of one process."""

    cpu_seconds: float
    seconds: float


def write_text(path: Path, stream: tasks.Stream) -> None:
    """Write events in Vowpal Wabbit's format, with the digits of the other files."""
    pattern = "%r |f " + " ".join(f"x{j}:%r" for j in range(stream.X.shape[1])) + "\n"
    with path.open("w", encoding="ascii") as file:
        file.writelines(pattern % tuple(row) for row in np.column_stack([stream.y, stream.X]).tolist())


def _daemon(path: Path, settings: tuple[str, ...]) -> Cost:
    done = daemon(path, settings)
    return Cost(done.cpu_seconds, done.seconds)


def _driver(path: Path, *options: str) -> Cost:
    """Learn a file, write predictions, and save the model at the end."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "vowpalwabbit", "-d", str(path), "-p", "predictions", "-f", "model", *options]
        done = run(command, Path(folder))
    return Cost(done.cpu_seconds, done.seconds)


CASES: dict[str, tuple[str, Callable[[Path], Cost]]] = {
    CSV: ("csv", lambda path: _daemon(path, PREDICTIONS)),
    JSONL: ("jsonl", lambda path: _daemon(path, PREDICTIONS)),
    PLAIN: ("csv", lambda path: _daemon(path, (*PREDICTIONS, "predictions.interval=0", "predictions.gate=false"))),
    "streammoe run, csv": ("csv", lambda path: _daemon(path, ())),
    DRIVER: ("txt", _driver),
    DRIVER_PAIRS: ("txt", lambda path: _driver(path, "-q", "ff")),
}
"""By name: the ending of the file, and what runs."""


def measured(events: int, rounds: int) -> Record:
    """Run all in turn; return events per CPU second without the start-up, and by the clock with it."""
    cases = {name: case for name, case in CASES.items() if has_vowpal() or case[0] != "txt"}
    turns: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory(prefix="streammoe-") as place:
        folder = Path(place)
        for stem, stream in {"all": tasks.full_gate(events), "one": tasks.full_gate(1)}.items():
            write_csv(folder / f"{stem}.csv", stream)
            write_jsonl(folder / f"{stem}.jsonl", stream)
            write_text(folder / f"{stem}.txt", stream)
        for turn in range(rounds):
            for name, (ending, call) in cases.items():
                print(f"{name}: {turn + 1} of {rounds}", file=sys.stderr, flush=True)
                empty, full = call(folder / f"one.{ending}"), call(folder / f"all.{ending}")
                rate = events / (full.cpu_seconds - empty.cpu_seconds)
                turns[name].append((rate, events / full.seconds, empty.cpu_seconds))
    found = {name: np.median(rates, axis=0).tolist() for name, rates in turns.items()}
    return {"events": events, "rounds": rounds, "found": found}
