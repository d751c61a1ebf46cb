"""A folder to run the command line in.

To stop a daemon in the middle of a file without a race, a connector of the tests' own, found through its entry point
as any third party's is, gives some batches of a file and then waits.
"""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest

from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings

BATCH = 4096
TIMEOUT = 120
"""Seconds after which something is not slow but stuck, also on a machine that does much else."""

CONNECTOR = '''
import time
from pathlib import Path
from typing import Literal

from streammoe_connectors.files.source import FileSource


class PausingSource(FileSource):
    """Gives some batches, leaves a mark, and then waits for ever."""

    class Settings(FileSource.Settings):
        kind: Literal["pausing"]
        batches: int
        mark: str

    given = 0

    def poll(self, timeout):
        if self.given == self._settings.batches:
            Path(self._settings.mark).touch()
            time.sleep(timeout)
            return None
        self.given += 1
        return super().poll(timeout)
'''


class StopAfter:
    """Asks to stop after so many batches, each of which it is called after."""

    requested = False

    def __init__(self, batches):
        self._left = batches

    def __call__(self, progress):
        self._left -= 1
        self.requested = self._left <= 0


class Place:
    """A folder with the connector of these tests, and the command to run in it."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        plugins = folder / "plugins"
        (plugins / "pausing-1.dist-info").mkdir(parents=True)
        (plugins / "pausing.py").write_text(CONNECTOR)
        (plugins / "pausing-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pausing\nVersion: 1\n")
        entry = "[streammoe.connectors]\npausing = pausing:PausingSource\n"
        (plugins / "pausing-1.dist-info" / "entry_points.txt").write_text(entry)
        paths = [str(plugins), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("STREAMMOE_")},
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }

    def config(self, path, *, dir="state", extra=""):
        """A config file for events at `path`, with small blocks and a short warm-up."""
        config = self.folder / "config.toml"
        config.write_text(f"""
            source = {{ kind = "file", path = "{path}", block_bytes = {BATCH} }}
            schema.target = "y"
            model = {{ n_experts = 2, warmup = 300, warmup_restarts = 2 }}
            checkpoint.dir = "{dir}"
            dead_letters.path = "{dir}/dead-letters.jsonl"
            metrics.port = 0
            {extra}
        """)
        return config

    def start(self, *arguments, program=("-m", "streammoe"), **options):
        return subprocess.Popen(
            [sys.executable, *program, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def finish(self, process):
        """Wait, and kill what does not end, so that no test leaves a process behind."""
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"still running after {TIMEOUT} seconds\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def call(self, *arguments, **options):
        return self.finish(self.start(*arguments, **options))

    def run(self, config, *flags, code=0):
        """The summary of a run, or its whole result where it is meant to fail."""
        done = self.call("run", config, "--summary", "json", *flags)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else done

    def run_here(self, config="config.toml", *overrides, batches=sys.maxsize, **options):
        """The summary of a run in this process, where a process of its own would show no more but cost seconds."""
        stop = StopAfter(batches)
        with contextlib.chdir(self.folder):
            settings = load_settings(config, overrides=["metrics.enabled=false", *overrides], environment={})
            with open_daemon(settings, on_batch=stop, **options) as running:
                return running.daemon.run(stop).flat()

    def start_paused(self, config, path, batches, *flags):
        """A daemon that has dealt with so many batches and waits for more."""
        mark = self.folder / "paused"
        mark.unlink(missing_ok=True)
        script = {"kind": "pausing", "path": path, "batches": batches, "mark": mark}
        source = flags_of(**{f"source.{name}": value for name, value in script.items()})
        process = self.start("run", config, "--summary", "json", *source, *flags)
        try:
            wait_until(lambda: mark.exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def inspect(self, dir="state"):
        return describe_checkpoint(self.folder / dir)

    def kept(self, dir="state"):
        """The content of all checkpoints, by name."""
        return {path.name: path.read_bytes() for path in (self.folder / dir).glob("checkpoint-*.safetensors")}

    def letters(self, dir="state"):
        return [json.loads(line) for line in (self.folder / dir / "dead-letters.jsonl").read_text().splitlines()]


def flags_of(**settings):
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def wait_until(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def counts(summary):
    names = ("events", "learned", "predicted_only", "rejected", "skipped", "pending", "expired")
    return {name: summary[name] for name in names}
