"""Long calls run in a thread of their own, so that signals and stops need not wait for them."""

import os
import signal
import threading

import numpy as np
import pytest

from streammoe.engine.interruption import (
    LONG,
    FitCancelled,
    cancellable,
    interruptible,
    is_running_on,
    uncancellable,
)

PATIENCE = 60.0


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


def test_long_calls_leave_the_main_thread_and_short_ones_do_not():
    main = threading.main_thread()
    assert interruptible(LONG - 1, threading.current_thread) is main
    assert interruptible(LONG, threading.current_thread) is not main


def test_a_long_call_sees_the_callers_context():
    with np.errstate(divide="ignore"):
        assert interruptible(LONG, np.geterr)["divide"] == "ignore"


def test_errors_of_a_long_call_are_raised_where_its_result_is_awaited():
    with pytest.raises(ZeroDivisionError):
        interruptible(LONG, divmod, 1, 0)


def test_a_signal_is_handled_while_a_long_call_goes_on(release):
    def call():
        os.kill(os.getpid(), signal.SIGINT)
        return release.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        interruptible(LONG, call)
    assert is_running_on()
    release.set()
    while is_running_on():
        pass


def test_a_stop_cancels_a_long_call_and_what_it_calls(release):
    asked, ended = threading.Event(), threading.Event()

    def call():
        asked.set()
        release.wait(PATIENCE)
        try:
            interruptible(0.0, abs, 1)
        except FitCancelled:
            ended.set()
            raise

    with pytest.raises(FitCancelled), cancellable(asked.is_set):
        interruptible(LONG, call)
    release.set()
    assert ended.wait(PATIENCE)


def test_a_stop_leaves_a_short_fit_time_to_end():
    with cancellable(lambda: True):
        assert interruptible(0.0, abs, -1) == 1


def test_what_has_to_end_is_not_cancelled(monkeypatch):
    monkeypatch.setattr("streammoe.engine.interruption.GRACE_SECONDS", 0.0)
    with cancellable(lambda: True):
        with pytest.raises(FitCancelled):
            interruptible(0.0, abs, -1)
        with uncancellable():
            assert interruptible(LONG, abs, -1) == 1
