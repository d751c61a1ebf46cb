"""What docs/reliability.md says of what runs out, is taken away, or changes while the daemon runs.

A daemon follows a file that grows. Something is taken from it from outside, it is given more to learn, and what was
taken is given back: in the end it has learned what an undisturbed run learns, bit for bit, and has written each row and
each letter.
"""

import ctypes
import json
import resource
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.process.workspace import Workspace, append, two_regimes, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set by prlimit")

EVENTS = 2_000
FIRST = 900
"""Records that are there from the beginning; the others come while something is missing."""
BAD = 20
"""Every so many records one is rejected."""
LINES = [
    json.dumps(event).encode() + b"\n" if i % BAD else b"not a record\n" for i, event in enumerate(two_regimes(EVENTS))
]
REJECTED = EVENTS // BAD
REST = b"".join(LINES[FIRST:])
OFTEN, RARELY = "checkpoint.every_events = 100", "checkpoint.every_seconds = 1e6"
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The digest of an undisturbed run over all events."""
    workspace = Workspace(tmp_path_factory.mktemp("whole") / "here")
    workspace.write("all.jsonl", LINES, b"")
    workspace.config("all.jsonl")
    return workspace.run_here()["state_digest"]


@pytest.fixture
def follow(here):
    """Starts a daemon that follows the file of the first events."""
    here.write("all.jsonl", LINES[:FIRST], b"")

    def follow(extra="", *flags, before=None):
        here.config("all.jsonl", extra)
        return here.run("--set", "source.follow=true", *flags, before=before)

    return follow


ROWS = 'predictions = { kind = "file", path = "rows.jsonl" }'


def check_all_is_there(here, *, rows=True, once=True):
    """Each letter and each row is there and whole; where nothing was killed exactly once."""
    written = [json.loads(line) for line in (here / "rows.jsonl").read_text().splitlines()] if rows else []
    for lines, count in ((here.letters(), REJECTED), (written, (EVENTS - REJECTED) * rows)):
        found = Counter(line["place"]["offset"] for line in lines)
        assert len(found) == count
        assert not once or set(found.values()) <= {1}


def room(size):
    """In the new process: the system lets no file grow beyond this, as a full disk would."""
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def bound_by_permissions():
    """In the new process, even if root started it: permissions of its own files count, since it gives up all others."""
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()  # _LINUX_CAPABILITY_VERSION_3
    assert ctypes.CDLL(None).capset(header, nothing) == 0


def free_descriptor(pid):
    """The lowest number that a new descriptor may have."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return min(set(range(len(used) + 1)) - used)


# --- for a while nothing can be saved -------------------------------------------------------------------------------


def fill_the_disk(here, daemon):
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
    return lambda: resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def forbid_the_folder(here, daemon):
    (here / "state").chmod(0o555)
    return lambda: (here / "state").chmod(0o755)


def use_up_descriptors(here, daemon):
    free = [free_descriptor(daemon.pid)]  # a checkpoint under way, or the status, has one more for a moment
    wait_until(lambda: free.append(free_descriptor(daemon.pid)) or len(free) > 30)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (min(free), HARD))
    return lambda: resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (256, HARD))


@pytest.mark.parametrize("take", [fill_the_disk, forbid_the_folder, use_up_descriptors])
def test_what_keeps_it_from_saving_for_a_while_ends_nothing(here, whole, follow, take):
    daemon = follow(f"{OFTEN}\n{ROWS}", before=bound_by_permissions)
    daemon.wait_for_events(FIRST)
    give_back = take(here, daemon)
    try:
        append(here / "all.jsonl", REST)
        daemon.wait_for("cannot save")
        if take != use_up_descriptors:
            assert daemon.metric("streammoe_checkpoint_failures_total") >= 1
            assert daemon.ask("readyz")[0] == 503
            assert daemon.ask("healthz")[0] == 200
    finally:
        give_back()
    daemon.wait_for("saving works again")
    assert daemon.ask("readyz")[0] == 200
    daemon.wait_for_events(EVENTS)
    assert daemon.stop()["state_digest"] == whole
    check_all_is_there(here)


def test_a_disk_that_stays_full_ends_it_and_costs_nothing(here, whole, follow):
    daemon = follow(f"{OFTEN}\n{ROWS}\ncheckpoint.retry_seconds = 1", before=room(60_000))
    append(here / "all.jsonl", REST)
    daemon.end(4)
    assert "Traceback" not in daemon.err
    assert here.letters()  # whole lines, all of them
    assert 0 < here.inspect()["n"] < EVENTS - REJECTED
    assert here.run_here()["state_digest"] == whole
    check_all_is_there(here, once=False)


# --- descriptors, memory, connections -------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [8, *(pytest.param(at, marks=pytest.mark.exhaustive) for at in (5, 6, 7, 9, 10))])
def test_too_few_descriptors_at_the_start_are_reported_or_enough(here, follow, limit):
    here.config("all.jsonl")
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit))
    command = here.start_new("run", "config.toml", preexec_fn=few)
    wait_until(lambda: command.code is not None)
    command.kill()
    assert "Traceback" not in command.err
    assert command.code == 0 or (command.code in {2, 3, 4, 70} and "error: " in command.err)
    assert here.run_here()["events"] == FIRST


def test_want_of_memory_ends_it_without_a_checkpoint_and_the_next_start_repeats(here, whole, follow):
    daemon = follow(RARELY, "--set", f"source.block_bytes={1 << 29}", "--set", "checkpoint.every_events=1_000_000")
    daemon.wait_for_events(FIRST)
    wait_until(here.checkpoints)
    before = here.inspect()
    size = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (size + (1 << 27), resource.RLIM_INFINITY))
    append(here / "all.jsonl", REST)
    daemon.end(70)
    assert "Traceback" not in daemon.err
    assert here.inspect() == before
    assert here.run_here()["state_digest"] == whole


# --- SIGHUP ---------------------------------------------------------------------------------------------------------


def test_sighup_takes_what_may_change_and_rejects_the_rest_as_a_whole(here, whole, follow):
    daemon = follow(RARELY, "--set", "checkpoint.keep=7")
    daemon.wait_for_events(FIRST)
    wait_until(here.checkpoints)
    assert here.inspect()["n"] < FIRST - REJECTED // 2  # only the very first batch is saved

    def reloads(outcome):
        return daemon.metric(f'streammoe_reload_total{{outcome="{outcome}"}}')

    def reload(extra, model):
        here.config("all.jsonl", extra, model=f"n_experts = 2, warmup = 300, {model}")
        daemon.send_signal(signal.SIGHUP)

    reload(f"{OFTEN}\ncheckpoint.keep = 1", "range_factor = 1e9")
    wait_until(lambda: reloads("applied") == 1)
    assert "checkpoint.keep" not in daemon.err, "a flag overrides the file"
    assert here.inspect()["n"] == FIRST - FIRST // BAD, "what came before is saved before other rules hold"
    for i, (extra, model) in enumerate([("checkpoint.every_events = 7", "seed = 4"), ("this is no TOML", "seed = 0")]):
        reload(extra, model)
        wait_until(lambda i=i: reloads("refused") == i + 1)
    assert "every_events = 7" not in daemon.err
    append(here / "all.jsonl", REST)
    daemon.wait_for_events(EVENTS)
    assert daemon.stop()["state_digest"] == whole
    assert here.inspect()["model"]["arguments"]["range_factor"] == 1e9
    check_all_is_there(here, rows=False)
