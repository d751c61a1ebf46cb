"""Prometheus and promtool: those on PATH, or Debian's, unpacked into a cache, where no service starts."""

import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from tests.kafka_lab.broker import Unavailable, free_port
from tests.kafka_lab.lab import wait_until


def program(name):
    """The path of `prometheus` or `promtool`.

    Raises:
        Unavailable: it is not here, and cannot be fetched.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "streammoe", "prometheus")
    unpacked = cache / "usr" / "bin" / name
    if (found := shutil.which(name)) or unpacked.exists():
        return found or str(unpacked)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Unavailable("PATH holds neither prometheus nor apt-get to fetch it; install Prometheus")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as scratch:
        fetch = ["apt-get", "download", "-q", "prometheus"]
        done = subprocess.run(fetch, cwd=scratch, capture_output=True, text=True, check=False)
        packages = list(Path(scratch).glob("prometheus_*.deb"))
        if done.returncode or not packages:
            said = done.stderr.strip().splitlines()[-1:]
            raise Unavailable(f"apt-get cannot download prometheus ({said}); try apt-get update, or install it")
        subprocess.run(["dpkg-deb", "-x", packages[0], Path(scratch, "all")], check=True)
        shutil.rmtree(cache, ignore_errors=True)
        Path(scratch, "all").rename(cache)
    return str(unpacked)


class Prometheus:
    """A Prometheus on loopback, from entering to leaving."""

    def __init__(self, folder, config):
        self._folder = folder
        self._config = config
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self):
        address, data = self.url.removeprefix("http://"), self._folder / "data"
        command = [f"--config.file={self._config}", f"--web.listen-address={address}", f"--storage.tsdb.path={data}"]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen([program("prometheus"), *command], stdout=log, stderr=log)
        try:
            wait_until(self._is_ready, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.kill()  # its data is not needed any more
        self._process.wait()

    def _is_ready(self):
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2):
                return True
        except OSError:
            return False

    def query(self, expression):
        """The series of an expression, now.

        Raises:
            ValueError: it is none.
        """
        return self._ask(f"query?{urllib.parse.urlencode({'query': expression})}")["result"]

    def rules(self):
        """All alerting rules, with what they have come to."""
        return [rule for group in self._ask("rules")["groups"] for rule in group["rules"]]

    def _ask(self, what):
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]) from None
