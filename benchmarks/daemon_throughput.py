"""How many events per second does the daemon learn on one core, from each kind of file, compared with parsing alone?

`streammoe run` with checkpoints and metrics, in a process limited to one core, learns files of 10 inputs with 4
experts. For comparison PyArrow only parses the same file, on the same core. The best of a few runs counts, taking the
files in turn; it includes the fit that ends the warm-up, which happens once in the life of a model and is also shown
separately. The share of the core shows whether other processes used it; events per CPU second do not depend on them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from benchmarks import tasks
from benchmarks.report import machine, table

QUIET = 0.9
"""Share of the core from which on nothing else disturbed a run."""
INPUTS = [f"x{j}" for j in range(10)]
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
PARSE = {
    ".csv": """
import sys, time
import pyarrow as pa
from pyarrow import csv
begun = time.perf_counter()
rows = sum(
    len(batch)
    for batch in csv.open_csv(
        sys.argv[1],
        read_options=csv.ReadOptions(use_threads=False, block_size=1 << 20),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(sys.argv[2:], pa.float64())),
    )
)
print(rows / (time.perf_counter() - begun))
""",
    ".jsonl": """
import sys, time
import pyarrow as pa
from pyarrow import json
begun = time.perf_counter()
rows = len(
    json.read_json(
        sys.argv[1],
        read_options=json.ReadOptions(use_threads=False, block_size=1 << 20),
        parse_options=json.ParseOptions(explicit_schema=pa.schema({name: pa.float64() for name in sys.argv[2:]})),
    )
)
print(rows / (time.perf_counter() - begun))
""",
    ".parquet": """
import sys, time
from pyarrow import parquet
begun = time.perf_counter()
rows = sum(len(batch) for batch in parquet.ParquetFile(sys.argv[1]).iter_batches(16_384, use_threads=False))
print(rows / (time.perf_counter() - begun))
""",
}
PARSE[".csv.gz"] = PARSE[".csv"]
"""By the endings of a file."""


class Case(NamedTuple):
    """A file and the model that learns it."""

    title: str
    file: str
    target: int | None = None
    settings: tuple[str, ...] = ()
    """Over the configuration."""


OUTPUTS = ["y0", "y1", "y2"]
CASES = [
    Case("csv", "all.csv", 150_000),
    Case("csv, 6 decimals", "six.csv"),
    Case("csv.gz", "all.csv.gz"),
    Case("jsonl", "all.jsonl", 150_000),
    Case("parquet", "all.parquet", 400_000),
    Case("csv, predictions to jsonl", "all.csv", None, ("predictions.kind=file", "predictions.path=predictions.jsonl")),
    Case("csv, 3 classes", "classes.csv", None, ("model.kind=classifier",)),
    Case("csv, 3 outputs", "outputs.csv", None, (f"schema.target={json.dumps(OUTPUTS)}",)),
]


class Run(NamedTuple):
    """Resources used by a process."""

    output: str
    log: str
    seconds: float
    cpu_seconds: float


class Pass(NamedTuple):
    """A run of the daemon over a file; the faster of two compares as larger."""

    events_per_second: float
    fit_seconds: float
    """The batch in which the warm-up ended: all but some hundredths are the fit."""
    seconds: float
    cpu_seconds: float


def columns(stream: tasks.Stream) -> pa.Table:
    """Inputs, and one target or several."""
    targets = [stream.y] if stream.y.ndim == 1 else list(stream.y.T)
    names = ["y"] if stream.y.ndim == 1 else OUTPUTS
    return pa.table([*stream.X.T, *targets], names=[*INPUTS, *names])


def write_csv(path: Path, stream: tasks.Stream, decimals: int | None = None) -> None:
    """Write events with all significant digits, or rounded."""
    if decimals is not None:
        stream = tasks.Stream(stream.X.round(decimals), stream.y.round(decimals), stream.truth)
    csv.write_csv(columns(stream), path)


def write_jsonl(path: Path, stream: tasks.Stream) -> None:
    """Write events as JSON objects, one per line."""
    pattern = "{" + ", ".join(f'"{name}": %r' for name in [*INPUTS, "y"]) + "}\n"
    with path.open("w", encoding="ascii") as file:
        for rows in np.array_split(np.column_stack([stream.X, stream.y]), max(len(stream.y) // 10_000, 1)):
            file.writelines(pattern % tuple(row) for row in rows.tolist())


def write_files(folder: Path, events: int) -> None:
    """Write all files of `CASES`, and one with a single event."""
    stream = tasks.full_gate(events)
    write_csv(folder / "all.csv", stream)
    write_csv(folder / "six.csv", stream, decimals=6)
    write_jsonl(folder / "all.jsonl", stream)
    parquet.write_table(columns(stream), folder / "all.parquet")
    with (folder / "all.csv").open("rb") as plain, gzip.open(folder / "all.csv.gz", "wb", compresslevel=6) as packed:
        shutil.copyfileobj(plain, packed, 1 << 20)
    noise = 0.1 * np.random.default_rng(0).normal(size=(events, len(OUTPUTS)))
    write_csv(folder / "outputs.csv", stream._replace(y=np.outer(stream.y, [1.0, -0.5, 2.0]) + noise))
    write_csv(folder / "classes.csv", tasks.classes(3, events))
    write_csv(folder / "one.csv", tasks.full_gate(1))


def write_config(folder: Path, path: Path | str) -> Path:
    """Return a configuration that reads `path` and keeps its state in `folder`."""
    config = folder / "daemon.toml"
    places = {"path": path, "state": folder / "state", "dead_letters": folder / "dead-letters.jsonl"}
    config.write_text(CONFIG.format(**{name: json.dumps(str(place)) for name, place in places.items()}))
    return config


def daemon_command(config: Path, settings: Iterable[str] = ()) -> list[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "streammoe", "run", str(config), "--fresh", "--summary", "json", *flags]


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


def run(command: list[str], folder: Path | None = None) -> Run:
    """Run a process on one core to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    with one_core():
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(done.stdout, done.stderr, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def daemon(path: Path, settings: Iterable[str] = ()) -> Pass:
    """Run over `path` once, with state and predictions in a temporary folder."""
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        one = run([*daemon_command(write_config(folder, path), settings), "--log-format", "json"], folder)
    entries = map(json.loads, one.log.splitlines())
    fit = [datetime.fromisoformat(entry["time"]) for entry in entries if entry["message"].startswith("warm-up")]
    fit_seconds = (fit[-1] - fit[0]).total_seconds() if fit else 0.0
    return Pass(json.loads(one.output)["events_per_second"], fit_seconds, one.seconds, one.cpu_seconds)


def parsing(path: Path) -> float:
    """Measure how many rows per second PyArrow parses."""
    names = OUTPUTS if path.name == "outputs.csv" else ["y"]
    return float(run([sys.executable, "-c", PARSE["".join(path.suffixes)], str(path), *INPUTS, *names]).output)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="events of each file")
    parser.add_argument("--repeats", type=int, default=3, help="runs over each file")
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    runs: dict[Case, list[Pass]] = {case: [] for case in CASES}
    parsed: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name:
        folder = Path(name)
        print("writing files …", file=sys.stderr, flush=True)
        write_files(folder, arguments.events)
        startup = max(daemon(folder / "one.csv") for _ in range(arguments.repeats))
        for turn in range(arguments.repeats):
            for case in CASES:
                print(f"{case.title}: {turn + 1} of {arguments.repeats}", file=sys.stderr, flush=True)
                path = folder / case.file
                parsed[case.file] = max(parsed.get(case.file, 0.0), parsing(path))
                runs[case].append(daemon(path, case.settings))
        sizes = {case.file: (folder / case.file).stat().st_size for case in CASES}
    rows = []
    least_share = 1.0
    for case, found in runs.items():
        best = max(found)
        rate = best.events_per_second
        share = best.cpu_seconds / best.seconds
        least_share = min(least_share, share)
        busy = arguments.events / max(min(each.cpu_seconds for each in found) - startup.cpu_seconds, 1e-9)
        judged = ["", ""]
        if case.target:
            judged = [f"≥ {case.target:,}", "met" if rate >= case.target else "MISSED"]
        rows.append(
            [
                case.title,
                f"{sizes[case.file] / arguments.events:.0f}",
                f"{rate:,.0f}",
                f"{best.fit_seconds:.1f}",
                f"{best.seconds:.1f}",
                f"{best.cpu_seconds:.1f}",
                f"{100.0 * share:.0f}%",
                f"{busy:,.0f}",
                f"{parsed[case.file]:,.0f}",
                f"{rate / parsed[case.file]:.2f}",
                *judged,
            ]
        )
    print(f"{arguments.events:,} events, 10 inputs, 4 experts, one core; start-up counts where a column says so")
    headers = ["file", "bytes/event", "events/s", "of it fit s", "wall s with start-up", "CPU s with start-up"]
    headers += ["share of core", "events/CPU s", "PyArrow parses/s", "daemon / PyArrow", "target", "verdict"]
    print(table(headers, rows))
    print(f"Start-up, one event: {startup.seconds:.1f} s, of which {startup.cpu_seconds:.1f} s CPU")
    if least_share < QUIET:
        print("Other processes used the core: events/s are too low; events/CPU s show the daemon alone")


if __name__ == "__main__":
    main()
