"""What docs/delivery.md says of failures, row by row, on the command line.

Whatever is done to files and folders between two runs: either the next one ends as if nothing had happened, or it
refuses, and leaves the last checkpoint as it is. What only a process of its own can show runs in one.
"""

import contextlib
import gzip
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

from streammoe.errors import SourceError
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
    return place.run_here(place.config("all.csv"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A folder in which a run was stopped: one file read to its end, another one in part, several checkpoints."""
    place = Place(tmp_path_factory.mktemp("stopped"))
    (place.folder / "live-1.csv").write_bytes(HEADER + b"".join(LINES[:FIRST]))
    (place.folder / "live-2.csv").write_bytes(HEADER + b"".join(LINES[FIRST:THERE]))
    place.config("live-*.csv", extra="checkpoint.every_events = 300")
    place.run_here(batches=BATCHES)
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
    assert place.run_here()["state_digest"] == whole["state_digest"]


def is_read(pipe, writing):
    """Whether somebody reads the pipe; if so, it is held open from now on."""
    with contextlib.suppress(OSError):
        writing.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    return bool(writing)


def test_a_signal_before_the_settings_are_read_ends_the_process_and_leaves_nothing(place):
    config = place.folder / "config.toml"
    os.mkfifo(config)  # so that it waits in the middle of reading its settings
    process = place.start("run", config)
    writing = []
    wait_until(lambda: is_read(config, writing) or process.poll() is not None)
    # Again and again: one that comes just before it begins to wait for the settings is noticed when it has them.
    wait_until(lambda: process.send_signal(signal.SIGTERM) or time.sleep(0.2) or process.poll() is not None)
    done = place.finish(process)
    for descriptor in writing:
        os.close(descriptor)
    assert writing
    assert done.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert {path.name for path in place.folder.iterdir()} == {"config.toml", "plugins"}


# --- disks ----------------------------------------------------------------------------------------------------------


def test_no_room_for_a_checkpoint_leaves_the_earlier_ones(place, whole):
    (place.folder / "all.csv").write_bytes(HEADER + b"".join(LINES))
    place.config("all.csv", extra=f"checkpoint.every_events = 300\n{RARELY}")
    # What the scores keep of the latest events makes each checkpoint larger than the one before.
    done = run_in_little_room(place, 50_000, *flags_of(**{"checkpoint.retry_seconds": 0}))
    assert done.returncode == 4
    refused = re.search(r"checkpoint-\d+\.safetensors", done.stderr).group()
    earlier = place.kept()
    assert earlier
    assert refused > max(earlier)
    assert 0 < place.inspect()["n"] < EVENTS
    assert place.run_here()["state_digest"] == whole["state_digest"]


def test_no_room_at_the_start_leaves_the_last_checkpoint(again):
    before = again.kept()
    done = run_in_little_room(again, 12)  # enough for a process id
    assert done.returncode == 4
    assert "checkpoint folder state" in done.stderr
    assert again.kept() == before


def test_no_room_for_a_dead_letter_leaves_the_last_checkpoint(again, whole):
    before = again.kept()
    append(again.folder / "live-2.csv", REST + b"no\n" * 3_000)
    settings = {"dead_letters.max_ratio": 1, "checkpoint.every_events": 10**9, "checkpoint.every_seconds": 1e6}
    done = run_in_little_room(again, 200_000, *flags_of(**settings, **{"checkpoint.retry_seconds": 0}))
    assert done.returncode == 4
    assert "dead_letters.path" in done.stderr
    assert again.kept() == before
    found = again.run_here("config.toml", *(f"{name}={value}" for name, value in settings.items()))
    assert (found["state_digest"], found["rejected"]) == (whole["state_digest"], 3_000)
    assert len({letter["place"]["offset"] for letter in again.letters()}) == 3_000


# --- files that change between two runs ------------------------------------------------------------------------------


def remove_the_finished_one(folder):
    (folder / "live-1.csv").unlink()
    append(folder / "live-2.csv", REST)


def append_to_the_finished_one(folder):
    append(folder / "live-1.csv", b"1,2,3\n" * 100)
    append(folder / "live-2.csv", REST)


@pytest.mark.parametrize(
    "change",
    [
        remove_the_finished_one,
        append_to_the_finished_one,
        # Before the others by name; its records are learned after theirs all the same.
        lambda folder: (folder / "live-0.csv").write_bytes(HEADER + REST),
    ],
    ids=["removed", "grew", "a new one"],
)
def test_a_change_that_costs_nothing_shows_in_nothing(again, whole, change):
    change(again.folder)
    found = again.run_here()
    assert found["state_digest"] == whole["state_digest"]
    assert (found["learned"], found["rejected"]) == (EVENTS, 0)


def test_a_file_that_no_longer_holds_the_position_ends_the_start(again):
    before = again.kept()
    os.truncate(again.folder / "live-2.csv", 2 * BATCH)
    with pytest.raises(SourceError):
        again.run_here()
    assert again.kept() == before


def test_a_file_cut_beyond_the_position_is_read_to_its_new_end(again):
    path = again.folder / "live-2.csv"
    content = path.read_bytes()
    cut = content[: content.rindex(b"\n", 0, len(content) - BATCH) + 3]
    path.write_bytes(cut)
    found = again.run_here()
    assert (found["learned"], found["rejected"]) == (FIRST + cut.count(b"\n") - 1, 1)
    (letter,) = again.letters()
    assert letter["record"] == cut[-2:].decode()


def test_what_comes_before_a_damage_is_saved_and_reading_goes_on_once_it_is_mended(place, whole):
    content = gzip.compress(HEADER + b"".join(LINES))
    (place.folder / "all.csv.gz").write_bytes(content[: len(content) // 2])
    place.config("all.csv.gz")
    with pytest.raises(SourceError):
        place.run_here()
    assert EVENTS // 4 < place.inspect()["n"] < EVENTS
    (place.folder / "all.csv.gz").write_bytes(content)
    found = place.run_here()
    assert (found["state_digest"], found["learned"]) == (whole["state_digest"], EVENTS)


def test_damage_that_still_decompresses_is_noticed_by_the_checksum_only(place):
    content = gzip.compress(HEADER + b"".join(LINES), compresslevel=0)  # stored as it is
    assert content.count(LINES[1_000]) == 1
    (place.folder / "all.csv.gz").write_bytes(content.replace(LINES[1_000], LINES[1_000].replace(b".", b"9", 1)))
    place.config("all.csv.gz")
    with pytest.raises(SourceError):
        place.run_here()
    assert place.inspect()["n"] == EVENTS


def test_a_damaged_parquet_file_ends_the_run_at_its_turn(place, whole):
    (place.folder / "all-1.csv").write_bytes(HEADER + b"".join(LINES[:FIRST]))
    path = place.folder / "all-2.parquet"
    table = pa.Table.from_pylist(list(values())[FIRST:])
    parquet.write_table(table, path, row_group_size=1_000, write_page_checksum=True)
    sound = path.read_bytes()
    start = parquet.read_metadata(path).row_group(1).column(0).data_page_offset
    path.write_bytes(sound[:start] + bytes(255 - octet for octet in sound[start : start + 400]) + sound[start + 400 :])
    place.config("all-*")
    with pytest.raises(SourceError):
        place.run_here("config.toml", "source.block_rows=500")
    assert place.inspect()["n"] == FIRST + 1_000
    path.write_bytes(sound)
    assert place.run_here()["state_digest"] == whole["state_digest"]


# --- bugs -----------------------------------------------------------------------------------------------------------


def test_a_bug_leaves_a_traceback_and_no_further_checkpoint(again):
    before = again.kept()
    # Where it cannot leave its mark, the connector of these tests fails as a connector with a bug would.
    bug = {"kind": "pausing", "path": "live-*.csv", "batches": 3, "mark": "nowhere/mark"}
    flags = flags_of(**{f"source.{name}": value for name, value in bug.items()})
    done = again.run("config.toml", *flags, "--set", "checkpoint.every_events=1000000", code=70)
    assert "FileNotFoundError" in done.stderr
    assert "Traceback" in done.stderr
    assert done.stdout == ""
    assert again.kept() == before
