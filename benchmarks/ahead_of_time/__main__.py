"""Would kernels compiled before they are installed, from C, Cython or Rust, serve users better than numba's?

The loop of a Gaussian mixture (K = 4, default options, without groups) is in `loop.c`, `loop.pyx` and `loop.rs` as
`streammoe.kernels` has it, sum by sum. All learn the same events in turn, and figures are medians over rounds of CPU
time. Cython is left out without `--cython`, Rust without rustc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ahead_of_time import speed, start
from benchmarks.ahead_of_time.built import BY_NUMBA, IS_X86, SOURCES, WHEEL, WIDE, Built, build, run
from benchmarks.report import machine, table

ENVIRONMENTS: dict[str, dict[str, str]] = {
    "numba for this processor": {},
    **({f"numba for {WIDE}": {"NUMBA_CPU_NAME": WIDE, "NUMBA_CPU_FEATURES": ""}} if IS_X86 else {}),
    "numba for any processor": {"NUMBA_CPU_NAME": "generic"},
    "exp and log without FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2"},
}
"""In which the same events are learned; the C library chooses its functions when a process starts."""
SUFFIXES = {"C": "c", "Cython": "pyx", "Rust": "rs"}
"""Suffixes of the source files by language; for numba the sources are our kernels."""


def sizes(built: Sequence[Built]) -> str:
    """Time of building, and size of the result."""
    rows = []
    for each in built:
        source = SOURCES / f"loop.{SUFFIXES.get(each.language)}"
        lines = len(source.read_text(encoding="utf-8").splitlines()) if source.exists() else 0
        size = f"{each.path.stat().st_size / 1024:.0f}"
        rows.append([each.name, str(lines or "–"), f"{each.cpu_seconds:.1f}", size])
    installed = [sum(p.stat().st_size for p in _files(name)) / 2**20 for name in ("numba", "llvmlite")]
    text = table(("loop", "lines", "build, CPU s", "library, KiB"), rows)
    return f"{text}\n\ninstalled: numba {installed[0]:.0f} MiB, llvmlite {installed[1]:.0f} MiB"


def _files(name: str) -> list[Path]:
    listed = distribution(name).files or []
    found = [Path(str(file.locate())) for file in listed if file.suffix != ".pyc"]
    return [path for path in found if path.exists()]


def all_ahead(path: Path) -> Path:
    """Build a module of all kernels, and print what that takes."""
    seconds = run(*BY_NUMBA, "all", path, WHEEL)
    run("strip", path)
    size, packed = path.stat().st_size / 2**20, len(zlib.compress(path.read_bytes())) / 2**20
    print(f"\nall kernels ahead, {WHEEL}: {seconds:.0f} CPU s, {size:.1f} MiB, {packed:.1f} MiB as in a wheel")
    return path


def show_arrays(built: Sequence[Built], found: dict[str, dict[str, Any]]) -> None:
    """Print nanoseconds an event, as ratios to others of the same round, and whose bits are the same."""
    plain, *_ = ENVIRONMENTS
    features = [str(p) for p in speed.FEATURES]

    def ratio(environment: str, p: str, one: str, other: str) -> float:
        turns = found[environment]["ns"][p]
        return float(np.median(np.array(turns[one]) / turns[other]))

    rows = []
    for name in ("numba", *(each.name for each in built)):
        row = [name]
        for p in features:
            row += [f"{np.median(found[plain]['ns'][p][name]):.0f}", f"{ratio(plain, p, name, 'numba'):.2f}"]
        rows.append(row)
    print(table(("loop", *(part for p in features for part in (f"p = {p}, ns", "/ numba"))), rows), "\n")
    rows = []
    for environment, of in found.items():
        digests = of["digests"]
        n_same = sum(each == own["numba"] for own in digests.values() for each in own.values())
        n_all = sum(len(own) for own in digests.values())
        same = all(digests[p]["numba"] == found[plain]["digests"][p]["numba"] for p in features)
        speeds = [f"{ratio(environment, p, 'numba', f'C, {WIDE}'):.2f}" for p in features]
        rows.append([environment, *speeds, f"{n_same} of {n_all}", "yes" if same else "no"])
    headers = ("run", *(f"p = {p}, numba / C, {WIDE}" for p in features), "bits as numba's", "as in the first run")
    print(table(headers, rows))


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cython", help="the command that translates; by default Cython is left out")
    parser.add_argument("--all", action="store_true", help="all kernels ahead of time, too, which takes two minutes")
    parser.add_argument("--no-cold", action="store_true", help="no starts without a cache, which compile for a minute")
    parser.add_argument("--arrays", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.arrays:
        built = [
            Built(language, target, Path(path), seconds) for language, target, path, seconds in json.loads(given.arrays)
        ]
        print(json.dumps(speed.arrays(built, given.rounds)))
    else:
        report(given.rounds, given.cython, whole=given.all, cold=not given.no_cold)


def report(rounds: int, cython: str | None, *, whole: bool, cold: bool) -> None:
    """Measure all and print it."""
    print(machine(), "\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = build(folder, cython)
        print(sizes(built), "\n")
        arguments = json.dumps([[*each[:2], str(each.path), each.cpu_seconds] for each in built])
        found = {}
        for environment, variables in ENVIRONMENTS.items():
            print(f"{environment} …", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "benchmarks.ahead_of_time", "--arrays", arguments, "--rounds", str(rounds)]
            place = {"NUMBA_CACHE_DIR": str(folder / variables.get("NUMBA_CPU_NAME", "native"))}
            done = subprocess.run(
                command, env={**os.environ, **place, **variables}, stdout=subprocess.PIPE, text=True, check=True
            )
            found[environment] = json.loads(done.stdout.splitlines()[-1])
        show_arrays(built, found)
        print("one event …", file=sys.stderr, flush=True)
        rows = [(way, f"{np.median(us):.2f}") for way, us in speed.calls(built, rounds).items()]
        print("\n" + table(("a call for one event, p = 11", "CPU us"), rows))
        print("starts …", file=sys.stderr, flush=True)
        library = next(each.path for each in built if (each.language, each.target) == ("C", WIDE))
        kernels = all_ahead(folder / "kernels.so") if whole else None
        starts, parts = start.measured(library, kernels, folder / "native", rounds, cold=cold)
    print("\n" + table(("start, cached", "CPU s", "MiB"), starts))
    headers = (
        "start",
        "empty cache, CPU s",
        "cached",
        "import numba",
        "our kernels",
        "load",
        "kernels",
        "numba's part",
    )
    print("\n" + table(headers, parts))


if __name__ == "__main__":
    main()
