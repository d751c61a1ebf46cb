import os
import signal
import subprocess
import sys

import pytest

from streammoe.daemon.signals import STOPS, StopFlag


@pytest.mark.parametrize("stop", STOPS)
def test_a_signal_sets_the_flag_and_nothing_else(stop):
    with StopFlag() as flag:
        assert not flag.requested
        signal.raise_signal(stop)
        assert flag.requested


def test_the_handlers_from_before_come_back():
    before = [signal.getsignal(stop) for stop in STOPS]
    with StopFlag():
        assert [signal.getsignal(stop) for stop in STOPS] != before
    assert [signal.getsignal(stop) for stop in STOPS] == before


def test_they_come_back_after_an_error_too():
    before = [signal.getsignal(stop) for stop in STOPS]
    with pytest.raises(ZeroDivisionError), StopFlag():
        raise ZeroDivisionError
    assert [signal.getsignal(stop) for stop in STOPS] == before


@pytest.mark.parametrize("pair", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_the_process_without_any_clean_up(pair):
    program = f"""
import signal
from streammoe.daemon.signals import StopFlag
try:
    with StopFlag():
        signal.raise_signal({int(pair[0])})
        print("still here", flush=True)
        signal.raise_signal({int(pair[1])})
        print("never here", flush=True)
finally:
    print("no clean-up", flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "still here\n", done.stderr
    assert done.returncode == 128 + pair[1]
