"""Prometheus and promtool: those on PATH, or Debian's, unpacked into a cache, where no service starts."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from streammoe.testing.kafka.broker import Unavailable, free_port

TIMEOUT = 120


def program(name):
    """The path of `prometheus` or `promtool`.

    Raises:
        Unavailable: it is not here, and cannot be fetched.
    """
    found = shutil.which(name)
    if found:
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "streammoe", "prometheus")
    unpacked = cache / "usr" / "bin" / name
    if not unpacked.exists():
        _unpack(cache)
    return str(unpacked)


def _unpack(cache):
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("PATH holds neither prometheus nor apt-get to fetch it; install Prometheus")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        fetch = ["apt-get", "download", "-q", "prometheus"]
        done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        packages = list(Path(scratch).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            raise Unavailable(
                f"apt-get cannot download prometheus ({done.stderr.strip().splitlines()[-1:]}); try apt-get update, or "
                "install Prometheus"
            )
        subprocess.run(["dpkg-deb", "-x", packages[0], Path(scratch, "all")], check=True)
        shutil.rmtree(cache, ignore_errors=True)
        Path(scratch, "all").rename(cache)


class Prometheus:
    """A Prometheus on loopback, from entering to leaving."""

    def __init__(self, folder, config):
        self._folder = folder
        self._config = config
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process = None

    def __enter__(self):
        command = [
            program("prometheus"),
            f"--config.file={self._config}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            f"--storage.tsdb.path={self._folder / 'data'}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + TIMEOUT
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError((self._folder / "prometheus.log").read_text())
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
                return True
        except OSError:
            return False

    def query(self, expression):
        """The series of an expression, now.

        Raises:
            ValueError: it is no PromQL.
        """
        question = urllib.parse.urlencode({"query": expression})
        return self._ask(f"query?{question}")["result"]

    def rules(self):
        """The alerts, as they are evaluated."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what):
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]) from None
