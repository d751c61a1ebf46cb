"""Programs that pip does not install."""

import os
import shutil
import subprocess

import pytest

INSTALLED = {"systemd-analyze"}
"""Those that .ci/run installs. Debian's kubectl and go are too old."""


def run(name, *arguments, **options):
    """What a program prints, which must not fail. Where it is missing the test is skipped, or fails if all must run."""
    if shutil.which(name) is None:
        if name in INSTALLED and os.environ.get("CI") == "true":
            pytest.fail(f"must not be skipped where CI=true: {name} is not on PATH", pytrace=False)
        pytest.skip(f"{name} is not on PATH")
    done = subprocess.run([name, *arguments], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
