import logging
from itertools import pairwise
from types import SimpleNamespace

import pytest

from streammoe.daemon import checkpointer as retries
from streammoe.daemon.checkpointer import LONGEST_PAUSE, RetryPolicy
from streammoe.errors import RetriableCheckpointError

FULL = RetriableCheckpointError("the disk is full")


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def attempts(clock, patience):
    """Seconds after the first failure at which saving is tried again, until it is given up."""
    tried = RetryPolicy(patience)
    began = clock.now
    found = []

    def try_for_ever():
        while True:
            found.append(clock.now - began)
            tried.failed(FULL)
            while not tried.is_due:
                clock.now += 0.5

    with pytest.raises(RetriableCheckpointError, match="the disk is full"):
        try_for_ever()
    return found


def test_pauses_grow_up_to_a_bound_and_end_with_patience(clock):
    found = attempts(clock, 600.0)
    assert found[:6] == [0, 1, 3, 7, 15, 31]
    pauses = [after - before for before, after in pairwise(found)]
    assert max(pauses) == LONGEST_PAUSE
    assert found[-1] == 600


def test_without_patience_the_first_failure_is_the_last(clock):
    assert attempts(clock, 0.0) == [0]


def test_the_last_attempt_comes_with_the_end_of_patience(clock):
    assert attempts(clock, 2.0) == [0, 1, 2]


def test_a_success_begins_anew(clock, caplog):
    tried = RetryPolicy(10.0)
    tried.failed(FULL)
    clock.now += 9
    tried.succeeded()
    assert not tried.failing
    assert not tried.is_due
    clock.now += 9
    tried.failed(FULL)
    assert tried.failing
    assert "saving works again after 9 s" in caplog.text


def test_no_failure_says_nothing(clock, caplog):
    with caplog.at_level(logging.DEBUG):
        RetryPolicy(10.0).succeeded()
    assert caplog.text == ""
