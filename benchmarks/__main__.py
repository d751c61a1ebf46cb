"""Run all benchmarks except the longest: `python -m benchmarks`, or some: `python -m benchmarks --only poison`.

The papers' tables, which are about accuracy, are a separate package: `python -m benchmarks.papers`.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.report import machine

NAMES = (
    "first_start",
    "performance",
    "shortcuts",
    "longest_call",
    "outliers",
    "wrong_values",
    "image_segments",
    "daemon_throughput",
    "daemon_memory",
    "checkpoint_stall",
    "input_limits",
    "poison",
    "drift",
    "shifts",
    "portfolio_cost",
    "calibration",
    "kafka",
)
LONG = ("batch_methods", "distributed", "n_experts", "pictures", "real", "soak")
"""Minutes to hours; run only when asked for by name."""
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


def question(name: str) -> str:
    """Return the first line of the docstring of a script, or of the one that runs a package."""
    script = Path(__file__).with_name(f"{name}.py")
    if not script.exists():
        script = script.with_suffix("") / "__main__.py"
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or name).partition("\n")[0]


def run(name: str) -> tuple[int, list[str]]:
    """Run a script in a separate process, so that scripts do not share memory or threads.

    Prints its output as it arrives, without the line about the machine; returns its exit code and the lines on which a
    target was missed.
    """
    command = [sys.executable, "-u", "-m", f"benchmarks.{name}"]
    # The tables are about one core.
    environment = {**dict.fromkeys(THREADS, "1"), **os.environ}
    missed = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        shown = False
        for line in process.stdout:
            shown = shown or not (line.strip() == machine() or line.isspace())
            if shown:
                print(line, end="", flush=True)
            if line.rstrip(" |\n").endswith("MISSED"):
                missed.append(" ".join(line.split()))
    return process.returncode, missed


def main(argv: list[str] | None = None) -> int:
    """Print all tables, then the missed targets; return 1 only if a script failed to run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=[*NAMES, *LONG], help="may be repeated")
    chosen = parser.parse_args(argv).only or NAMES
    print(machine(), flush=True)
    begun = time.perf_counter()
    notes = []
    failed = 0
    for at, name in enumerate(chosen, 1):
        print(f"\n== {name}: {question(name)}\n", flush=True)
        print(f"[{at}/{len(chosen)}] {name} …", file=sys.stderr, flush=True)
        since = time.perf_counter()
        code, missed = run(name)
        print(f"[{at}/{len(chosen)}] {name}: {time.perf_counter() - since:.0f} s", file=sys.stderr, flush=True)
        notes += [f"{name}: {line}" for line in missed]
        if code:
            failed += 1
            notes.append(f"{name}: failed with exit code {code}")
    print(f"\n== {len(chosen)} benchmarks in {(time.perf_counter() - begun) / 60.0:.1f} minutes; short of a target:\n")
    print("\n".join(notes) or "nothing")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
