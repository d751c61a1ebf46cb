"""How many events a second does the whole daemon learn on one core, beside parsing alone?

`streammoe run` with checkpoints and metrics on, as a process of its own that may use one core, learns files of 10
inputs with 4 experts. Beside it, on the same core, PyArrow parses the same file and does nothing else. The best of a
few runs counts. Its share of the core says whether others used it too; events a CPU second do not depend on them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks import tasks
from benchmarks.report import machine, table

TARGET = 150_000
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
}


class Run(NamedTuple):
    """One process, from its start to its end."""

    output: str
    seconds: float
    cpu_seconds: float


class Best(NamedTuple):
    """The fastest run of the daemon over a file."""

    events_per_second: float
    seconds: float
    cpu_seconds: float


def write_csv(path: Path, stream: tasks.Stream, decimals: int | None = None) -> None:
    """Writes events with all digits that tell a float from its neighbours, or rounded."""
    columns = np.column_stack([stream.X, stream.y])
    if decimals is not None:
        columns = columns.round(decimals)
    csv.write_csv(pa.table(list(columns.T), names=[*INPUTS, "y"]), path)


def write_jsonl(path: Path, stream: tasks.Stream) -> None:
    """The same as objects, one a line."""
    pattern = "{" + ", ".join(f'"{name}": %r' for name in [*INPUTS, "y"]) + "}\n"
    with path.open("w", encoding="ascii") as file:
        for rows in np.array_split(np.column_stack([stream.X, stream.y]), max(len(stream.y) // 10_000, 1)):
            file.writelines(pattern % tuple(row) for row in rows.tolist())


def write_config(folder: Path, path: Path | str) -> Path:
    """A configuration that reads `path` and keeps its state in `folder`."""
    config = folder / "daemon.toml"
    places = {"path": path, "state": folder / "state", "dead_letters": folder / "dead-letters.jsonl"}
    config.write_text(CONFIG.format(**{name: json.dumps(str(place)) for name, place in places.items()}))
    return config


def daemon_command(config: Path) -> list[str]:
    return [sys.executable, "-m", "streammoe.cli", "run", str(config), "--fresh", "--summary", "json"]


@contextmanager
def one_core() -> Iterator[None]:
    """Processes started inside may use one core only, where the system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def run(command: list[str]) -> Run:
    """Runs a process on one core to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    with one_core():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(done.stdout, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def daemon(folder: Path, path: Path, repeats: int) -> Best:
    """The fastest of some runs over `path`."""
    command = daemon_command(write_config(folder, path))
    runs = [run(command) for _ in range(repeats)]
    return max(Best(json.loads(one.output)["events_per_second"], one.seconds, one.cpu_seconds) for one in runs)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="events of each file")
    parser.add_argument("--repeats", type=int, default=3, help="runs over each file")
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    rows = []
    least_share = 1.0
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name:
        folder = Path(name)
        print("writing files …", file=sys.stderr, flush=True)
        stream = tasks.full_gate(arguments.events)
        files = {"csv": "all.csv", "csv, 6 decimals": "six.csv", "jsonl": "all.jsonl"}
        write_csv(folder / "all.csv", stream)
        write_csv(folder / "six.csv", stream, decimals=6)
        write_jsonl(folder / "all.jsonl", stream)
        write_csv(folder / "one.csv", tasks.full_gate(1))
        startup = daemon(folder, folder / "one.csv", arguments.repeats)
        for title, file in files.items():
            print(f"{title} …", file=sys.stderr, flush=True)
            path = folder / file
            parse = [sys.executable, "-c", PARSE[path.suffix], str(path), *INPUTS, "y"]
            parsed = max(float(run(parse).output) for _ in range(arguments.repeats))
            best = daemon(folder, path, arguments.repeats)
            rate = best.events_per_second
            judged = [f"≥ {TARGET:,}", "met" if rate >= TARGET else "MISSED"] if title == "csv" else ["", ""]
            figures = [f"{rate:,.0f}", f"{best.seconds:.1f}", f"{best.cpu_seconds:.1f}"]
            busy = arguments.events / max(best.cpu_seconds - startup.cpu_seconds, 1e-9)
            share = best.cpu_seconds / best.seconds
            least_share = min(least_share, share)
            size = f"{path.stat().st_size / arguments.events:.0f}"
            rows.append(
                [
                    title,
                    size,
                    *figures,
                    f"{100.0 * share:.0f}%",
                    f"{busy:,.0f}",
                    f"{parsed:,.0f}",
                    f"{rate / parsed:.2f}",
                    *judged,
                ]
            )
    print(f"{arguments.events:,} events, 10 inputs, 4 experts, one core; start-up counts where a column says so")
    headers = ["file", "bytes/event", "events/s", "wall s with start-up", "CPU s with start-up", "share of core"]
    headers += ["events/CPU s", "PyArrow parses/s", "daemon / PyArrow", "target", "verdict"]
    print(table(headers, rows))
    print(f"Start-up, one event: {startup.seconds:.1f} s, of which {startup.cpu_seconds:.1f} s CPU")
    if least_share < QUIET:
        print("Something else used the core: events/s are too low, and events/CPU s show the daemon alone")


if __name__ == "__main__":
    main()
