from types import SimpleNamespace

import pytest

from streammoe.daemon import checkpointer as retries
from streammoe.daemon.checkpointer import RetryPolicy
from streammoe.errors import RetriableCheckpointError

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
    assert attempts(clock, RetryPolicy(100.0)) == [0, 1, 3, 7, 15, 31, 61, 91, 100]
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
    assert attempts(clock, policy) == [0, 1, 3, 7, 10]
