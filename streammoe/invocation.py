"""Commands to show to users, which work as they are in the shell that started this program."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The clone from which this program runs, unless it is installed elsewhere."""


def command_line(*words: str) -> str:
    """Return the command line of streammoe with these arguments.

    By its name only where PATH finds the one that is running: after `make demo` it is `.venv/bin/streammoe`.
    """
    started = sys.argv[0]
    if Path(started).name != "streammoe":  # a script of this environment, or `python -m streammoe`
        started = _shown(Path(sys.executable).with_name("streammoe"))
    if Path(sys.argv[0]).name == "__main__.py" or not Path(started).exists():
        return f"{python()} {shlex.join(['-m', 'streammoe', *words])}"
    return shlex.join(["streammoe" if _is_on_path(started) else started, *words])


def install_command(extra: str, package: str) -> str:
    """Return the command that installs an extra: in a clone its own, elsewhere the packages that it brings.

    Args:
        extra: its name.
        package: what of it is missing, which is named where nothing else is known.
    """
    if (ROOT / "pyproject.toml").is_file():
        folder = "." if _current_folder() == ROOT else str(ROOT)
        return f"{python()} -m pip install -e {shlex.quote(f'{folder}[{extra}]')}"
    from importlib import metadata  # slow to import, and errors are defined everywhere

    # Not `streammoe[extra]`: it is on no index, and pip would look for it there.
    try:
        requirements = metadata.requires("streammoe") or []
    except metadata.PackageNotFoundError:  # run from a folder that was put on the path
        requirements = []
    brought = [line.partition(";")[0].strip() for line in requirements if re.search(rf"; extra == .{extra}.$", line)]
    return f"{python()} -m pip install {shlex.join(brought or [package])}"


def python() -> str:
    """Return this Python for a command line."""
    return shlex.quote(_shown(Path(sys.executable)))


def _shown(path: Path) -> str:
    """Return a path that a shell takes for one: relative if the file is below the current folder."""
    folder = _current_folder()
    if path.parent == folder:
        return f"./{path.name}"
    return str(path.relative_to(folder) if folder in path.parents else path)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was removed, and nothing is below it
        return Path()


def _is_on_path(program: str) -> bool:
    found = shutil.which("streammoe")
    return found is not None and Path(found).resolve() == Path(program).resolve()
