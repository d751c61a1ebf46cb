"""Checkpoint folders in every state that disks, users and other versions leave them in, met by a real daemon."""

import json
import os
import shutil

import pytest

from streammoe.commands.rollback import roll_back
from streammoe.errors import CheckpointError
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
    place.summary = place.run_here(place.config("all.csv", extra="checkpoint.every_events = 1"))
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


def zeros(path, content):
    path.write_bytes(bytes(len(content)))


SPOILT = {
    "a folder": lambda path, content: path.mkdir(),
    "a pipe, from which reading would never end": lambda path, content: os.mkfifo(path),
    "a device that never ends": lambda path, content: path.symlink_to("/dev/zero"),
    "unreadable: an error of the disk": lambda path, content: path.symlink_to("/proc/self/mem"),
    "a link to itself": lambda path, content: path.symlink_to(path.name),
    "a link to nothing": lambda path, content: path.symlink_to("nothing"),
    "empty": lambda path, content: path.write_bytes(b""),
    "zeros after a power cut": zeros,
    "cut off": lambda path, content: path.write_bytes(content[:-9]),
    "a changed byte": lambda path, content: path.write_bytes(content[:-1] + b"\x99"),
}


def test_a_start_goes_back_over_all_that_is_spoilt_and_says_why_of_each(place, learned):
    *_, before, newest = store(place).generations()
    content = store(place).path(newest).read_bytes()
    store(place).path(newest).unlink()
    for number, spoil in enumerate(SPOILT.values()):
        spoil(store(place).path(newest + number), content)
    n = store(place).load(before).metadata["n"]
    done = place.call("run", "config.toml", "--summary", "json", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    log = [json.loads(line) for line in done.stderr.splitlines()]
    refused = [entry["message"] for entry in log if entry["level"] == "error"]
    assert len(refused) == len(SPOILT)
    for line, (number, name) in zip(refused, reversed(list(enumerate(SPOILT))), strict=True):
        assert store(place).path(newest + number).name in line, name
    assert [entry for entry in log if entry["level"] == "info" and f" {n} events" in entry["message"]]
    found = json.loads(done.stdout)
    assert (found["state_digest"], found["learned"]) == (learned.summary["state_digest"], EVENTS)


@pytest.mark.parametrize("setting", ["model.n_experts=3", "schema.target=b"])
def test_a_newest_one_of_another_model_is_neither_taken_nor_passed_over(place, setting):
    other = place.run_here("config.toml", setting, "checkpoint.dir=other")
    newest = store(place).generations()[-1] + 1
    shutil.copy(place.folder / other["checkpoint"], store(place).path(newest))
    before = place.kept()
    with pytest.raises(CheckpointError) as refused:
        place.run_here()
    assert setting.partition("=")[0] in str(refused.value)
    assert place.kept() == before
    roll_back(place.folder / "state")
    assert place.run_here()["learned"] == EVENTS


@pytest.mark.parametrize(
    "content", [_pack({}, '{"format":2}'), encode({}, {"n": 3})], ids=["newer format", "no daemon's"]
)
def test_a_newest_one_that_is_sound_and_strange_stops_the_start(place, content):
    store(place).path(store(place).generations()[-1] + 1).write_bytes(content)
    before = place.kept()
    with pytest.raises(CheckpointError):
        place.run_here()
    assert place.kept() == before
