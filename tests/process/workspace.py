"""A folder to run commands in: in this process, in a fork of a warm one, or in a new process as users do.

A command starts for seconds, nearly all of them imports. Most tests are about what it does then, so they fork it from
a server that has imported everything and is otherwise alone: a process with signals, limits and an end of its own.
"""

import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe_connectors.files.source import FileSource

ROOT = Path(__file__).parents[2]
BATCH = 4096
TIMEOUT = 120
"""Seconds after which something is not slow but stuck, also on a machine that does much else."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.process.warm"])

# --- events ---------------------------------------------------------------------------------------------------------


def two_regimes(n, seed=11):
    """Events that two experts and a gate can learn."""
    rng = random.Random(seed)
    for _ in range(n):
        a, b = round(rng.gauss(0, 1), 5), round(rng.gauss(0, 1), 5)
        yield {"a": a, "b": b, "y": round((2 * a if a > 0 else b - 1) + rng.gauss(0, 0.1), 5)}


EVENTS = 3_000
HEADER = b"a,b,y\n"
LINES = [f"{event['a']},{event['b']},{event['y']}\n".encode() for event in two_regimes(EVENTS)]


def append(path, content):
    with path.open("ab") as stream:
        stream.write(content)


# --- commands -------------------------------------------------------------------------------------------------------


class Command:
    """A command that runs, and what it has printed so far."""

    def __init__(self, process, out, err):
        self._process = process
        self._text = {"out": "", "err": ""}
        streams = (("out", out), ("err", err))
        self._readers = [threading.Thread(target=self._read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, name, stream):
        with stream:
            for line in stream:
                self._text[name] += line

    @property
    def pid(self):
        return self._process.pid

    @property
    def code(self):
        """The exit code, or nothing while it runs."""
        return self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode

    @property
    def out(self):
        return self._text["out"]

    @property
    def err(self):
        return self._text["err"]

    def send_signal(self, number):
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def wait_for(self, text):
        """Return once this is in its log."""
        wait_until(lambda: text in self.err or self.code is not None)
        if self.code is not None:
            self._join()
        assert text in self.err, self.err

    def end(self, code=0):
        """Wait for its end with this code; return what it printed, from JSON where it is that."""
        try:
            wait_until(lambda: self.code is not None)
        finally:
            self.kill()
        assert self.code == code, (self.code, self.err)
        return json.loads(self.out) if self.out.startswith("{") else self.out

    def stop(self):
        """The summary after SIGTERM."""
        self.send_signal(signal.SIGTERM)
        return self.end()

    def kill(self):
        self.send_signal(signal.SIGKILL)
        wait_until(lambda: self.code is not None)
        self._join()

    def _join(self):
        for reader in self._readers:
            reader.join(TIMEOUT)

    # --- its metrics ------------------------------------------------------------------------------------------------

    @property
    def url(self):
        self.wait_for("metrics at")
        return re.search(r"http://\S+/", self.err).group()

    def ask(self, path):
        """Status and text of an answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=TIMEOUT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)", self.ask("metrics")[1], re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_for_events(self, count):
        """Return once it has learned or rejected so many."""
        names = [f'streammoe_events_total{{outcome="{outcome}"}}' for outcome in ("learned", "rejected")]
        wait_until(lambda: self.code is not None or sum(map(self.metric, names)) == count)
        assert self.code is None, self.err


def forked(folder, out, err, before, at, words):
    """Run a command in a process that was forked from the warm server."""
    os.setsid()
    os.chdir(folder)
    for number, stream in ((1, out), (2, err)):
        os.dup2(stream.fileno(), number)
        stream.close()
    for name in [name for name in os.environ if name.startswith("STREAMMOE_")]:
        del os.environ[name]
    if before is not None:
        before()
    from tests.process.points import command

    command(at, words)


def pause(batches, mark="paused"):
    """In the new process: its source gives so many batches, leaves a mark, and then waits for ever."""
    poll, left = FileSource.poll, iter(range(batches))

    def paused(source, timeout):
        if next(left, None) is not None:
            return poll(source, timeout)
        Path(mark).touch()
        return time.sleep(timeout)

    FileSource.poll = paused


class StopAfter:
    """Asks to stop after so many batches, each of which it is called after."""

    requested = False

    def __init__(self, batches):
        self._left = batches

    def __call__(self, progress):
        self._left -= 1
        self.requested = self._left <= 0


class Workspace:
    """A folder, and commands to run in it."""

    def __init__(self, folder):
        self.folder = folder
        self._commands = []
        folder.mkdir(exist_ok=True)

    def __truediv__(self, name):
        return self.folder / name

    def write(self, name, lines=LINES, header=HEADER):
        (self / name).write_bytes(header + b"".join(lines))

    def config(self, path, extra="", *, model="n_experts = 2, warmup = 300", target='"y"'):
        """Settings for events at `path`, with small blocks and a short warm-up."""
        (self / "config.toml").write_text(f"""
            source = {{ kind = "file", path = "{path}", block_bytes = {BATCH} }}
            schema.target = {target}
            model = {{ {model} }}
            checkpoint.dir = "state"
            dead_letters.path = "letters.jsonl"
            metrics.port = 0
            {extra}
        """)

    def start(self, *words, before=None, at=None):
        """Start a command in a fork; `before` is called there first, and `at` sends signals at a point of its way."""
        (out, to_out), (err, to_err) = (FORKS.Pipe(duplex=False) for _ in range(2))
        arguments = (str(self.folder), to_out, to_err, before, at, [*map(str, words)])
        process = FORKS.Process(target=forked, args=arguments)
        with contextlib.chdir(ROOT):  # where the server finds this module
            process.start()
        to_out.close()
        to_err.close()
        return self._started(process, *(os.fdopen(os.dup(end.fileno())) for end in (out, err)))

    def start_new(self, *words, program=("-m", "streammoe"), **options):
        """Start a command in a new process, where it matters how it begins."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMMOE_")}
        process = subprocess.Popen(
            [sys.executable, *program, *map(str, words)],
            cwd=self.folder,
            env=environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"},
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        return self._started(process, process.stdout or io.StringIO(), process.stderr)

    def _started(self, *arguments):
        self._commands.append(Command(*arguments))
        return self._commands[-1]

    def run(self, *flags, **options):
        """Start a daemon, which may take its time to stop on a busy machine."""
        return self.start("run", "config.toml", "--json", "--set", "checkpoint.stop_seconds=300", *flags, **options)

    def run_paused(self, batches):
        """Start a daemon, and return once it has dealt with so many batches and waits for more."""
        command = self.run(before=partial(pause, batches))
        wait_until(lambda: (self / "paused").exists() or command.code is not None)
        assert command.code is None, command.err
        return command

    def run_here(self, *overrides, config="config.toml", batches=sys.maxsize, **options):
        """The summary of a run in this process, where one of its own would show no more."""
        stop = StopAfter(batches)
        with contextlib.chdir(self.folder):
            settings = load_settings(config, overrides=["metrics.enabled=false", *overrides], environment={})
            with open_daemon(settings, on_batch=stop, **options) as running:
                return running.daemon.run(stop).flat()

    def close(self):
        for command in self._commands:
            command.kill()

    def inspect(self, dir="state"):
        return {name: value for name, value in describe_checkpoint(self / dir).items() if name != "age_seconds"}

    def checkpoints(self):
        """The content of all of them, by name."""
        return {path.name: path.read_bytes() for path in (self / "state").glob("checkpoint-*.safetensors")}

    def letters(self):
        """All dead letters; each line must be whole."""
        return [json.loads(line) for line in (self / "letters.jsonl").read_text().splitlines()]


def wait_until(condition):
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited for {TIMEOUT} seconds")
        time.sleep(0.01)
