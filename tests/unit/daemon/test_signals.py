import contextlib
import os
import signal
import subprocess
import sys

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
