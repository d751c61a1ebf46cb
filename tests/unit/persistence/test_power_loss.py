"""Whatever a power cut leaves of a checkpoint folder, a start finds a sound checkpoint no older than was promised."""

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore
from tests.unit.persistence.power_loss import Recorder, Returned, materialise

FOLDER = Path("daemon", "state")
"""Below the root; neither is there at first."""


class Promise(NamedTuple):
    """What holds from the return of one call to that of the next."""

    oldest: int = 0
    """Events of the oldest checkpoint that may be found; 0 if there may be none."""
    newest: int = 0
    confirmed: frozenset[int] = frozenset({0})
    """What may be found as the generation that was confirmed."""
    kept: frozenset[int] = frozenset()
    """Events of checkpoints that must be somewhere, be it in a folder of those set aside."""


class Script:
    """Drives a store and says, before and after each call, what is promised."""

    def __init__(self, root, recorder):
        self.store = CheckpointStore(root / FOLDER, keep=2)
        self.recorder = recorder
        self.at = Promise()

    def during(self, call, **becomes):
        """Until the call returns, what held before and what will hold may both be found."""
        before, after = self.at, self.at._replace(**becomes)
        oldest, newest = min(before.oldest, after.oldest), max(before.newest, after.newest)
        self.recorder.returned(Promise(oldest, newest, before.confirmed | after.confirmed, after.kept))
        call()
        self.at = after
        self.recorder.returned(after)

    def prepare(self):
        self.during(self.store.prepare)

    def save(self, *events):
        for n in events:
            content = {"theta": np.full(20, float(n))}, {"n": n}
            self.during(lambda content=content: self.store.save(*content), oldest=n, newest=n)

    def confirm(self, generation):
        self.during(lambda: self.store.confirm(generation), confirmed=frozenset({generation}))

    def set_aside(self, after):
        """Go back to this generation; what is moved must not be lost on the way."""
        back = self.store.load(after).metadata["n"] if after else 0
        moved = [self.store.load(number).metadata["n"] for number in self.store.generations() if number > after]
        becomes = {"oldest": back, "newest": back, "kept": self.at.kept | set(moved)}
        if self.store.confirmed > after:
            becomes["confirmed"] = frozenset({after})
        self.during(lambda: self.store.set_aside(after), **becomes)


def story(script):
    """Run saves that remove older ones, a transaction, a rollback, a restart, and saves that keep one."""
    script.prepare()
    script.save(10, 20, 30)
    script.confirm(3)
    script.save(40)
    script.set_aside(after=3)
    script.save(35)
    script.prepare()
    script.save(45)
    script.set_aside(after=0)
    script.store.keep = 1
    script.save(5, 6, 7)


def record(root, monkeypatch, story=story):
    """The steps of a story in a folder, and the disk before it."""
    with monkeypatch.context() as patch:
        recorder = Recorder(root, patch)
        story(Script(root, recorder))
    return recorder


def broken_promise(root, promise):
    """What is wrong with a folder after a cut, if anything is."""
    store = CheckpointStore(root / FOLDER)
    try:
        latest = store.latest()
    except CheckpointError as error:
        return str(error)
    found = 0 if latest is None else latest[1].metadata["n"]
    if not promise.oldest <= found <= promise.newest:
        return f"found {found}, promised {promise.oldest} to {promise.newest}"
    if latest is not None and not (latest[1].arrays["theta"] == found).all():
        return f"the arrays of {found} are not its own"
    if store.confirmed not in promise.confirmed:
        return f"{store.confirmed} is confirmed, promised {set(promise.confirmed)}"
    files = root.rglob("checkpoint-*.safetensors")
    there = {CheckpointStore(path.parent).load(int(path.stem[11:])).metadata["n"] for path in files}
    return f"{promise.kept - there} are gone" if promise.kept - there else None


def cuts(recorder):
    """After each step every state that a cut there may leave, with what is promised."""
    disk, promise = recorder.disk(), Promise()
    for step in [None, *recorder.steps]:
        if isinstance(step, Returned):
            promise = step.promise
        elif step is not None:
            disk.take(step)
        yield from ((promise, state) for state in set(disk.after_a_cut()))


def problems(recorder, scratch):
    """What is wrong after any cut; each state is looked at once for each promise."""
    looked = set()
    for promise, state in cuts(recorder):
        if (promise, state) in looked:
            continue
        looked.add((promise, state))
        materialise(state, scratch)
        if problem := broken_promise(scratch, promise):
            yield problem
    assert len(looked) > 50


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path


def test_a_start_finds_what_the_last_save_that_returned_has_left_or_later(root, tmp_path, monkeypatch):
    assert next(problems(record(root, monkeypatch), tmp_path / "scratch"), None) is None


def test_it_resumes_after_cut_upon_cut(root, monkeypatch):
    """A cut in the middle of some saves, a start from what is left, another cut, and so on."""
    chance = random.Random(0)
    for turn in range(1, 11):
        latest = CheckpointStore(root / FOLDER).latest()
        events = 0 if latest is None else latest[1].metadata["n"]

        def go_on(script, events=events, turn=turn):
            script.at = Promise(events, events)
            script.prepare()
            script.save(100 * turn, 100 * turn + 1, 100 * turn + 2)

        promise, state = chance.choice(list(cuts(record(root, monkeypatch, go_on)))[1:])
        materialise(state, root)
        assert broken_promise(root, promise) is None
        leftovers = list((root / FOLDER).glob(".checkpoint-*"))
        CheckpointStore(root / FOLDER).prepare()
        assert not any(path.exists() for path in leftovers)
