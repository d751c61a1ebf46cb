"""What docs/reliability.md says of what runs out, is taken away, or changes while the daemon runs.

A daemon follows a file that grows. Something is taken from it from outside, it is given more to learn, and what was
taken is given back: in the end it has learned what an undisturbed run learns, bit for bit, and has written each row and
each letter.
"""

import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from pyarrow import parquet

from streammoe.errors import CheckpointError
from tests.process.place import TIMEOUT, Place, flags_of, wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set by prlimit"),
]

EVENTS = 2_000
FIRST = 900
"""Records that are there from the beginning; the others come while something is missing."""
BAD = 20
"""Every so many records one is refused."""
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
PATIENCE = 60.0
"""Seconds that a busy machine may take for what does not wait; `checkpoint.retry_seconds` is longer."""
OFTEN = "checkpoint.every_events = 100"


def lines():
    rng = random.Random(5)
    for i in range(EVENTS):
        if i % BAD == 0:
            yield b"not a record\n"
            continue
        a, b = round(rng.gauss(0, 1), 5), round(rng.gauss(0, 1), 5)
        y = round((2 * a if a > 0 else b - 1) + rng.gauss(0, 0.1), 5)
        yield json.dumps({"a": a, "b": b, "y": y}).encode() + b"\n"


LINES = list(lines())
REFUSED = len(range(0, EVENTS, BAD))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The digest of an undisturbed run over all events."""
    place = Place(tmp_path_factory.mktemp("whole"))
    (place.folder / "all.jsonl").write_bytes(b"".join(LINES))
    return place.run_here(place.config("all.jsonl"))["state_digest"]


class Tail:
    """A daemon that follows `all.jsonl`."""

    def __init__(self, place, extra="", flags=(), **options):
        self.place = place
        self.log = place.folder / "log"
        self.data = place.folder / "all.jsonl"
        if not self.data.exists():
            self.data.write_bytes(b"".join(LINES[:FIRST]))
        self.config = place.config("all.jsonl", extra=extra)
        followed = flags_of(**{"source.follow": "true", "dead_letters.path": "letters/dead.jsonl"})
        self.log.write_text("")
        self.process = place.start("run", self.config, "--summary", "json", *followed, *flags, **options)
        self._pumping = threading.Thread(target=self._pump)
        self._pumping.start()

    def _pump(self):
        with self.log.open("a") as log:
            for line in self.process.stderr:
                log.write(line)
                log.flush()

    @property
    def said(self):
        return self.log.read_text()

    def wait_for(self, text):
        wait_until(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said, self.said

    @property
    def url(self):
        self.wait_for("metrics at")
        return re.search(r"http://\S+/", self.said).group()

    def ask(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=TIMEOUT) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError as gone:
            self._pumping.join(TIMEOUT)  # until it has ended, or nobody knows why it does not answer
            raise AssertionError(self.said) from gone

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)", self.ask("metrics")[1], re.MULTILINE)
        return float(found[1]) if found else None

    @property
    def events(self):
        learned, rejected = (f'streammoe_events_total{{outcome="{outcome}"}}' for outcome in ("learned", "rejected"))
        return (self.metric(learned) or 0) + (self.metric(rejected) or 0)

    def wait_for_events(self, count):
        wait_until(lambda: self.process.poll() is not None or self.events == count)
        assert self.process.poll() is None, self.said

    def append(self, records):
        with self.data.open("ab") as stream:
            stream.write(b"".join(records))

    def limit(self, kind, limits):
        resource.prlimit(self.process.pid, kind, limits)

    def end(self, code=0):
        """The summary after SIGTERM, or nothing where it ends otherwise."""
        if code == 0:
            self.process.terminate()
        try:
            self.process.wait(TIMEOUT)
        except BaseException:
            self.process.kill()
            raise
        self._pumping.join()
        out = self.process.stdout.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert self.process.returncode == code, self.said
        assert "Traceback" not in self.said
        return json.loads(out) if code == 0 else None

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._pumping.join()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


@pytest.fixture
def tail(place):
    started = []

    def tail(*arguments, **named):
        started.append(Tail(place, *arguments, **named))
        return started[-1]

    yield tail
    for each in started:
        each.kill()


def letters(place):
    """All dead letters; each line must be whole."""
    return [json.loads(line) for line in (place.folder / "letters" / "dead.jsonl").read_text().splitlines()]


def rows(place, form):
    """All predictions, by the number of their line; each line, or part, must be whole."""
    if form == "jsonl":
        found = [json.loads(line) for line in (place.folder / "rows" / "p.jsonl").read_text().splitlines()]
    else:
        found = [
            row
            for part in sorted((place.folder / "rows").glob("p-*.parquet"))
            for row in parquet.read_table(part).to_pylist()
        ]
        assert not list((place.folder / "rows").glob(".*"))
    return Counter(row["place"]["offset"] for row in found)


def check_all_is_there(place, form=None, *, once=True):
    """Each letter and each row is there, where nothing was killed exactly once."""
    said = Counter(letter["place"]["offset"] for letter in letters(place))
    assert len(said) == REFUSED
    assert not once or set(said.values()) == {1}
    if form:
        written = rows(place, form)
        assert len(written) == EVENTS - REFUSED
        assert not once or set(written.values()) == {1}


def go_on(place):
    """The summary of the next run."""
    return place.run_here("config.toml", "dead_letters.path=letters/dead.jsonl")


def writing(form):
    return f'{OFTEN}\npredictions = {{ kind = "file", path = "rows/p.{form}" }}'


def room(size):
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


# --- no room --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", pytest.param("parquet", marks=pytest.mark.exhaustive)])
def test_a_disk_that_is_full_for_a_while_ends_nothing(place, whole, tail, form):
    daemon = tail(writing(form), preexec_fn=room(4_000))
    daemon.wait_for("nothing can be saved")
    daemon.append(LINES[FIRST:])
    daemon.wait_for_events(EVENTS)  # learning goes on
    assert daemon.metric("streammoe_checkpoint_failures_total") >= 1
    status, text = daemon.ask("readyz")
    assert status == 503
    assert text.startswith("nothing can be saved")
    assert daemon.ask("healthz")[0] == 200
    daemon.limit(resource.RLIMIT_FSIZE, UNLIMITED)
    daemon.wait_for("saving works again")
    assert daemon.ask("readyz")[0] == 200
    assert daemon.end()["state_digest"] == whole
    check_all_is_there(place, form)


def test_a_disk_that_stays_full_ends_it_and_costs_nothing(place, whole, tail):
    daemon = tail(f"{writing('jsonl')}\ncheckpoint.retry_seconds = 2", preexec_fn=room(30_000))
    daemon.append(LINES[FIRST:])
    daemon.end(code=4)
    assert letters(place)  # whole lines, all of them
    rows(place, "jsonl")
    assert go_on(place)["state_digest"] == whole
    check_all_is_there(place, "jsonl", once=False)


def test_whoever_asks_a_daemon_to_stop_on_a_full_disk_does_not_wait(place, whole, tail):
    daemon = tail(OFTEN, preexec_fn=room(4_000))
    daemon.wait_for("nothing can be saved")
    daemon.process.terminate()
    began = time.monotonic()
    daemon.end(code=4)
    assert time.monotonic() - began < PATIENCE
    daemon.append(LINES[FIRST:])
    assert go_on(place)["state_digest"] == whole


# --- what is taken away ---------------------------------------------------------------------------------------------


def bound_by_permissions():
    """In the new process, even if root started it: permissions of its own files count."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH; whoever is not root has none to drop
        LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


LIBC = ctypes.CDLL(None)


def test_a_folder_that_may_not_be_written_for_a_while_ends_nothing(place, whole, tail):
    daemon = tail(OFTEN, preexec_fn=bound_by_permissions)
    daemon.wait_for_events(FIRST)
    (place.folder / "state").chmod(0o555)
    try:
        daemon.append(LINES[FIRST:])
        daemon.wait_for("nothing can be saved: state/checkpoint-")
    finally:
        (place.folder / "state").chmod(0o755)
    daemon.wait_for("saving works again")
    daemon.wait_for_events(EVENTS)
    assert daemon.end()["state_digest"] == whole
    check_all_is_there(place)


def test_checkpoints_or_their_folder_that_somebody_removes_are_followed_by_sound_ones(place, whole, tail):
    daemon = tail(OFTEN)
    daemon.wait_for_events(FIRST)
    for path in (place.folder / "state").glob("*.safetensors"):
        path.unlink()
    daemon.append(LINES[FIRST:1_400])
    wait_until(lambda: list((place.folder / "state").glob("*.safetensors")))
    assert place.inspect()["n"] > 0
    (place.folder / "state").rename(place.folder / "gone")  # in one step, whatever is being written there
    shutil.rmtree(place.folder / "gone")
    daemon.append(LINES[1_400:])
    daemon.wait_for_events(EVENTS)
    wait_until(lambda: list((place.folder / "state").glob("*.safetensors")))
    with pytest.raises(CheckpointError):  # the folder is locked again, too
        place.run_here()
    daemon.process.kill()
    daemon.process.wait()
    assert go_on(place)["state_digest"] == whole


def test_a_lock_file_that_is_removed_lets_no_two_daemons_save(place, whole, tail):
    first = tail("checkpoint.every_seconds = 1e6")
    first.wait_for_events(FIRST)
    (place.folder / "state" / "lock").unlink()
    second = tail("checkpoint.every_seconds = 1e6")
    second.wait_for("metrics at")  # it has the folder
    first.process.terminate()
    first.end(code=4)
    assert f"in use by process {second.process.pid}" in first.said
    second.process.kill()
    second.process.wait()
    second.append(LINES[FIRST:])
    assert go_on(place)["state_digest"] == whole


def test_letters_and_rows_go_to_a_new_file_where_theirs_was_taken_away(place, whole, tail):
    daemon = tail(writing("jsonl"))
    daemon.wait_for_events(FIRST)
    aside = place.folder / "aside"
    aside.mkdir()
    for path in (place.folder / "letters" / "dead.jsonl", place.folder / "rows" / "p.jsonl"):
        path.rename(aside / path.name)
    (place.folder / "rows").rmdir()
    daemon.append(LINES[FIRST:])
    daemon.wait_for_events(EVENTS)
    assert daemon.end()["state_digest"] == whole
    for folder, name, count in (("letters", "dead.jsonl", REFUSED), ("rows", "p.jsonl", EVENTS - REFUSED)):
        lines = [*(aside / name).read_text().splitlines(), *(place.folder / folder / name).read_text().splitlines()]
        assert len({json.loads(line)["place"]["offset"] for line in lines}) == len(lines) == count


# --- descriptors, memory, connections -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", [8, *(pytest.param(limit, marks=pytest.mark.exhaustive) for limit in (5, 6, 7, 9, 10, 11))]
)
def test_too_few_descriptors_at_the_start_are_told_or_do(place, limit):
    (place.folder / "all.jsonl").write_bytes(b"".join(LINES[:FIRST]))
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit))
    done = place.finish(place.start("run", place.config("all.jsonl"), preexec_fn=few))
    assert "Traceback" not in done.stderr
    if done.returncode:
        assert done.returncode in {2, 3, 4, 70}
        assert "error: " in done.stderr
    assert place.run_here()["events"] == FIRST


def open_descriptors(process):
    """Those that stay open: the fewest seen in a second, since a checkpoint under way has one more for a moment."""
    seen = []
    for _ in range(50):
        seen.append(len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
        time.sleep(0.02)
    return min(seen)


def test_descriptors_that_run_out_for_a_while_cost_nothing(place, whole, tail):
    daemon = tail(OFTEN, flags=flags_of(**{"source.path": "all*", "source.format": "jsonl"}))
    daemon.wait_for_events(FIRST)
    url = daemon.url
    used = open_descriptors(daemon.process)
    daemon.limit(resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    # What was rotated away keeps a name that is looked for, among names that cannot be listed now.
    daemon.append(LINES[FIRST:1_400])
    daemon.data.rename(place.folder / "all.jsonl.1")
    daemon.data.write_bytes(b"".join(LINES[1_400:]))
    daemon.wait_for("cannot be opened: Too many open files")
    with pytest.raises((OSError, urllib.error.URLError)):
        urllib.request.urlopen(url + "healthz", timeout=1)
    daemon.limit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    daemon.wait_for_events(EVENTS)
    assert daemon.end()["state_digest"] == whole


def test_checkpoints_for_which_there_was_no_descriptor_are_made_later(place, whole, tail):
    daemon = tail(OFTEN)
    daemon.wait_for_events(FIRST)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    daemon.limit(resource.RLIMIT_NOFILE, (open_descriptors(daemon.process), hard))
    daemon.append(LINES[FIRST:])
    daemon.wait_for("nothing can be saved")
    daemon.limit(resource.RLIMIT_NOFILE, (256, hard))
    daemon.wait_for("saving works again")
    daemon.wait_for_events(EVENTS)
    assert daemon.end()["state_digest"] == whole
    check_all_is_there(place)


def test_want_of_memory_ends_it_without_a_checkpoint_and_the_next_start_repeats(place, whole, tail):
    rarely = "checkpoint.every_seconds = 1e6"
    daemon = tail(rarely, flags=flags_of(**{"source.block_bytes": 1 << 29, "checkpoint.every_events": 10**9}))
    daemon.wait_for_events(FIRST)
    wait_until(lambda: list((place.folder / "state").glob("checkpoint-*.safetensors")))
    before = place.inspect()
    size = int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    daemon.limit(resource.RLIMIT_AS, (size + (1 << 27), resource.RLIM_INFINITY))
    daemon.append(LINES[FIRST:])
    daemon.end(code=70)
    assert place.inspect() == before
    assert go_on(place)["state_digest"] == whole


# --- SIGHUP ---------------------------------------------------------------------------------------------------------


def rewrite(place, extra, model):
    config = place.config("all.jsonl", extra=extra)
    config.write_text(config.read_text().replace("warmup = 300", f"warmup = 300, {model}"))


def reloads(daemon, outcome):
    return daemon.metric(f'streammoe_reload_total{{outcome="{outcome}"}}')


def test_sighup_takes_what_may_change_and_refuses_the_rest_as_a_whole(place, whole, tail):
    daemon = tail("checkpoint.every_seconds = 1e6", flags=["--set", "checkpoint.keep=7"])
    daemon.wait_for_events(FIRST)
    wait_until(lambda: list((place.folder / "state").glob("checkpoint-*.safetensors")))
    before = place.inspect()
    assert before["n"] < FIRST - REFUSED // 2  # but for the very first batch nothing is saved

    rewrite(place, f"{OFTEN}\ncheckpoint.keep = 1", "range_factor = 1e9")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: reloads(daemon, "applied") == 1)
    assert "checkpoint.keep" not in daemon.said, "a flag stands over the file"
    assert place.inspect()["n"] == FIRST - FIRST // BAD, "what came before is saved before other rules hold"

    for extra, model in (
        ("checkpoint.every_events = 0", "seed = 0"),
        ("checkpoint.every_events = 7", "seed = 4"),
        ("this is no TOML", "seed = 0"),
    ):
        rewrite(place, extra, model)
        refused = reloads(daemon, "refused")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda refused=refused: reloads(daemon, "refused") == refused + 1)
    assert "every_events = 7" not in daemon.said

    daemon.append(LINES[FIRST:])
    daemon.wait_for_events(EVENTS)
    assert daemon.end()["state_digest"] == whole
    assert place.inspect()["model"]["arguments"]["range_factor"] == 1e9
    check_all_is_there(place)


def test_sighup_while_the_settings_are_read_ends_nothing(place, tail):
    (place.folder / "all.jsonl").write_bytes(b"".join(LINES[:FIRST]))
    config = place.config("all.jsonl")
    text = config.read_text()
    config.unlink()
    os.mkfifo(config)  # so that it waits in the middle of reading its settings
    process = place.start("run", config, "--summary", "json")
    writing = os.open(config, os.O_WRONLY)  # waits for the reader
    process.send_signal(signal.SIGHUP)
    config.unlink()
    config.write_text(text)
    os.write(writing, text.encode())
    os.close(writing)
    done = place.finish(process)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["events"] == FIRST
