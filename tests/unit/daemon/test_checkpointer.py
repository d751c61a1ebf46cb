"""Checkpoints written while learning continues, one at a time, and when one that failed is tried again."""

import logging
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.daemon import checkpointer as retries
from streammoe.daemon.checkpointer import CheckpointWriter, RetryPolicy
from streammoe.errors import CheckpointError, RetriableCheckpointError, SinkError
from streammoe.persistence import Checkpoint, CheckpointStore, state_digest


class HeldStore(CheckpointStore):
    """Writes once `let` is set."""

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
    store = HeldStore(tmp_path / "state")
    store.prepare()
    return store


@pytest.fixture
def writer(store):
    writer = CheckpointWriter(store)
    yield writer
    store.let.set()
    writer.close()


def content(**arrays):
    return Checkpoint({**arrays, "scores.window": np.arange(3.0)}, {"n": 1, "positions": [{"next": [1]}]})


def fail():
    raise SinkError("the topic is gone")


def test_learning_continues_and_does_not_change_what_is_written(writer, store):
    theta = np.zeros((2, 3))
    given = content(theta=theta)
    began = time.monotonic()
    assert writer.outcome(wait=True) is None
    writer.begin(given, (), began)
    theta += 1.0
    given.metadata["positions"][0]["next"].append(2)
    assert writer.busy
    assert writer.outcome(wait=False) is None
    store.let.set()
    written = writer.outcome(wait=True)
    assert (written.generation, written.taken_at) == (1, began)
    assert 0.0 < written.seconds <= time.monotonic() - began
    found = store.load(written.generation)
    assert (found.arrays["theta"] == 0.0).all()
    assert found.metadata["positions"] == written.metadata["positions"] == [{"next": [1]}]
    assert found.metadata["state_digest"] == state_digest({"theta": np.zeros((2, 3))})
    assert not writer.busy
    assert writer.outcome(wait=True) is None, "it is reported once"


def test_what_it_passes_over_is_durable_first(writer, store):
    steps = []
    sinks = [lambda: steps.append(store.generations()), lambda: steps.append(store.began.is_set())]
    store.let.set()
    writer.begin(content(), sinks, time.monotonic())
    writer.outcome(wait=True)
    assert steps == [[], False]
    assert store.generations() == [1]


def test_errors_of_sinks_and_store_are_raised_and_nothing_is_written(writer, store, monkeypatch):
    def full(path, *data):
        raise OSError(28, "No space left on device")

    store.let.set()
    monkeypatch.setattr("streammoe.persistence.store.replace", full)
    for sinks, error in (([fail], SinkError), ([], CheckpointError)):
        writer.begin(content(), sinks, time.monotonic())
        with pytest.raises(error):
            writer.outcome(wait=True)
        assert store.generations() == []
        assert not writer.busy


@pytest.mark.parametrize("sinks", [[], [fail]])
def test_closing_waits_for_one_under_way_and_logs_its_failure(store, caplog, sinks):
    writer = CheckpointWriter(store)
    closing = threading.Event()
    writer.begin(content(), [lambda: closing.wait(10), *sinks], time.monotonic())
    threading.Timer(0.05, lambda: (store.let.set(), closing.set())).start()
    with caplog.at_level(logging.ERROR):
        writer.close()
    assert store.generations() == ([] if sinks else [1])
    assert [record.levelname for record in caplog.records] == ["ERROR"] * len(sinks)


# --- attempts ---------------------------------------------------------------------------------------------------------

FULL = RetriableCheckpointError("the disk is full")


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def attempts(clock, policy):
    """Return the seconds after the first failure at which saving is tried again, until it is given up."""
    began = clock.now
    found = []

    def try_for_ever():
        while True:
            found.append(clock.now - began)
            policy.record_failure(FULL)
            while not policy.is_due:
                clock.now += 0.5

    with pytest.raises(RetriableCheckpointError) as last:
        try_for_ever()
    assert last.value is FULL
    return found


def test_pauses_grow_up_to_a_bound_and_end_with_patience(clock):
    assert attempts(clock, RetryPolicy(100.0)) == [0, 1, 2, 4, 8, 16, 32, 62, 92, 100]
    assert attempts(clock, RetryPolicy(0.0)) == [0]


def test_after_a_success_patience_and_pauses_begin_again(clock, caplog):
    policy = RetryPolicy(10.0)
    policy.record_success()
    assert caplog.records == []
    policy.record_failure(FULL)
    assert policy.failing
    clock.now += 9
    policy.record_success()
    assert (policy.failing, policy.is_due) == (False, False)
    clock.now += 9
    assert attempts(clock, policy) == [0, 1, 2, 4, 8, 10]
