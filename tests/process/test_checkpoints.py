"""Checkpoint folders in every state that disks, users and other versions leave them in, met by a real daemon."""

import json
import os
import re
import shutil

import pytest

from streammoe.persistence import CheckpointStore, encode
from streammoe.persistence.format import _pack
from tests.process.place import Place

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 1_500


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A folder with the last three checkpoints of a run."""
    place = Place(tmp_path_factory.mktemp("learned"))
    rows = (f"{i * 37 % 101 / 50 - 1:.4f},{i * 61 % 89 / 44 - 1:.4f},{i % 7}\n" for i in range(EVENTS))
    (place.folder / "all.csv").write_text("a,b,y\n" + "".join(rows))
    place.summary = place.run(place.config("all.csv", extra="checkpoint.every_events = 1"))
    return place


@pytest.fixture
def place(learned, tmp_path):
    here = Place(tmp_path / "here")
    for name in ("all.csv", "config.toml"):
        shutil.copy(learned.folder / name, here.folder)
    shutil.copytree(learned.folder / "state", here.folder / "state")
    return here


def store(place):
    return CheckpointStore(place.folder / "state")


def contents(place):
    return {path.name: path.read_bytes() for path in (place.folder / "state").glob("*.safetensors") if path.is_file()}


def zeros(path, content):
    path.write_bytes(bytes(len(content)))


SPOILT = {
    "a folder": (lambda path, content: path.mkdir(), "is no regular file"),
    "a pipe, from which reading would never end": (lambda path, content: os.mkfifo(path), "is no regular file"),
    "a device that never ends": (lambda path, content: path.symlink_to("/dev/zero"), "is no regular file"),
    "unreadable: an error of the disk": (lambda path, content: path.symlink_to("/proc/self/mem"), "cannot be read"),
    "a link to itself": (lambda path, content: path.symlink_to(path.name), "cannot be read"),
    "a link to nothing": (lambda path, content: path.symlink_to("nothing"), "cannot be read"),
    "empty": (lambda path, content: path.write_bytes(b""), "not a checkpoint, or cut off or damaged"),
    "zeros after a power cut": (zeros, "not a checkpoint, or cut off or damaged"),
    "cut off": (lambda path, content: path.write_bytes(content[:-9]), "not a checkpoint, or cut off or damaged"),
    "a changed byte": (lambda path, content: path.write_bytes(content[:-1] + b"\x99"), "does not match its digest"),
}


def test_a_start_goes_back_over_all_that_is_spoilt_and_says_why_of_each(place, learned):
    *_, before, newest = store(place).generations()
    content = store(place).path(newest).read_bytes()
    store(place).path(newest).unlink()
    for number, (spoil, _) in enumerate(SPOILT.values()):
        spoil(store(place).path(newest + number), content)
    n = store(place).load(before).metadata["n"]
    done = place.call("run", "config.toml", "--summary", "json")
    assert done.returncode == 0, done.stderr
    refused = re.findall(r"ERROR checkpoint refused, going back to the one before: (.*)", done.stderr)
    assert len(refused) == len(SPOILT)
    newest_first = list(reversed(list(enumerate(SPOILT.items()))))
    for line, (number, (name, (_, why))) in zip(refused, newest_first, strict=True):
        assert f"checkpoint-{newest + number:012d}.safetensors: " in line, name
        assert why in line, name
    assert f"going on from a checkpoint in state with {n} events learned" in done.stderr
    found = json.loads(done.stdout)
    assert (found["state_digest"], found["learned"]) == (learned.summary["state_digest"], EVENTS)


@pytest.mark.parametrize(
    ("setting", "difference"),
    [("model.n_experts=3", "model.n_experts was 3 and is 2 now"), ("schema.target=b", "schema.target was 'b' and is")],
)
def test_a_newest_one_of_another_model_is_neither_taken_nor_passed_over(place, setting, difference):
    other = place.run("config.toml", "--set", setting, "--set", "checkpoint.dir=other")
    newest = store(place).generations()[-1] + 1
    shutil.copy(place.folder / other["checkpoint"], store(place).path(newest))
    before = contents(place)
    done = place.call("run", "config.toml")
    assert done.returncode == 4
    assert re.search(
        rf"^error: state: its checkpoint belongs to other settings: {difference}.*--fresh$", done.stderr, 8
    )
    assert contents(place) == before
    back = place.call("rollback", "config.toml")
    assert back.returncode == 0, back.stderr
    assert place.run("config.toml")["learned"] == EVENTS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            _pack({}, '{"format":2}'),
            "has checkpoint format 2, this version of streammoe reads format 1; run the version",
        ),
        (encode({}, {"n": 3}), "no daemon wrote its checkpoint; set checkpoint.dir to another folder"),
    ],
    ids=["newer format", "no daemon's"],
)
def test_a_newest_one_that_is_sound_and_strange_stops_the_start(place, content, message):
    store(place).path(store(place).generations()[-1] + 1).write_bytes(content)
    before = contents(place)
    done = place.call("run", "config.toml")
    assert done.returncode == 4
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(place) == before


def test_rollback_and_inspect_on_the_command_line(place, learned):
    *_, before, newest = store(place).generations()
    back = place.call("rollback", "state", "--json")
    assert back.returncode == 0, back.stderr
    told = json.loads(back.stdout)
    assert (told["generation"], told["before"]) == (before, newest)
    shown = json.loads(place.call("inspect", "state", "--json").stdout)
    assert (shown["generation"], shown["n"]) == (before, told["n"])
    assert shown["set_aside"] == [told["aside"]]
    found = place.run("config.toml")
    assert (found["state_digest"], found["learned"]) == (learned.summary["state_digest"], EVENTS)


def test_rollback_beside_a_running_daemon_is_refused(place):
    process = place.start_paused("config.toml", "all.csv", 2, "--fresh")
    try:
        done = place.call("rollback", "state")
    finally:
        process.terminate()
        place.finish(process)
    assert done.returncode == 4
    assert f"in use by process {process.pid}" in done.stderr
