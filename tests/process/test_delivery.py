"""What docs/delivery.md says of failures, row by row, on the command line.

Whatever is done to files and folders between two runs: either the next one ends as if nothing had counters, or it
says what is wrong, by its exit code and in words, and leaves the last checkpoint as it is.
"""

import contextlib
import gzip
import json
import os
import random
import re
import resource
import shutil
import signal
import time
import urllib.request
from functools import partial

import pyarrow as pa
import pytest
from pyarrow import parquet

from streammoe.persistence.format import _pack
from tests.process.place import BATCH, Place, flags_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 3_000
FIRST = 600
"""Records of the first file, which is read to its end before the run is stopped."""
THERE = 2_400
"""Records of both files at that time; the others come later."""
BATCHES = 10
"""Until the run is stopped, in the middle of the second file."""
RARELY = "checkpoint.every_seconds = 1e6"


def values(n=EVENTS):
    rng = random.Random(11)
    for _ in range(n):
        a, b = round(rng.gauss(0, 1), 5), round(rng.gauss(0, 1), 5)
        yield {"a": a, "b": b, "y": round((2 * a if a > 0 else b - 1) + rng.gauss(0, 0.1), 5)}


HEADER = b"a,b,y\n"
LINES = [f"{held['a']},{held['b']},{held['y']}\n".encode() for held in values()]
REST = b"".join(LINES[THERE:])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The summary of an undisturbed run over all events."""
    place = Place(tmp_path_factory.mktemp("whole"))
    (place.folder / "all.csv").write_bytes(HEADER + b"".join(LINES))
    return place.run(place.config("all.csv"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder in which a run was stopped: one file read to its end, another one in part, several checkpoints."""
    place = Place(tmp_path_factory.mktemp("stopped"))
    (place.folder / "live-1.csv").write_bytes(HEADER + b"".join(LINES[:FIRST]))
    (place.folder / "live-2.csv").write_bytes(HEADER + b"".join(LINES[FIRST:THERE]))
    config = place.config("live-*.csv", extra="checkpoint.every_events = 300")
    process = place.start_paused(config, "live-*.csv", BATCHES)
    process.terminate()
    done = place.finish(process)
    assert done.returncode == 0, done.stderr
    first, second = place.inspect()["positions"][0]["files"]
    assert (first["done"], second["done"]) == (True, False)
    assert 2 * BATCH < second["offset"] < (place.folder / "live-2.csv").stat().st_size - 2 * BATCH
    return place


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


@pytest.fixture
def again(place, stopped):
    """A copy of that folder, to do something to it."""
    for path in stopped.folder.iterdir():
        if path.is_file():
            shutil.copy(path, place.folder)
    shutil.copytree(stopped.folder / "state", place.folder / "state")
    return place


def go_on(place, *flags, code=0):
    """The summary of the next run and its log, or its whole result where it is meant to fail."""
    done = place.call("run", "config.toml", "--summary", "json", *flags)
    assert done.returncode == code, done.stderr
    assert ("Traceback" in done.stderr) == (code == 70)
    return (json.loads(done.stdout), done.stderr) if code == 0 else done


def kept(place):
    """All checkpoints of a folder, by name."""
    return {path.name: path.read_bytes() for path in (place.folder / "state").glob("checkpoint-*.safetensors")}


def append(path, content):
    with path.open("ab") as stream:
        stream.write(content)


def write_at_most(size):
    """In the new process: the kernel refuses to let any file grow beyond this, as a full disk would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def run_in_little_room(place, size, *flags):
    return place.finish(place.start("run", "config.toml", *flags, preexec_fn=partial(write_at_most, size)))


# --- ended from outside ---------------------------------------------------------------------------------------------


def test_kill_9_costs_no_more_than_the_settings_say(place, whole):
    path = place.folder / "all.csv"
    path.write_bytes(HEADER + b"".join(LINES))
    config = place.config("all.csv", extra=f"checkpoint.every_events = 700\n{RARELY}")
    process = place.start_paused(config, "all.csv", 14)
    try:
        url = re.search(r"http://\S+", next(line for line in process.stderr if "metrics at" in line)).group()
        with urllib.request.urlopen(url, timeout=10) as answer:
            learned = float(re.search(r"^streammoe_model_events (\S+)", answer.read().decode(), re.MULTILINE)[1])
        of_a_batch = BATCH // min(map(len, LINES))
        wait_until(lambda: learned < place.inspect()["n"] + 700 + of_a_batch)  # the last one may still be under way
    finally:
        process.kill()
        process.communicate()
    assert 0 < place.inspect()["n"] < learned
    assert place.run(config)["state_digest"] == whole["state_digest"]


def is_read(pipe, writing):
    """Whether somebody reads the pipe; if so, it is held open from now on."""
    with contextlib.suppress(OSError):
        writing.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(writing)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_settings_are_read_ends_the_process_and_leaves_nothing(place, stop):
    config = place.folder / "config.toml"
    os.mkfifo(config)  # so that it waits in the middle of reading its settings
    process = place.start("run", config)
    writing = []
    wait_until(lambda: is_read(config, writing) or process.poll() is not None)
    # Again and again: one that comes just before it begins to wait for the settings is noticed when it has them.
    wait_until(lambda: process.send_signal(stop) or time.sleep(0.2) or process.poll() is not None)
    done = place.finish(process)
    for descriptor in writing:
        os.close(descriptor)
    assert writing
    assert done.returncode == 128 + stop
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert {path.name for path in place.folder.iterdir()} == {"config.toml", "plugins"}


KILLED_IN_THE_MIDDLE = """
import os, signal, sys
from pathlib import Path
from streammoe import commands as cli

sync = os.fsync

def half(descriptor):
    if list(Path("state").glob(".checkpoint-000000000003.*")):
        os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)

os.fsync = half
cli.main(sys.argv[1:])
"""


def test_killed_while_a_checkpoint_is_written_the_one_before_stands(place, whole):
    (place.folder / "all.csv").write_bytes(HEADER + b"".join(LINES))
    config = place.config("all.csv", extra=f"checkpoint.every_events = 400\n{RARELY}")
    killed = place.call("run", config, program=["-c", KILLED_IN_THE_MIDDLE])
    assert killed.returncode == -signal.SIGKILL
    (half,) = (place.folder / "state").glob(".checkpoint-*")
    assert half.stat().st_size > 0
    assert sorted(kept(place)) == ["checkpoint-000000000001.safetensors", "checkpoint-000000000002.safetensors"]
    found, said = go_on(place)
    assert f"removed state/{half.name}, which an interrupted process left half written" in said
    assert not half.exists()
    assert found["state_digest"] == whole["state_digest"]


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["changed", "cut off"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_goes_on(again, whole, damage):
    newest = again.folder / "state" / max(kept(again))
    content = newest.read_bytes()
    newest.write_bytes(content[: len(content) // 2] if damage == "cut off" else content[:-1] + bytes([content[-1] ^ 1]))
    append(again.folder / "live-2.csv", REST)
    found, said = go_on(again)
    assert re.search(rf"ERROR checkpoint refused, going back to the one before: state/{newest.name}: ", said)
    assert found["state_digest"] == whole["state_digest"]
    assert found["learned"] == EVENTS


def test_without_any_sound_checkpoint_nothing_is_begun_anew(again, whole):
    for name in kept(again):
        append(again.folder / "state" / name, b"more")
    before = kept(again)
    assert len(before) == 3
    done = go_on(again, code=4)
    assert "error: checkpoint folder state: no checkpoint is sound" in done.stderr
    assert kept(again) == before
    for name in before:
        (again.folder / "state" / name).rename(again.folder / name)
    append(again.folder / "live-2.csv", REST)
    found, _ = go_on(again)
    assert found["state_digest"] == whole["state_digest"]


def test_a_checkpoint_of_a_newer_format_is_not_undone(again):
    newer = max(kept(again)).replace("checkpoint-0", "checkpoint-1")
    (again.folder / "state" / newer).write_bytes(_pack({}, '{"format":2}'))
    before = kept(again)
    done = go_on(again, code=4)
    assert f"error: state/{newer}: has checkpoint format 2, this version of streammoe reads format 1" in done.stderr
    assert kept(again) == before


# --- disks ----------------------------------------------------------------------------------------------------------


def test_no_room_for_a_checkpoint_leaves_the_earlier_ones(place, whole):
    (place.folder / "all.csv").write_bytes(HEADER + b"".join(LINES))
    place.config("all.csv", extra=f"checkpoint.every_events = 300\n{RARELY}")
    # What the scores keep of the latest events makes each checkpoint larger than the one before.
    done = run_in_little_room(place, 50_000, *flags_of(**{"checkpoint.retry_seconds": 0}))
    assert done.returncode == 4
    refused = re.search(r"error: state/(\S+): cannot be written \(.*\); make room on the disk", done.stderr)[1]
    earlier = kept(place)
    assert earlier
    assert refused > max(earlier)
    found, said = go_on(place)
    assert "going on from a checkpoint in state" in said
    assert found["state_digest"] == whole["state_digest"]


def test_no_room_at_the_start_leaves_the_last_checkpoint(again):
    before = kept(again)
    done = run_in_little_room(again, 12)  # enough for a process id
    assert done.returncode == 4
    assert re.search(r"error: checkpoint folder state: cannot be written \(.*on a disk with room", done.stderr)
    assert kept(again) == before


def test_no_room_for_a_dead_letter_leaves_the_last_checkpoint(again, whole):
    before = kept(again)
    append(again.folder / "live-2.csv", REST + b"no\n" * 3_000)
    flags = flags_of(**{"dead_letters.max_ratio": 1, "checkpoint.every_events": 10**9, "checkpoint.every_seconds": 1e6})
    done = run_in_little_room(again, 200_000, *flags, *flags_of(**{"checkpoint.retry_seconds": 0}))
    assert done.returncode == 4
    assert re.search(r"error: dead_letters\.path state/dead-letters\.jsonl: cannot be written \(", done.stderr)
    assert kept(again) == before
    found, _ = go_on(again, *flags)
    assert (found["state_digest"], found["rejected"]) == (whole["state_digest"], 3_000)
    places = {letter["place"]["offset"] for letter in again.letters()}
    assert len(places) == 3_000


# --- files that are no longer what they were ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("live-2.csv", lambda path: path.unlink(), "was removed before all of it was read"),
        ("live-2.csv", lambda path: path.write_bytes(HEADER + b"1,2,3\n" * 20_000), "was replaced"),
        ("live-2.csv", lambda path: os.truncate(path, 2 * BATCH), "was truncated"),
        ("live-1.csv", lambda path: path.write_bytes(HEADER + b"1,2,3\n" * 20_000), "was replaced"),
        ("live-1.csv", lambda path: os.truncate(path, 2 * BATCH), "was replaced after it had been read to its end"),
    ],
    ids=["removed", "replaced", "shorter", "finished and replaced", "finished and shorter"],
)
def test_a_file_that_no_longer_holds_the_position_ends_the_start(again, name, damage, message):
    before = kept(again)
    damage(again.folder / name)
    done = go_on(again, code=3)
    assert f"error: {name} {message}" in done.stderr
    assert kept(again) == before


def remove_the_finished_one(folder):
    (folder / "live-1.csv").unlink()
    append(folder / "live-2.csv", REST)


def put_a_copy_in_its_place(folder):
    append(folder / "live-2.csv", REST)
    shutil.copy(folder / "live-2.csv", folder / "copy")
    (folder / "live-2.csv").unlink()
    (folder / "copy").rename(folder / "live-2.csv")


def append_to_the_finished_one(folder):
    append(folder / "live-1.csv", b"1,2,3\n" * 100)
    append(folder / "live-2.csv", REST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: append(folder / "live-2.csv", REST), ""),
        (remove_the_finished_one, ""),
        (put_a_copy_in_its_place, ""),
        (append_to_the_finished_one, r"WARNING live-1\.csv grew by 600 bytes after it had been read to its end"),
        # Before the others by name; its records are learned after theirs all the same.
        (
            lambda folder: (folder / "live-0.csv").write_bytes(HEADER + REST),
            r"INFO live-0\.csv is new since the checkpoint; it is read after the files listed there",
        ),
    ],
    ids=["grew", "finished and removed", "replaced by a copy", "finished and grew", "a new one"],
)
def test_a_change_that_costs_nothing_shows_in_nothing(again, whole, change, message):
    change(again.folder)
    found, said = go_on(again)
    assert found["state_digest"] == whole["state_digest"]
    assert (found["learned"], found["rejected"]) == (EVENTS, 0)
    assert re.search(message, said)


def test_a_file_cut_beyond_the_position_is_read_to_its_new_end(again):
    path = again.folder / "live-2.csv"
    content = path.read_bytes()
    cut = content[: content.rindex(b"\n", 0, len(content) - BATCH) + 3]
    path.write_bytes(cut)
    found, said = go_on(again)
    assert (found["learned"], found["rejected"]) == (FIRST + cut.count(b"\n") - 1, 1)
    (letter,) = again.letters()
    assert letter["record"] == cut[-2:].decode()
    assert "truncated" not in said


# --- files that are damaged -----------------------------------------------------------------------------------------


def test_what_comes_before_a_damage_is_saved_and_reading_goes_on_once_it_is_mended(place, whole):
    content = gzip.compress(HEADER + b"".join(LINES))
    (place.folder / "all.csv.gz").write_bytes(content[: len(content) // 2])
    place.config("all.csv.gz")
    done = go_on(place, code=3)
    assert re.search(r"error: all\.csv\.gz is truncated: .*Complete the file", done.stderr)
    assert EVENTS // 4 < place.inspect()["n"] < EVENTS
    (place.folder / "all.csv.gz").write_bytes(content)
    found, said = go_on(place)
    assert "going on from a checkpoint in state" in said
    assert (found["state_digest"], found["learned"]) == (whole["state_digest"], EVENTS)


def test_damage_that_still_decompresses_is_noticed_by_the_checksum_only(place, whole):
    content = gzip.compress(HEADER + b"".join(LINES), compresslevel=0)  # stored as it is
    spoilt = LINES[1_000].replace(b".", b"9", 1)
    assert content.count(LINES[1_000]) == 1
    (place.folder / "all.csv.gz").write_bytes(content.replace(LINES[1_000], spoilt))
    place.config("all.csv.gz")
    done = go_on(place, code=3)
    assert re.search(r"error: all\.csv\.gz is damaged: .*may be spoilt .*begin anew with --fresh", done.stderr)
    found = place.inspect()
    assert found["n"] == EVENTS
    assert found["state_digest"] != whole["state_digest"]
    (place.folder / "all.csv.gz").write_bytes(content)
    assert go_on(place, "--fresh")[0]["state_digest"] == whole["state_digest"]


def test_a_damaged_parquet_file_ends_the_run_at_its_turn(place, whole):
    (place.folder / "all-1.csv").write_bytes(HEADER + b"".join(LINES[:FIRST]))
    path = place.folder / "all-2.parquet"
    table = pa.Table.from_pylist(list(values())[FIRST:])
    parquet.write_table(table, path, row_group_size=1_000, write_page_checksum=True)
    sound = path.read_bytes()
    start = parquet.read_metadata(path).row_group(1).column(0).data_page_offset
    damaged = bytearray(sound)
    damaged[start : start + 400] = bytes(255 - octet for octet in damaged[start : start + 400])
    path.write_bytes(damaged)
    place.config("all-*")
    done = go_on(place, "--set", "source.block_rows=500", code=3)
    assert re.search(r"error: all-2\.parquet cannot be read as Parquet from row 1000 on", done.stderr)
    assert place.inspect()["n"] == FIRST + 1_000
    path.write_bytes(sound)
    assert go_on(place)[0]["state_digest"] == whole["state_digest"]


# --- bugs -----------------------------------------------------------------------------------------------------------


def test_a_bug_leaves_a_traceback_and_no_further_checkpoint(again):
    before = kept(again)
    # Where it cannot leave its mark, the connector of these tests fails as a connector with a bug would.
    bug = {"kind": "pausing", "path": "live-*.csv", "batches": 3, "mark": "nowhere/mark"}
    flags = flags_of(**{f"source.{name}": value for name, value in bug.items()})
    done = go_on(again, *flags, "--set", "checkpoint.every_events=1000000", code=70)
    assert "this is a bug" in done.stderr
    assert "FileNotFoundError" in done.stderr
    assert done.stdout == ""
    assert kept(again) == before
