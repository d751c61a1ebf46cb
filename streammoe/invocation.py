"""Commands to show to users, which work as they are in the shell that started this program."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path


def command_line(*words: str) -> str:
    """Return the command line of streammoe with these arguments.

    By its name only where PATH finds the one that is running: after `make demo` it is `.venv/bin/streammoe`.
    """
    started = sys.argv[0]
    if Path(started).match("streammoe/__main__.py"):
        return shlex.join([sys.executable, "-m", "streammoe", *words])
    if Path(started).name != "streammoe":  # a script of this environment
        started = str(Path(sys.executable).with_name("streammoe"))
    return shlex.join(["streammoe" if shutil.which("streammoe") == started else started, *words])


def install_command(extra: str, package: str) -> str:
    """Return the command that installs what an extra brings.

    Args:
        extra: its name.
        package: what of it is missing, which is named where nothing else is known.
    """
    from importlib import metadata  # slow to import, and errors are defined everywhere

    # Not `streammoe[extra]`: it is on no index, and pip would look for it there.
    try:
        requirements = metadata.requires("streammoe") or []
    except metadata.PackageNotFoundError:  # run from a folder that was put on the path
        requirements = []
    brought = [line.partition(";")[0].strip() for line in requirements if re.search(rf"; extra == .{extra}.$", line)]
    return shlex.join([sys.executable, "-m", "pip", "install", *(brought or [package])])


def python() -> str:
    """Return this Python for a command line."""
    return shlex.quote(sys.executable)
