"""Does the daemon's memory stay flat over millions of events?

`streammoe run` learns several files in turn while its resident memory and, from its metrics, the number of learned
events are sampled. Requires Linux's /proc.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.daemon_throughput import daemon_command, write_config, write_csv
from benchmarks.report import machine, table

SETTLED = 500_000
"""Events after which memory must not grow any more."""
TARGET_MB = 5.0
FILE_EVENTS = 500_000
PAUSE_SECONDS = 0.05


class Sample(NamedTuple):
    """A sample of the process."""

    events: int
    megabytes: float


def write_files(folder: Path, events: int) -> Path:
    """Create several files of the same events, not links, which the daemon reads once; return a glob for all."""
    folder.mkdir()
    first = folder / "part-000.csv"
    write_csv(first, tasks.full_gate(min(FILE_EVENTS, events)))
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


def events_learned(url: str) -> int | None:
    """Read the metrics; None if there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            found = re.search(rb"^streammoe_model_events (\S+)", answer.read(), re.MULTILINE)
    except (OSError, urllib.error.URLError):
        return None
    return int(float(found[1])) if found else None


def observe(config: Path, log: Path) -> tuple[list[Sample], int]:
    """Return samples from start to end, and the number of learned events."""
    samples: list[Sample] = []
    url = None
    with (
        log.open("wb") as stderr,
        subprocess.Popen(daemon_command(config), stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        try:
            while process.poll() is None:
                time.sleep(PAUSE_SECONDS)
                if url is None:
                    found = re.search(r"metrics at (\S+)\n", log.read_text(encoding="utf-8"))
                    url = found and found[1]
                    continue
                events, megabytes = events_learned(url), resident_megabytes(process.pid)
                if events is not None and megabytes is not None:
                    samples.append(Sample(events, megabytes))
        finally:
            process.terminate()  # no effect if it has ended
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the daemon failed:\n{log.read_text(encoding='utf-8')}")
    return samples, json.loads(output)["learned"]


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=5_000_000, help=f"rounded up to a multiple of {FILE_EVENTS:,}")
    parser.add_argument("--samples", type=Path, help="write all samples to this csv file")
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    headers = ["events learned", "resident MB", "growth MB", "target", "verdict"]
    if not Path("/proc/self/status").exists():
        print(table(headers, [["no /proc here", "", "", f"≤ {TARGET_MB:g} MB", "not run"]]))
        return
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name:
        folder = Path(name)
        print("writing files …", file=sys.stderr, flush=True)
        config = write_config(folder, write_files(folder / "data", arguments.events))
        print("learning …", file=sys.stderr, flush=True)
        samples, learned = observe(config, folder / "log")
    if arguments.samples:
        np.savetxt(arguments.samples, samples, delimiter=",", header="events,megabytes", comments="", fmt="%g")
    settled = [sample for sample in samples if sample.events >= SETTLED]
    if not settled:
        raise SystemExit(f"no sample at or after event {SETTLED:,}; let it learn more --events")
    start = settled[0].megabytes
    rows = []
    for mark in np.linspace(SETTLED, learned, 10):
        sample = next((one for one in settled if one.events >= mark), settled[-1])
        rows.append([f"{sample.events:,}", f"{sample.megabytes:.1f}", f"{sample.megabytes - start:+.1f}", "", ""])
    largest = max(sample.megabytes for sample in settled)
    rows.append(["largest of all", f"{largest:.1f}", f"{largest - start:+.1f}", "", ""])
    growth = settled[-1].megabytes - start
    verdict = "met" if growth <= TARGET_MB else "MISSED"
    rows.append(["at the end", f"{settled[-1].megabytes:.1f}", f"{growth:+.1f}", f"≤ {TARGET_MB:g} MB", verdict])
    print(f"{learned:,} events of 10 inputs, 4 experts; {len(samples)} samples, growth since event {SETTLED:,}")
    print(table(headers, rows))


if __name__ == "__main__":
    main()
