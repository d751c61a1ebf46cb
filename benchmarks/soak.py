"""Does anything grow, drift or stall over tens of millions of events?

A daemon learns the same events under many file names, one record in ten thousand of them bad, with checkpoints, dead
letters and metrics. Meanwhile its resident memory and its metrics are sampled from outside, and the time between
learned batches is measured inside. Requires Linux's /proc.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.performance.files import write_config, write_csv
from benchmarks.report import machine, table, verdict

FILE_EVENTS = 500_000
SETTLED = 500_000
"""Events after which memory must not grow any more."""
BAD_EVERY = 10_000
GROWTH_MB = 10.0
STALL_MS = 50.0
MASS_ERROR = 1e-9
PAUSE_SECONDS = 0.5
SAMPLE = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)", re.MULTILINE)


class Sample(NamedTuple):
    """A sample of the daemon."""

    events: int
    megabytes: float
    series: int
    mass_error: float
    """How far the experts' masses are from 1 in sum; NaN during the warm-up, which has none."""
    not_finite: tuple[str, ...]
    """Metrics that are not finite, but for those that say so of a source without an end."""


def spoil(path: Path) -> None:
    """Insert a bad record after every fixed number of good ones."""
    lines = path.read_bytes().splitlines(keepends=True)
    for at in range(len(lines) // BAD_EVERY * BAD_EVERY, 0, -BAD_EVERY):
        lines.insert(at, lines[at - 1].replace(b",", b",nan,", 1).partition(b"\n")[0] + b"\n")
    path.write_bytes(b"".join(lines))


def write_files(folder: Path, events: int) -> Path:
    """Create several files of the same events, not links, which the daemon reads once; return a glob for all."""
    folder.mkdir()
    first = folder / "part-000.csv"
    write_csv(first, tasks.full_gate(min(FILE_EVENTS, events)))
    spoil(first)
    for at in range(1, -(-events // FILE_EVENTS)):
        shutil.copyfile(first, folder / f"part-{at:03}.csv")
    return folder / "part-*.csv"


def resident_megabytes(pid: int) -> float | None:
    """Return the resident memory of a process; None once it has ended."""
    try:
        found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) / 1024.0 if found else None


def learn(config: Path) -> None:
    """Run the daemon in this process; print the address of its metrics, and at the end its summary as JSON."""
    from streammoe.assembly import open_daemon
    from streammoe.configuration import load_settings
    from streammoe.daemon.signals import StopFlag

    gaps: list[tuple[float, float]] = []
    last: tuple[float, float] | None = None
    with StopFlag() as stop:

        def on_batch(_progress: tuple[int, int] | None) -> None:
            nonlocal last
            now = time.perf_counter(), time.thread_time()
            if last is not None:
                gaps.append((now[0] - last[0], now[1] - last[1]))
            last = None if running.daemon.model.is_warming_up else now

        with open_daemon(load_settings(config), on_batch=on_batch) as running:
            print(running.metrics_url, flush=True)
            done = running.daemon.run(stop)
            finite = all(bool(np.isfinite(array).all()) for array in running.daemon.model.arrays().values())
    counts = {name: getattr(done, name) for name in ("events", "learned", "rejected")}
    usual, rare = np.percentile([wall for wall, _ in gaps], [50, 99.9])
    said = {**counts, "rate": done.events_per_second, "gaps": [usual, rare, *max(gaps)], "finite": finite}
    print(json.dumps(said))  # short, because it is not read before the end


def look(url: str, pid: int) -> Sample | None:
    """Sample the metrics and the process; None once the daemon has ended."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            text = answer.read().decode()
    except OSError:
        return None
    megabytes = resident_megabytes(pid)
    if megabytes is None:
        return None
    found = [(name, labels or "", float(value)) for name, labels, value in SAMPLE.findall(text)]
    values: dict[str, float] = {name + labels: value for name, labels, value in found}
    masses = [value for name, _, value in found if name == "streammoe_expert_mass"]
    warming_up = values["streammoe_warming_up"] == 1.0
    bad = tuple(name + labels for name, labels, value in found if not math.isfinite(value) and not warming_up)
    return Sample(int(values["streammoe_model_events"]), megabytes, len(found), abs(sum(masses) - 1.0), bad)


def observe(config: Path) -> tuple[list[Sample], dict[str, Any]]:
    """Return samples from start to end, and the daemon's summary."""
    command = [sys.executable, "-m", "benchmarks.soak", "--config", str(config)]
    samples = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            url = process.stdout.readline().strip()
            while process.poll() is None:
                sample = look(url, process.pid)
                if sample is not None:
                    samples.append(sample)
                time.sleep(PAUSE_SECONDS)
        finally:
            process.terminate()  # no effect if it has ended
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"the daemon exited with {process.returncode}")
    return samples, json.loads(said)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=50_000_000, help=f"rounded up to a multiple of {FILE_EVENTS:,}")
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.config:
        learn(arguments.config)
        return
    print(machine(), "\n")
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name:
        folder = Path(name)
        print("writing files …", file=sys.stderr, flush=True)
        files = write_files(folder / "data", arguments.events)
        print("learning …", file=sys.stderr, flush=True)
        samples, done = observe(write_config(folder, files))
    settled = [sample for sample in samples if sample.events >= SETTLED]
    # Memory fluctuates by several megabytes from batch to batch, so peaks are compared.
    peaks = [max(sample.megabytes for sample in part) for part in (settled[: len(settled) // 4], settled)]
    growth = peaks[1] - peaks[0]
    series = Counter(sample.series for sample in settled)
    mass_error = max(sample.mass_error for sample in settled)
    strange = sorted({name for sample in settled for name in sample.not_finite})
    usual, rare, stall, computing = 1000.0 * np.array(done["gaps"])
    equation = done["learned"] + done["rejected"] == done["events"]

    memory = "memory, largest of all over that of the first quarter, MB"
    longest = "longest from batch to batch after the warm-up, ms"
    checks = [
        (memory, f"{growth:.1f}", f"≤ {GROWTH_MB:g}", growth <= GROWTH_MB),
        ("metric series, fewest to most", f"{min(series)} to {max(series)}", "equal", len(series) == 1),
        ("masses' sum less 1, worst", f"{mass_error:.1e}", f"≤ {MASS_ERROR:g}", mass_error <= MASS_ERROR),
        ("metrics that are not finite", ", ".join(strange) or "none", "none", not strange),
        ("state at the end", "finite" if done["finite"] else "not finite", "finite", done["finite"]),
        ("learned + rejected = read", f"{done['learned']:,} + {done['rejected']:,}", f"{done['events']:,}", equation),
        (longest, f"{stall:.1f} ({computing:.1f} computing)", f"≤ {STALL_MS:g}", stall <= STALL_MS),
    ]
    rows = [[*cells, verdict(met)] for *cells, met in checks]
    print(f"from batch to batch {usual:.1f} ms half of the times, {rare:.1f} ms in 99.9 of 100")
    print(f"{done['events']:,} events of 10 inputs, 4 experts, {done['rate']:,.0f}/s, {len(settled)} samples")
    print(table(["what", "measured", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
