"""What a start costs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import tasks
from benchmarks.daemon_throughput import daemon_command, write_config, write_csv

PEAK = """
import pathlib
status = pathlib.Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else ()
print("", *(line.split()[1] for line in lines if line.startswith("VmHWM")), sep="\\n")
"""
"""Prints the process's own peak of memory: what its parent says of it begins with the parent's."""
IMPORT_C = """
import numpy
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("loop", {path!r})
spec.loader.exec_module(module_from_spec(spec))
"""
AHEAD = """
from benchmarks.ahead_of_time import by_numba
by_numba.without_numba({path!r})
"""
PARTS = "from benchmarks.ahead_of_time import parts\n"


def cost(command: Sequence[str], cache: Path) -> tuple[float, list[str]]:
    """Return the CPU seconds of a process that keeps its kernels in this folder, and what it printed."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if process.returncode:
            raise SystemExit(err.read().decode())
        return usage.ru_utime + usage.ru_stime, out.read().decode().splitlines()


def measured(
    library: Path, kernels: Path | None, cache: Path, rounds: int, *, cold: bool
) -> tuple[list[list[str]], list[list[str]]]:
    """Return rows about whole starts, and about numba's part of them; all run in turn.

    Args:
        library: the module of C.
        kernels: the module of all kernels, if there is one.
        cache: a folder for kernels, filled by the first run of each.
        rounds: that count.
        cold: whether to start once with an empty folder, too.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_csv(folder / "one.csv", tasks.full_gate(1))
        daemon = daemon_command(write_config(folder, folder / "one.csv"))[3:]
        starts: dict[str, list[str]] = {"first event of MoERegressor": [], "daemon with one event": daemon}
        scripts = {
            "Python": "",
            "and NumPy": "import numpy\n",
            "and NumPy, the module of C": IMPORT_C.format(path=str(library)),
            "and NumPy, numba": "import numpy, numba\n",
            **{start: f"{PARTS}parts.start({arguments!r})\n" for start, arguments in starts.items()},
        }
        if kernels:
            scripts["first event, kernels compiled ahead"] = (
                AHEAD.format(path=str(kernels)) + PARTS + "parts.start([])\n"
            )
        first = {}
        for start in starts if cold else ():
            with tempfile.TemporaryDirectory() as empty:
                first[start] = f"{cost([sys.executable, '-c', scripts[start]], Path(empty))[0]:.1f}"
        whole: dict[str, list[tuple[float, float]]] = {start: [] for start in scripts}
        parts: dict[str, list[list[float]]] = {start: [] for start in starts}
        for turn in range(-1, rounds):
            for start, script in scripts.items():
                seconds, printed = cost([sys.executable, "-c", script + PEAK], cache)
                if turn >= 0:
                    whole[start].append((seconds, float(printed[-1] or "nan") / 1024))
            own = [sys.executable, "-m", "benchmarks.ahead_of_time.parts"]
            for start, arguments in starts.items():
                seen = json.loads(cost([*own, "watched", *arguments], cache)[1][-1])
                modules = folder / "modules.json"
                modules.write_text(json.dumps(seen["modules"]))
                imports = json.loads(cost([*own, "imports", str(modules)], cache)[1][-1])
                if turn >= 0:
                    parts[start].append([*imports, seen["load"], seen["kernels"]])
    medians = {start: np.median(runs, axis=0) for start, runs in whole.items()}
    rows = []
    for start, found in parts.items():
        *seconds, kernels = np.median(found, axis=0).tolist()
        total = medians[start][0]
        cells = [f"{each:.3f}" for each in seconds]
        share = f"{sum(seconds) / total:.0%}"
        rows.append([start, first.get(start, "–"), f"{total:.2f}", *cells, f"{kernels:.0f}", share])
    return [[start, f"{seconds:.3f}", f"{mebibytes:.0f}"] for start, (seconds, mebibytes) in medians.items()], rows
