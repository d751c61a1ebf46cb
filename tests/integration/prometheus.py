"""Prometheus' own tools: those on PATH, or Debian's, unpacked into a cache, where no service starts."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kafka_lab.broker import Unavailable

PACKAGES = {"prometheus": "prometheus", "promtool": "prometheus", "amtool": "prometheus-alertmanager"}


def program(name):
    """The path of one of `PACKAGES`.

    Raises:
        Unavailable: it is not here, and cannot be fetched.
    """
    package = PACKAGES[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "streammoe", package)
    unpacked = cache / "usr" / "bin" / name
    if (found := shutil.which(name)) or unpacked.exists():
        return found or str(unpacked)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable(f"PATH holds neither {name} nor apt-get to fetch it; install {package}")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        fetch = ["apt-get", "download", "-q", package]
        done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        packages = list(Path(scratch).glob(f"{package}_*.deb"))
        if done.returncode or not packages:
            said = done.stderr.strip().splitlines()[-1:]
            raise Unavailable(f"apt-get cannot download {package} ({said}); try apt-get update, or install it")
        subprocess.run(["dpkg-deb", "-x", packages[0], Path(scratch, "all")], check=True)
        shutil.rmtree(cache, ignore_errors=True)
        Path(scratch, "all").rename(cache)
    return str(unpacked)
