"""Speed of the daemon with files, next to Vowpal Wabbit's driver on the same events."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks import tasks
from benchmarks.performance.events import has_vowpal, short
from benchmarks.report import Target, markdown

DRIVER, DRIVER_PAIRS = "Vowpal Wabbit's driver, predictions", "Vowpal Wabbit's driver, predictions, -q ff"
CSV, JSONL = "streammoe run, csv, predictions", "streammoe run, jsonl, predictions"
PLAIN = "streammoe run, csv, predictions without intervals and gate"
PREDICTIONS = ("predictions.kind=file", "predictions.path=predictions.jsonl")
CONFIG = """\
[source]
kind = "file"
path = {path}

[schema]
target = "y"

[model]
n_experts = 4

[checkpoint]
dir = {state}

[metrics]
port = 0

[dead_letters]
path = {dead_letters}
"""


def names_of(stream: tasks.Stream) -> list[str]:
    """Return the names of the columns, the target last."""
    return [*(f"x{j}" for j in range(stream.X.shape[1])), "y"]


def write_csv(path: Path, stream: tasks.Stream) -> None:
    """Write events with all significant digits."""
    csv.write_csv(pa.table([*stream.X.T, stream.y], names=names_of(stream)), path)


def write_jsonl(path: Path, stream: tasks.Stream) -> None:
    """Write events as JSON objects, one per line."""
    pattern = "{" + ", ".join(f'"{name}": %r' for name in names_of(stream)) + "}\n"
    with path.open("w", encoding="ascii") as file:
        file.writelines(pattern % tuple(row) for row in np.column_stack([stream.X, stream.y]).tolist())


def write_text(path: Path, stream: tasks.Stream) -> None:
    """Write events in Vowpal Wabbit's format, with the digits of the other files."""
    pattern = "%r |f " + " ".join(f"x{j}:%r" for j in range(stream.X.shape[1])) + "\n"
    with path.open("w", encoding="ascii") as file:
        file.writelines(pattern % tuple(row) for row in np.column_stack([stream.y, stream.X]).tolist())


def write_config(folder: Path, path: Path) -> Path:
    """Return a configuration that reads `path` and keeps its state in `folder`."""
    config = folder / "daemon.toml"
    places = {"path": path, "state": folder / "state", "dead_letters": folder / "dead-letters.jsonl"}
    config.write_text(CONFIG.format(**{name: json.dumps(str(place)) for name, place in places.items()}))
    return config


@contextmanager
def one_core() -> Iterator[None]:
    """Limit processes started inside to one core, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run(command: list[str], folder: Path) -> float:
    """Run a process on one core to its end, and return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with one_core():
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _daemon(path: Path, settings: tuple[str, ...]) -> float:
    """Run over `path` once, with state and predictions in a temporary folder."""
    flags = [part for setting in settings for part in ("--set", setting)]
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        return run([sys.executable, "-m", "streammoe", "run", str(write_config(folder, path)), *flags], folder)


def _driver(path: Path, *options: str) -> float:
    """Learn a file, write predictions, and save the model at the end."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "vowpalwabbit", "-d", str(path), "-p", "predictions", "-f", "model", *options]
        return run(command, Path(folder))


CASES: dict[str, tuple[str, Callable[[Path], float]]] = {
    CSV: ("csv", lambda path: _daemon(path, PREDICTIONS)),
    JSONL: ("jsonl", lambda path: _daemon(path, PREDICTIONS)),
    PLAIN: ("csv", lambda path: _daemon(path, (*PREDICTIONS, "predictions.interval=0", "predictions.gate=false"))),
    "streammoe run, csv": ("csv", lambda path: _daemon(path, ())),
    DRIVER: ("txt", _driver),
    DRIVER_PAIRS: ("txt", lambda path: _driver(path, "-q", "ff")),
}
"""By name: the ending of the file, and what runs."""


def measured(events: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Run all in turn; return events per CPU second without the start-up, and the seconds of it."""
    cases = {name: case for name, case in CASES.items() if has_vowpal() or case[0] != "txt"}
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory(prefix="streammoe-") as place:
        folder = Path(place)
        for stem, stream in {"all": tasks.full_gate(events), "one": tasks.full_gate(1)}.items():
            write_csv(folder / f"{stem}.csv", stream)
            write_jsonl(folder / f"{stem}.jsonl", stream)
            write_text(folder / f"{stem}.txt", stream)
        for _ in range(rounds):
            for name, (ending, call) in cases.items():
                empty, full = call(folder / f"one.{ending}"), call(folder / f"all.{ending}")
                turns[name].append((events / (full - empty), empty))
    return {name: tuple(np.median(rates, axis=0).tolist()) for name, rates in turns.items()}


def tables(events: int, rounds: int) -> tuple[str, list[Target]]:
    """Return the table of the daemon and Vowpal Wabbit's driver, and the targets."""
    found = measured(events, rounds)
    driver = found[DRIVER][0] if DRIVER in found else None
    rows = [
        [
            name, f"{rate:,.0f}", short(1e6 / rate), f"{rate / driver:.2f}" if driver else "–", f"{startup:.1f}",
        ]
        for name, (rate, startup) in found.items()
    ]  # fmt: skip
    headers = ["", "events per CPU second", "CPU µs/event", f"/ {DRIVER}", "start-up, CPU s"]
    targets = [Target("jsonl / csv, both with predictions", found[JSONL][0] / found[CSV][0], 0.8, least=True)]
    if driver:
        targets += [
            Target("csv with predictions / Vowpal Wabbit's driver", found[CSV][0] / driver, 1.5, least=True),
            Target("the same without intervals and gate", found[PLAIN][0] / driver, 1.5, least=True),
        ]
    title = f"{events:,} events from a file; the daemon with metrics and checkpoints; {rounds} rounds"
    return f"{title}\n\n{markdown(headers, rows)}", targets
