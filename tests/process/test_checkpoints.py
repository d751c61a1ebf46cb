"""Checkpoint folders in every state that disks, users and other versions leave them in, met by a real daemon."""

import json
import os
import shutil

import pytest

from streammoe.commands.rollback import roll_back
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, encode
from streammoe.persistence.format import _pack
from tests.process.workspace import EVENTS


@pytest.fixture
def learned(here):
    """A workspace with the last three checkpoints of a run, and their store."""
    here.write("all.csv")
    here.config("all.csv", "checkpoint.every_events = 1")
    here.run_here()
    here.store = CheckpointStore(here / "state")
    return here


def newest(store, ahead=0):
    return store.path(store.generations()[-1] + ahead)


SPOILT = {
    "a folder": lambda path, content: path.mkdir(),
    "a pipe, from which reading would never end": lambda path, content: os.mkfifo(path),
    "a device that never ends": lambda path, content: path.symlink_to("/dev/zero"),
    "unreadable: an error of the disk": lambda path, content: path.symlink_to("/proc/self/mem"),
    "a link to itself": lambda path, content: path.symlink_to(path.name),
    "a link to nothing": lambda path, content: path.symlink_to("nothing"),
    "empty": lambda path, content: path.write_bytes(b""),
    "zeros after a power cut": lambda path, content: path.write_bytes(bytes(len(content))),
    "cut off": lambda path, content: path.write_bytes(content[:-9]),
    "a changed byte": lambda path, content: path.write_bytes(content[:-1] + b"\x99"),
}


def test_a_start_goes_back_over_all_that_is_spoilt_and_says_why_of_each(learned, whole):
    store = learned.store
    *_, before, last = store.generations()
    content = store.path(last).read_bytes()
    store.path(last).unlink()
    for number, spoil in enumerate(SPOILT.values()):
        spoil(store.path(last + number), content)
    n = store.load(before).metadata["n"]
    command = learned.run("--log-format", "json")
    summary = command.end()
    log = [json.loads(line) for line in command.err.splitlines()]
    rejected = [entry["message"] for entry in log if entry["level"] == "error"]
    for line, (number, name) in zip(rejected, reversed(list(enumerate(SPOILT))), strict=True):
        assert store.path(last + number).name in line, name
    assert [entry for entry in log if entry["level"] == "info" and f" {n} events" in entry["message"]]
    assert (summary["state_digest"], summary["learned"]) == (whole["state_digest"], EVENTS)


@pytest.mark.parametrize("setting", ["model.n_experts=3", "schema.target=b"])
def test_a_newest_one_of_another_model_is_neither_taken_nor_passed_over(learned, setting):
    other = learned.run_here(setting, "checkpoint.dir=other")
    shutil.copy(learned / other["checkpoint"], newest(learned.store, 1))
    before = learned.checkpoints()
    with pytest.raises(CheckpointError) as rejected:
        learned.run_here()
    assert setting.partition("=")[0] in str(rejected.value)
    assert learned.checkpoints() == before
    roll_back(learned / "state")
    assert learned.run_here()["learned"] == EVENTS


def test_a_newest_one_that_is_sound_and_strange_stops_the_start(learned):
    path = newest(learned.store, 1)
    for strange in (_pack({}, '{"format":2}'), encode({}, {"n": 3})):  # of a newer format, and no daemon's
        path.write_bytes(strange)
        before = learned.checkpoints()
        with pytest.raises(CheckpointError):
            learned.run_here()
        assert learned.checkpoints() == before
