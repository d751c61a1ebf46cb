"""Whatever a power cut leaves of a checkpoint folder, a start finds a sound checkpoint no older than was promised."""

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, durable
from tests.unit.persistence.power_loss import Disk, Recorder, Returned, materialise

FOLDER = Path("daemon", "state")
"""Below the root; neither is there at first."""


class Promise(NamedTuple):
    """What holds from the return of one call to that of the next."""

    oldest: int
    """Events of the oldest checkpoint that may be found; 0 if there may be none."""
    newest: int
    confirmed: frozenset[int]
    """What may be found as the generation that was confirmed."""
    kept: frozenset[int] = frozenset()
    """Events of checkpoints that must be somewhere, be it in a folder of those set aside."""


class Script:
    """Drives a store and says, before and after each call, what is promised."""

    def __init__(self, root, recorder, keep=2, events=0):
        self.store = CheckpointStore(root / FOLDER, keep=keep)
        self.recorder = recorder
        self.at = Promise(events, events, frozenset({0}))

    def during(self, call, **becomes):
        """Until the call returns, what held before and what will hold may both be found."""
        after = self.at._replace(**becomes)
        both = Promise(
            min(self.at.oldest, after.oldest),
            max(self.at.newest, after.newest),
            self.at.confirmed | after.confirmed,
            after.kept,
        )
        self.recorder.returned(both)
        result = call()
        self.at = after
        self.recorder.returned(after)
        return result

    def prepare(self):
        self.during(self.store.prepare)

    def save(self, n):
        content = {"theta": np.full(20, float(n))}
        self.during(lambda: self.store.save(content, {"n": n}), oldest=n, newest=n)

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


def long_story(script):
    """Saves that remove older ones, a transaction, a way back, more saves, a restart, and all set aside."""
    script.prepare()
    for n in (10, 20, 30):
        script.save(n)
    script.confirm(3)
    script.save(40)
    script.set_aside(after=3)
    script.save(35)
    script.prepare()
    script.save(45)
    script.set_aside(after=0)
    script.save(5)


def only_saves(keep):
    """Saves one after the other, each of which removes an older one."""

    def story(script):
        script.store.keep = keep
        script.prepare()
        for n in range(1, 9):
            script.save(n)

    return story


def record(root, monkeypatch, story=long_story, **options):
    """The steps of a story in a folder, and the disk before it."""
    with monkeypatch.context() as patch:
        recorder = Recorder(root, patch, **options)
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
    disk: Disk = recorder.disk()
    promise = Promise(0, 0, frozenset({0}))
    for step in [None, *recorder.steps]:
        if isinstance(step, Returned):
            promise = step.promise
        elif step is not None:
            disk.take(step)
        for state in set(disk.after_a_cut()):
            yield promise, state


def problems(recorder, scratch):
    """What is wrong after any cut; each state is looked at once for each promise."""
    looked = set()
    for promise, state in cuts(recorder):
        if (promise, state) in looked:
            continue
        looked.add((promise, state))
        materialise(state, scratch)
        problem = broken_promise(scratch, promise)
        if problem is not None:
            yield problem
    assert len(looked) > 100


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    "story", [long_story, *(pytest.param(only_saves(n), marks=pytest.mark.exhaustive) for n in (1, 3))]
)
def test_a_start_finds_what_the_last_save_that_returned_has_left_or_later(root, tmp_path, monkeypatch, story):
    recorder = record(root, monkeypatch, story)
    assert list(problems(recorder, tmp_path / "scratch")) == []


def sites(tmp_path):
    """The lines that flush in that story."""
    with pytest.MonkeyPatch.context() as patch:
        (tmp_path / "sites").mkdir()
        return sorted(set(record(tmp_path / "sites", patch).sites))


@pytest.mark.slow
def test_without_any_one_of_its_flushes_it_would_not(tmp_path, monkeypatch):
    found = sites(tmp_path)
    functions = [site.split(":")[1] for site in found]
    assert {"replace", "make_folder", "set_aside"} <= set(functions)
    for number, site in enumerate(found):
        root = tmp_path / f"root-{number}"
        root.mkdir()
        recorder = record(root, monkeypatch, deaf_to=site)
        assert next(problems(recorder, tmp_path / "scratch"), None), f"nobody would notice that {site} is gone"


def test_a_name_that_comes_before_its_bytes_would_be_noticed(root, tmp_path, monkeypatch):
    """The order of the steps counts too."""

    def renamed_first(path, *pieces):
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.touch()
        temporary.replace(path)
        path.write_bytes(b"".join(pieces))
        durable.sync_folder(path.parent)

    monkeypatch.setattr("streammoe.persistence.store.replace", renamed_first)
    assert next(problems(record(root, monkeypatch), tmp_path / "scratch"), None)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 6))])
def test_cut_after_cut_it_goes_on(root, tmp_path, monkeypatch, seed):
    """A cut in the middle of some saves, a start from what is left, another cut, and so on."""
    chance = random.Random(seed)
    for turn in range(10):
        latest = CheckpointStore(root / FOLDER).latest()
        events = 0 if latest is None else latest[1].metadata["n"]

        def go_on(script, events=events, turn=turn):
            script.at = Promise(events, events, frozenset({0}))
            script.prepare()
            for i in range(3):
                script.save(100 * (turn + 1) + i)

        recorder = record(root, monkeypatch, go_on)
        promise, state = chance.choice(list(cuts(recorder))[1:])
        materialise(state, root)
        assert broken_promise(root, promise) is None
        leftovers = list((root / FOLDER).glob(".checkpoint-*"))
        CheckpointStore(root / FOLDER).prepare()
        assert not any(path.exists() for path in leftovers)


def test_the_watch_notices_calls_that_go_around_it(root, monkeypatch):
    """Else a way of writing that nobody watches would pass every test here."""
    with monkeypatch.context() as patch:
        rename = Path.rename
        recorder = Recorder(root, patch)
        (root / "a").touch()
        recorder.look()
        patch.undo()
        rename(root / "a", root / "b")
        with pytest.raises(AssertionError):
            recorder.look()
