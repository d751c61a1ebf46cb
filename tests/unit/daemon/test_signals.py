import contextlib
import signal

import pytest

from streammoe.daemon.signals import STOPS, HangupFlag, StopFlag


@pytest.mark.parametrize(
    ("kind", "number"), [(HangupFlag, signal.SIGHUP), *((StopFlag, number) for number in STOPS)], ids=str
)
def test_a_signal_sets_the_flag_and_ends_nothing_and_the_handler_from_before_comes_back(kind, number):
    before = signal.getsignal(number)
    with contextlib.suppress(ZeroDivisionError), kind() as flag:
        assert not flag.requested
        signal.raise_signal(number)
        assert flag.requested
        raise ZeroDivisionError
    assert signal.getsignal(number) == before
