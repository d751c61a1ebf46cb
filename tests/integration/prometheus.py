"""Prometheus' own tools: those on PATH, or Debian's, unpacked into a cache, where no service starts."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import yaml

from tests.kafka_lab.broker import Unavailable, free_port

CONFIG = Path(__file__).parents[2] / "config" / "prometheus"

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


def started(folder, scrapes):
    """A process of Prometheus with the rules and times of config/prometheus that scrapes these, and its address."""
    config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
    config |= {"rule_files": [str(CONFIG / "alerts.yml")], "scrape_configs": [{"job_name": "streammoe", **scrapes}]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True), f"http://{address}"
