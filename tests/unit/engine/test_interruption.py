"""Long calls run in a thread of their own, so that signals and stops need not wait for them."""

import threading

import numpy as np
import pytest

from streammoe.engine.interruption import LONG, FitCancelled, cancellable, interruptible, uncancellable


def test_long_calls_leave_the_main_thread_with_its_context_and_give_results_and_errors_back():
    main = threading.main_thread()
    assert interruptible(LONG - 1, threading.current_thread) is main
    assert interruptible(LONG, threading.current_thread) is not main
    with np.errstate(divide="ignore"):
        assert interruptible(LONG, np.geterr)["divide"] == "ignore"
    with pytest.raises(ZeroDivisionError):
        interruptible(LONG, divmod, 1, 0)


def test_a_stop_leaves_short_fits_time_and_never_cancels_what_has_to_end(monkeypatch):
    with cancellable(lambda: True):
        assert interruptible(0.0, abs, -1) == 1
        monkeypatch.setattr("streammoe.engine.interruption.GRACE_SECONDS", 0.0)
        with pytest.raises(FitCancelled):
            interruptible(0.0, abs, -1)
        with uncancellable():
            assert interruptible(LONG, abs, -1) == 1
