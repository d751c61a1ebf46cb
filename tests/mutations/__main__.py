"""Put one fault after the other into a copy of the code, and report which test finds it.

    python -m tests.mutations [--only NAME ...] [--jobs N] [--no-rest] [--update]

Each fault of `tests.mutations.faults` first meets the test that found it last time, then those of its area, and if
they all pass, the rest of the default suite; of faults that `found.txt` does not list only those named by `--only` do
so. A test counts only if it passes again once the fault is out. The exit code is 1 if a fault survives that `found.txt`
lists.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.mutations.faults import AREAS, FAULTS, Fault

ROOT = Path(__file__).parents[2]
FOUND = Path(__file__).with_name("found.txt")
CODE = ("streammoe", "connectors")
LEFT_OUT = {".git", ".venv", "venv", ".kafka", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Of the checkout, in copies of it."""
STALLED_SECONDS = 900.0
"""A fault may make a loop endless, which counts as found: no test and no compilation takes so long."""
PASSED, FAILED, COLLECTION_FAILED, USAGE_ERROR, NO_TESTS = 0, 1, 2, 4, 5
"""Exit codes of pytest that say something about the code."""
STOPPING = threading.Event()
"""Set when the results are no longer wanted."""
AREA_OF = {fault.name: area for area, faults in FAULTS.items() for fault in faults}


class Verdict(NamedTuple):
    """What became of one fault."""

    fault: Fault
    found_by: str | None
    """Id of the first test that failed, or that time was out or a signal ended it; None if all passed."""
    seconds: float


class Copy:
    """A copy of the checkout, into which faults are put to be found.

    Args:
        folder: where to make it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache = folder / ".pytest_cache"
        # With their times: Python and numba judge by them whether what they have compiled is still good.
        shutil.copytree(ROOT, folder, symlinks=True, ignore=_left_out, copy_function=shutil.copy2)
        paths = [str(folder), str(folder / "connectors"), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("STREAMMOE_", "PYTEST_"))},
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        self._environment.pop("NUMBA_CACHE_DIR", None)
        self._check_imports()

    def judge(self, fault: Fault, last: str | None, *, rest: bool) -> Verdict:
        """Put a fault in, look for it by the test that found it last and then by others, and take it out."""
        began = time.monotonic()
        path = self.folder / location_of(fault)
        original, times = path.read_bytes(), path.stat()
        compiled = is_compiled(path)
        path.write_text(original.decode().replace(fault.old, fault.new))
        if compiled:
            self._drop_kernels()
        try:
            hinted = self._existing(AREAS[AREA_OF[fault.name]].split())
            found, remark = self._first_failure([last]) if last else (None, "")
            if not (found or remark):
                found, remark = self._first_failure(hinted)
            if not (found or remark) and rest:
                found, remark = self._first_failure([f"--ignore={path}" for path in hinted])
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if compiled:
                self._drop_kernels()
                self._restore_kernels()
        return Verdict(fault, found or remark or None, time.monotonic() - began)

    def red(self, tests: Sequence[str]) -> set[str]:
        """Those of the tests that fail without any fault, too."""
        found: set[str] = set()
        while left := [test for test in tests if test not in found]:
            test, remark = self._first_failure(left)
            if test is None and remark:
                raise SystemExit(f"without any fault: {remark}")
            if test is None:
                break
            found.add(test)
        return found

    def _existing(self, patterns: Sequence[str]) -> list[str]:
        """The paths under tests/ that patterns match, each once, in the order of the patterns."""
        found = [path for pattern in patterns for path in sorted((self.folder / "tests").rglob(pattern))]
        return list(dict.fromkeys(str(path.relative_to(self.folder)) for path in found))

    def _first_failure(self, arguments: Sequence[str]) -> tuple[str | None, str]:
        """The id of the first test that fails, if any, and a remark if one did not come to an end."""
        options = ["-x", "-v", "-n", "0", "-m", "not exhaustive", "--tb=no", "--hypothesis-seed=0", "-o"]
        shutil.rmtree(self._cache, ignore_errors=True)
        code, output = self._run(["-m", "pytest", *options, f"cache_dir={self._cache}", *arguments])
        if code is None:
            return None, f"time-out in {output.splitlines()[-1]}"
        if code < 0:  # by a signal: a fault may write where there is no array
            return None, f"signal {-code} in {output.splitlines()[-1]}"
        if code in {PASSED, USAGE_ERROR, NO_TESTS}:  # the second of a test that was renamed or deleted
            return None, ""
        failed = self._cache / "v" / "cache" / "lastfailed"
        if code not in {FAILED, COLLECTION_FAILED} or not failed.exists():
            raise SystemExit(f"pytest {' '.join(arguments)} ended with exit code {code}:\n{output[-5_000:]}")
        return next(iter(json.loads(failed.read_text()))), ""

    def _run(self, arguments: Sequence[str]) -> tuple[int | None, str]:
        """Exit code, None if it went on for long without printing anything, and output of Python in the copy."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            size, moved = 0, time.monotonic()
            try:
                while process.poll() is None and time.monotonic() - moved < STALLED_SECONDS and not STOPPING.is_set():
                    time.sleep(0.2)
                    if (now := os.fstat(output.fileno()).st_size) != size:
                        size, moved = now, time.monotonic()
                code = process.poll()
            finally:
                if process.poll() is None:  # with what its tests have started
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return code, output.read()

    def _check_imports(self) -> None:
        """Make sure that processes started from here import the copy and not the checkout."""
        program = "import streammoe, streammoe_connectors as c; print(streammoe.__file__, c.__file__)"
        code, output = self._run(["-P", "-c", program])
        if code or not all(Path(name).is_relative_to(self.folder) for name in output.split()):
            raise SystemExit(f"the copy in {self.folder} is not what is imported: {output}")

    def _drop_kernels(self) -> None:
        """Remove all machine code: numba does not notice that a function of another file, which it inlines, changed."""
        for name in CODE:
            for compiled in (self.folder / name).rglob("__pycache__/*.nb?"):
                compiled.unlink()

    def _restore_kernels(self) -> None:
        for name in CODE:
            for compiled in (ROOT / name).rglob("__pycache__/*.nb?"):
                shutil.copy2(compiled, self.folder / compiled.relative_to(ROOT))


def _left_out(folder: str, names: list[str]) -> set[str]:
    return LEFT_OUT.intersection(names) if Path(folder) == ROOT else set()


def is_compiled(path: Path) -> bool:
    """Whether a file's functions, or those that inline them, are compiled by numba."""
    return "kernels" in path.parts or "import numba" in path.read_text()


def locations(fault: Fault) -> list[Path]:
    """The files that hold a fault's snippet, one entry for each time, relative to the checkout."""
    return [path for path, source in _sources().items() for _ in range(source.count(fault.old))]


@cache
def _sources() -> dict[Path, str]:
    """The source of each file of the code by its path relative to the checkout."""
    paths = sorted(path for name in CODE for path in (ROOT / name).rglob("*.py"))
    return {path.relative_to(ROOT): path.read_text() for path in paths}


def location_of(fault: Fault) -> Path:
    """The file that a fault belongs into."""
    return locations(fault)[0]


def check(faults: Sequence[Fault]) -> None:
    """Make sure that each fault fits into exactly one place of the code.

    Raises:
        SystemExit: with all that do not.
    """
    problems = []
    for fault in faults:
        places = locations(fault)
        if len(places) != 1:
            where = f"in {len(places)} places ({', '.join(map(str, places))})" if places else "nowhere"
            problems.append(f"fault {fault.name} no longer applies: its snippet occurs {where}: {fault.old!r}")
    problems += [f"area {area!r} has faults and no tests in AREAS" for area in FAULTS.keys() - AREAS]
    problems += [
        f"area {area!r} names {pattern}, which no test file matches"
        for area, patterns in AREAS.items()
        for pattern in patterns.split()
        if not any((ROOT / "tests").rglob(pattern))
    ]
    names = Counter(fault.name for faults in FAULTS.values() for fault in faults)
    problems += [f"{times} faults are called {name}" for name, times in names.items() if times > 1]
    if problems:
        raise SystemExit("\n".join([*problems, "mend tests/mutations/faults.py"]))


def look_for(faults: Sequence[Fault], finders: Mapping[str, str | None], options: argparse.Namespace) -> list[Verdict]:
    """Judge faults, several at a time, each in a copy of its own; results are printed as they come."""
    verdicts: dict[str, Verdict] = {}
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()

    def judge(fault: Fault) -> Verdict:
        copy = copies.get()
        try:
            rest = options.rest and (fault.name in finders or options.only is not None)
            return copy.judge(fault, finders.get(fault.name), rest=rest)
        finally:
            copies.put(copy)

    with tempfile.TemporaryDirectory(prefix="streammoe-faults-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            copies.put(Copy(Path(folder).resolve() / str(number)))
        futures = [pool.submit(judge, fault) for fault in faults]
        try:
            for future in as_completed(futures):
                verdict = future.result()
                verdicts[verdict.fault.name] = verdict
                print(_line(verdict), flush=True)
        except BaseException:
            STOPPING.set()
            pool.shutdown(cancel_futures=True)
            raise
        by = {verdict.found_by for verdict in verdicts.values()}
        red = copies.get().red(sorted(test for test in by if test and "::" in test))
    for name, verdict in verdicts.items():
        if verdict.found_by in red:
            print(f"{verdict.found_by} fails without a fault, too, so that {name} is not found")
            verdicts[name] = verdict._replace(found_by=None)
    return [verdicts[fault.name] for fault in faults]


def _line(verdict: Verdict) -> str:
    name = verdict.fault.name
    return f"| {name} | {AREA_OF[name]} | {verdict.found_by or 'SURVIVES'} | {verdict.seconds:.0f} |"


def read_finders() -> dict[str, str | None]:
    """Return the faults that must be found, each with the test that found it last, where that is known."""
    lines = FOUND.read_text().splitlines() if FOUND.exists() else []
    parts = (line.partition(" ") for line in lines)
    return {name: test or None for name, _, test in parts}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations", description="Report which test finds which fault"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of all faults take these")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a copy of its own; 0: by cores")
    parser.add_argument("--no-rest", dest="rest", action="store_false", help="run the hinted tests only")
    parser.add_argument("--update", action="store_true", help="write what is found, and by which test, to found.txt")
    options = parser.parse_args(arguments)
    options.jobs = options.jobs or os.cpu_count() or 1
    unknown = set(options.only or ()) - AREA_OF.keys()
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    every = [fault for faults in FAULTS.values() for fault in faults]
    faults = [fault for fault in every if options.only is None or fault.name in options.only]
    check(faults)
    finders = read_finders()
    verdicts = look_for(faults, finders, options)
    found = {verdict.fault.name: verdict.found_by for verdict in verdicts if verdict.found_by is not None}
    print(f"{len(found)} of {len(faults)} faults found")
    print("".join(f"survives: {fault.name}\n" for fault in faults if fault.name not in found), end="")
    lost = sorted({fault.name for fault in faults} & finders.keys() - found.keys())
    if options.update:
        lines = sorted({**finders, **found}.items())
        FOUND.write_text("".join(f"{name} {test or ''}".rstrip() + "\n" for name, test in lines))
    for name in lost:
        print(f"no longer found: {name}", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
