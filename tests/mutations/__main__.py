"""Put one fault after the other into a copy of the code, and report which test finds it.

    python -m tests.mutations [--only NAME ...] [--jobs N] [--no-rest] [--update]

Each fault of `tests.mutations.faults` first meets the test that found it last time, then those of its area, and if
they all pass, the rest of the default suite; of faults that `found.txt` does not list only those named by `--only` do
so. A test counts only if it passes again once the fault is out. The exit code is 1 if a fault survives that `found.txt`
lists.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from tests.mutations.faults import AREAS, FAULTS, Fault

ROOT = Path(__file__).parents[2]
FOUND = Path(__file__).with_name("found.txt")
CODE = ("streammoe", "connectors")
LEFT_OUT = {".git", ".venv", "venv", ".kafka", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Of the checkout, in copies of it."""
LIMIT_SECONDS = 3_600.0
"""A fault may make a loop endless, which counts as found: no part of the suite takes so long."""
PASSED, FAILED, COLLECTION_FAILED, USAGE_ERROR, NO_TESTS = 0, 1, 2, 4, 5
"""Exit codes of pytest that say something about the code."""
AREA_OF = {fault.name: area for area, faults in FAULTS.items() for fault in faults}


class Copy:
    """A copy of the checkout in a folder, into which faults are put to be found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # With their times: Python and numba judge by them whether what they have compiled is still good.
        shutil.copytree(ROOT, folder, symlinks=True, ignore=_left_out, copy_function=shutil.copy2)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMMOE_", "PYTEST_"))}
        paths = [str(folder), str(folder / "connectors"), os.environ.get("PYTHONPATH", "")]
        self._environment = kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._environment.pop("NUMBA_CACHE_DIR", None)
        code, output = self._run(["-P", "-c", "import streammoe; print(streammoe.__file__)"])
        if code or not Path(output.strip()).is_relative_to(folder):
            raise SystemExit(f"the copy in {folder} is not what is imported: {output}")

    def finder(self, fault: Fault, last: str | None, *, rest: bool) -> str | None:
        """Return the id of the test that finds a fault, or how it ended; None if all pass, or if that test is red."""
        path = self.folder / locations(fault)[0]
        original, times = path.read_bytes(), path.stat()
        # numba does not notice that a function of another file, which it inlines, changed.
        is_compiled = "kernels" in path.parts or b"import numba" in original
        path.write_text(original.decode().replace(fault.old, fault.new))
        if is_compiled:
            self._drop_kernels()
        patterns = AREAS[AREA_OF[fault.name]].split()
        hinted = [str(each) for pattern in patterns for each in sorted((self.folder / "tests").rglob(pattern))]
        try:
            found = self._first_failure([last]) if last else None
            found = found or self._first_failure(hinted)
            if not found and rest:
                found = self._first_failure([f"--ignore={each}" for each in hinted])
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if is_compiled:
                self._drop_kernels()
                for name in CODE:
                    for compiled in (ROOT / name).rglob("__pycache__/*.nb?"):
                        shutil.copy2(compiled, self.folder / compiled.relative_to(ROOT))
        return None if found and "::" in found and self._first_failure([found]) else found

    def _first_failure(self, arguments: Sequence[str]) -> str | None:
        """Return the id of the first test that fails, or why the tests did not come to an end."""
        kept = self.folder / ".pytest_cache"
        shutil.rmtree(kept, ignore_errors=True)
        options = ["-x", "-v", "-n", "0", "-m", "not exhaustive", "--tb=no", "--hypothesis-seed=0"]
        code, output = self._run(["-m", "pytest", *options, "-o", f"cache_dir={kept}", *arguments])
        if code < 0:  # by a signal: a fault may write where there is no array, or never end
            return f"signal {-code} in {output.splitlines()[-1]}"
        if code in {PASSED, USAGE_ERROR, NO_TESTS}:  # the second of a test that was renamed or deleted
            return None
        failed = kept / "v" / "cache" / "lastfailed"
        if code not in {FAILED, COLLECTION_FAILED} or not failed.exists():
            raise SystemExit(f"pytest {' '.join(arguments)} ended with exit code {code}:\n{output[-5_000:]}")
        return str(next(iter(json.loads(failed.read_text()))))

    def _run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run Python in the copy; return its exit code and output."""
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
            try:
                process.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what its tests have started
            code = process.wait()
            output.seek(0)
            return code, output.read()

    def _drop_kernels(self) -> None:
        for name in CODE:
            for compiled in (self.folder / name).rglob("__pycache__/*.nb?"):
                compiled.unlink()


def _left_out(folder: str, names: list[str]) -> set[str]:
    return LEFT_OUT.intersection(names) if Path(folder) == ROOT else set()


@cache
def _sources() -> dict[Path, str]:
    """Return the source of each file of the code by its path relative to the checkout."""
    paths = sorted(path for name in CODE for path in (ROOT / name).rglob("*.py"))
    return {path.relative_to(ROOT): path.read_text() for path in paths}


def locations(fault: Fault) -> list[Path]:
    """Return the files that hold a fault's snippet, one entry for each time, relative to the checkout."""
    return [path for path, source in _sources().items() for _ in range(source.count(fault.old))]


def problems() -> list[str]:
    """Return what is wrong with the table: each fault must fit into exactly one place of the code."""
    every = [fault for faults in FAULTS.values() for fault in faults]
    found = []
    for fault in every:
        places = locations(fault)
        if len(places) != 1:
            found.append(f"fault {fault.name} is in {len(places)} places, {list(map(str, places))}: {fault.old!r}")
            continue
        try:
            ast.parse(_sources()[places[0]].replace(fault.old, fault.new))
        except SyntaxError:
            found.append(f"fault {fault.name} leaves no code, which any test finds")
    found += [f"area {area!r} has faults and no tests in AREAS" for area in FAULTS.keys() - AREAS]
    found += [
        f"area {area!r} names {pattern}, which no test file matches"
        for area, patterns in AREAS.items()
        for pattern in patterns.split()
        if not any((ROOT / "tests").rglob(pattern))
    ]
    names = Counter(fault.name for fault in every)
    return found + [f"{times} faults are called {name}" for name, times in names.items() if times > 1]


def main() -> int:
    """Run the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description="Report which test finds a fault")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=AREA_OF, help="of all faults take these")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a copy of its own; 0: by cores")
    parser.add_argument("--no-rest", dest="rest", action="store_false", help="run the hinted tests only")
    parser.add_argument("--update", action="store_true", help="write what is found, and by which test, to found.txt")
    options = parser.parse_args()
    if wrong := problems():
        raise SystemExit("\n".join([*wrong, "mend tests/mutations/faults.py"]))
    faults = [fault for each in FAULTS.values() for fault in each if not options.only or fault.name in options.only]
    lines = (line.partition(" ") for line in FOUND.read_text().splitlines())
    finders = {name: test or None for name, _, test in lines if name in AREA_OF}
    own = threading.local()

    def judged(fault: Fault) -> str | None:
        if not hasattr(own, "copy"):
            own.copy = Copy(Path(tempfile.mkdtemp(dir=folder)).resolve() / "copy")
        rest = options.rest and (fault.name in finders or options.only is not None)
        found: str | None = own.copy.finder(fault, finders.get(fault.name), rest=rest)
        print(f"| {fault.name} | {AREA_OF[fault.name]} | {found or 'SURVIVES'} |", flush=True)
        return found

    with (
        tempfile.TemporaryDirectory(prefix="streammoe-faults-") as folder,
        ThreadPoolExecutor(options.jobs or os.cpu_count()) as pool,
    ):
        found = dict(zip((fault.name for fault in faults), pool.map(judged, faults), strict=True))
    if options.update:
        both = finders | {name: test for name, test in found.items() if test}
        FOUND.write_text("".join(f"{name} {test or ''}".rstrip() + "\n" for name, test in sorted(both.items())))
    lost = [name for name, test in found.items() if not test and name in finders]
    print(f"{sum(map(bool, found.values()))} of {len(faults)} faults found; no longer found: {', '.join(lost) or '-'}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
