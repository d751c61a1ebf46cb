"""What is written beside the learning: the state as it was, one at a time, and no failure goes unheard."""

import logging
import signal
import threading
import time

import numpy as np
import pytest

from streammoe.daemon.checkpointer import CheckpointWriter, Content, Copies
from streammoe.errors import CheckpointError, SinkError
from streammoe.estimators import MoERegressor
from streammoe.persistence import CheckpointStore, encode, state_digest


class Held(CheckpointStore):
    """Writes once it is let."""

    def __init__(self, folder):
        super().__init__(folder)
        self.let = threading.Event()
        self.began = threading.Event()

    def save(self, arrays, metadata):
        self.began.set()
        assert self.let.wait(10)
        return super().save(arrays, metadata)


@pytest.fixture
def store(tmp_path):
    store = Held(tmp_path / "state")
    store.prepare()
    return store


@pytest.fixture
def writer(store):
    writer = CheckpointWriter(store)
    yield writer
    store.let.set()
    writer.close()


def content(**arrays):
    return Content(
        arrays, {}, {"scores.window": np.arange(3.0)}, {"n": 1, "positions": [{"next": [1]}]}, {"next": [1]}, None
    )


def test_a_signal_that_does_not_interrupt_the_wait_is_noticed_while_it_lasts(writer, store):
    noticed = []

    def send():
        assert store.began.wait(10)
        time.sleep(0.3)  # until the other one waits
        # To another thread than the one that waits, which goes on waiting as it does when a signal comes just before.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        deadline = time.monotonic() + 8
        while not noticed and time.monotonic() < deadline:
            time.sleep(0.01)
        store.let.set()

    def handle(*_):
        noticed.append(store.let.is_set())

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    try:
        writer.begin(content(theta=np.zeros(2)), (), time.monotonic())
        sender.start()
        assert writer.outcome(wait=True) is not None
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert noticed == [False]


def test_learning_goes_on_and_changes_nothing_of_what_is_written(writer, store):
    theta = np.zeros((2, 3))
    given = content(theta=theta)
    writer.begin(given, (), time.monotonic())
    theta += 1.0
    given.metadata["positions"][0]["next"].append(2)
    given.position["next"].append(2)
    assert writer.outcome(wait=False) is None
    store.let.set()
    written = writer.outcome(wait=True)
    found = store.load(written.generation)
    assert (found.arrays["theta"] == 0.0).all()
    assert found.metadata["positions"] == [written.position] == [{"next": [1]}]
    assert found.metadata["state_digest"] == state_digest({"theta": np.zeros((2, 3))})


def test_beside_the_learning_the_same_bytes_are_written_as_at_once(writer, store):
    store.let.set()
    model = MoERegressor(2, warmup=50)
    rng = np.random.default_rng(0)
    for _ in range(2):  # during the warm-up and after it
        model.learn_array(rng.normal(size=(40, 3)), rng.normal(size=40))
        given = Content(model.arrays(), {}, {}, model.identify(), None, None)
        now = time.monotonic()
        writer.begin(given, (), now)
        files = [store.path(w.generation) for w in (writer.outcome(wait=True), writer.write(given, now))]
        assert files[0].read_bytes() == files[1].read_bytes() == encode(model.arrays(), model.describe())


def test_what_becomes_of_it_is_told_once(writer, store):
    began = time.monotonic()
    assert writer.outcome(wait=True) is None
    writer.begin(content(), (), began)
    assert writer.busy
    store.let.set()
    written = writer.outcome(wait=True)
    assert (written.generation, written.taken_at) == (1, began)
    assert 0.0 < written.seconds <= time.monotonic() - began
    assert not writer.busy
    assert writer.outcome(wait=True) is None


def test_what_it_passes_over_is_durable_first(writer, store):
    told = []
    sinks = [lambda: told.append(store.generations()), lambda: told.append(store.began.is_set())]
    store.let.set()
    writer.begin(content(), sinks, time.monotonic())
    writer.outcome(wait=True)
    assert told == [[], False]
    assert store.generations() == [1]


def test_without_what_it_passes_over_nothing_is_written(writer, store):
    def fail():
        raise SinkError("the topic is gone")

    store.let.set()
    writer.begin(content(), [fail], time.monotonic())
    with pytest.raises(SinkError, match="topic is gone"):
        writer.outcome(wait=True)
    assert store.generations() == []
    assert not writer.busy


def test_its_errors_are_those_of_the_store(writer, store, monkeypatch):
    def full(path, *data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streammoe.persistence.store.replace", full)
    store.let.set()
    writer.begin(content(), (), time.monotonic())
    with pytest.raises(CheckpointError, match="No space left on device"):
        writer.outcome(wait=True)


def test_the_end_waits_for_it(store):
    writer = CheckpointWriter(store)
    writer.begin(content(), (), time.monotonic())
    assert store.began.wait(10)
    threading.Timer(0.1, store.let.set).start()
    writer.close()
    assert store.generations() == [1]


def test_a_failure_that_nobody_waits_for_is_logged(store, caplog):
    def fail():
        time.sleep(0.1)  # it is still under way when the end comes
        raise SinkError("the topic is gone")

    writer = CheckpointWriter(store)
    writer.begin(content(), [fail], time.monotonic())
    with caplog.at_level(logging.ERROR):
        writer.close()
    assert "the checkpoint that was under way is not written" in caplog.text
    assert "the topic is gone" in caplog.text


class TestCopies:
    def test_use_their_memory_again(self):
        copies = Copies()
        first = copies.of({"a": np.zeros(3)})["a"]
        second = copies.of({"a": np.ones(3)})["a"]
        assert second is first
        assert (first == 1.0).all()

    @pytest.mark.parametrize("other", [np.ones(4), np.ones((3, 1)), np.ones(3, np.int64)])
    def test_of_another_shape_or_type_get_their_own(self, other):
        copies = Copies()
        copies.of({"a": np.zeros(3)})
        found = copies.of({"a": other})["a"]
        assert found is not other
        assert (found.shape, found.dtype) == (other.shape, other.dtype)
        assert (found == 1).all()

    def test_let_go_of_what_does_not_come_again(self):
        copies = Copies()
        first = copies.of({"a": np.zeros(3), "b": np.zeros(3)})["b"]
        copies.of({"a": np.zeros(3)})
        assert copies.of({"b": np.zeros(3)})["b"] is not first

    def test_are_not_made_of_what_never_changes(self):
        fixed = np.zeros(3)
        fixed.flags.writeable = False
        assert Copies().of({"a": fixed})["a"] is fixed

    def test_never_write_into_what_was_not_copied(self):
        copies, fixed = Copies(), np.zeros(3)
        fixed.flags.writeable = False
        copies.of({"a": fixed})
        assert copies.of({"a": np.ones(3)})["a"] is not fixed
        assert (fixed == 0.0).all()

    def test_much_memory_is_sought_beside_the_learning(self, writer):
        wide = content(theta=np.ones((1000, 1000)))
        assert not writer.make_room(wide)
        assert writer.busy
        assert writer.outcome(wait=True) is None
        assert writer.make_room(wide)
        assert not writer.busy
        room = writer._copies._held["theta"]
        assert wide.copied(writer._copies).model["theta"] is room
        assert (room == 1.0).all()

    def test_for_little_nobody_waits(self, writer):
        assert writer.make_room(content(theta=np.ones((100, 100))))
        assert not writer.busy
