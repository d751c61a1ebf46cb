"""How long a sink keeps its callers waiting is seen from another thread, and everything else goes through."""

import threading
from inspect import getattr_static

import pytest

from streammoe.errors import RetriableCheckpointError, RetriableSinkError
from streammoe.pipeline.watched import SinkWait, WatchedDeadLetters, WatchedPredictions
from streammoe.ports import DeadLetterSink, PredictionSink, Recovered
from tests.kafka_lab.lab import wait_until

KINDS = {WatchedPredictions: PredictionSink, WatchedDeadLetters: DeadLetterSink}


class Sink:
    """Records its calls, each of which does what is planned for it."""

    overdue = True
    transactional = True
    rejection = "it is rejected"

    def __init__(self):
        self.calls = []
        self.plan = {}

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            return self.plan.get(name, lambda: f"the result of {name}")()

        return call


def fail(error):
    raise error


def started(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread


@pytest.mark.parametrize(("watched", "port"), KINDS.items())
def test_each_member_of_the_port_is_passed_on(watched, port):
    inner = Sink()
    sink = watched(inner, SinkWait())
    arguments = {"write": ("rows",), "restore": ("position",), "recover": (1.5, "position"), "commit": ("position", 7)}
    expected = []
    for name in sorted(name for name in dir(port) if not name.startswith("_")):
        if isinstance(getattr_static(port, name), staticmethod):
            continue  # it belongs to a kind of sinks, not to one of them
        if isinstance(getattr(port, name), property):
            assert getattr(sink, name) is getattr(inner, name), name
            continue
        result = getattr(sink, name)(*arguments.get(name, ()))
        expected.append((name, *arguments.get(name, ())))
        if name in {"position", "restore", "recover"}:
            assert result == f"the result of {name}"
    assert inner.calls == expected


@pytest.mark.parametrize("call", ["flush", "begin_flush", "commit", "write", "recover"])
def test_a_call_is_a_wait_while_it_lasts(call):
    inner, wait, answered = Sink(), SinkWait(), threading.Event()
    sink = WatchedPredictions(inner, wait)
    inner.plan = {call: answered.wait}
    arguments = {"commit": ({}, 1), "write": ([],), "recover": (0.1, None)}.get(call, ())
    assert wait.seconds == 0
    thread = started(lambda: getattr(sink, call)(*arguments))
    wait_until(lambda: wait.seconds > 0.02, "it waits")
    answered.set()
    thread.join()
    assert wait.seconds == 0


def test_a_flush_that_is_completed_in_another_thread_keeps_nobody_waiting():
    inner, wait, answered = Sink(), SinkWait(), threading.Event()
    inner.plan = {"begin_flush": lambda: answered.wait}
    complete = WatchedDeadLetters(inner, wait).begin_flush()
    thread = started(complete)
    assert wait.seconds == 0
    answered.set()
    thread.join()


def test_while_a_disk_is_full_learning_does_not_wait_between_attempts():
    wait, full = SinkWait(), Sink()
    full.plan = {"flush": lambda: fail(RetriableCheckpointError("the disk is full"))}
    with pytest.raises(RetriableCheckpointError):
        WatchedDeadLetters(full, wait).flush()
    assert wait.seconds == 0


def test_all_waits_are_added_up_the_present_one_included():
    inner, wait, answered = Sink(), SinkWait(), threading.Event()
    sink = WatchedPredictions(inner, wait)
    inner.plan = {"flush": lambda: answered.wait(0.05)}
    sink.flush()
    first = wait.total
    assert first >= 0.05
    thread = started(sink.flush)
    wait_until(lambda: wait.total > first + 0.02, "it is seen while it lasts")
    thread.join()
    second = wait.total
    assert second >= first + 0.05
    assert wait.total == second


def test_a_wait_goes_on_between_attempts_and_over_a_new_sink_until_one_succeeds():
    error = RetriableSinkError("no answer")
    wait = SinkWait()
    first = Sink()
    first.plan = {"flush": lambda: fail(error)}
    for _ in range(2):
        with pytest.raises(type(error)):
            WatchedPredictions(first, wait).flush()
    second = Sink()
    second.plan = {"recover": lambda: None}
    sink = WatchedPredictions(second, wait)
    assert sink.recover(0.1, None) is None
    lasted = wait.seconds
    assert lasted > 0
    sink.write([])  # which may only buffer
    assert wait.seconds > lasted
    second.plan = {"recover": lambda: Recovered(3)}
    assert sink.recover(0.1, None) == Recovered(3)
    assert wait.seconds == 0
