"""A signal at any moment of a command's first two seconds: it ends cleanly, and never with a traceback of ours."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]

COMMANDS = {
    "run": ["run", "config.toml"],
    "check-config": ["check-config", "config.toml"],
    "evaluate": ["evaluate", "data.csv", "--target", "y"],
    "fit": ["fit", "data.csv", "--target", "y", "--n-experts", "1"],
}
CODES = {signal.SIGTERM: {0, 143, -signal.SIGTERM}, signal.SIGINT: {0, 130, -signal.SIGINT}}
"""Done or stopped; ended by `os._exit`; ended by the system, before Python runs a line of ours or as it shuts down."""
EARLIEST = re.compile(r"/streammoe/(?!__init__\.py|__main__\.py)\w+")
"""Modules that are imported once signals are taken care of; the interpreter alone decides about those before."""


@pytest.mark.parametrize(
    ("command", "times"), [("run", 3), *(pytest.param(name, 8, marks=pytest.mark.exhaustive) for name in COMMANDS)]
)
def test_no_traceback_of_ours_at_any_moment(tmp_path, command, times):
    (tmp_path / "data.csv").write_text("a,b,y\n" + "".join(f"{i % 7},{i % 11},{i % 5}\n" for i in range(500)))
    (tmp_path / "config.toml").write_text("""
        source = { kind = "file", path = "data.csv" }
        schema.target = "y"
        model = { n_experts = 1, warmup = 50 }
        metrics.port = 0
    """)
    moments = random.Random(command)
    program = [sys.executable, "-m", "streammoe", *COMMANDS[command]]
    for _ in range(times):
        # Half of them in the imports, which the others may reach on a slow machine, too.
        delay, stop = moments.uniform(0.0, moments.choice([0.3, 2.0])), moments.choice(list(CODES))
        process = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(delay)  # the moment is what is tested, and every moment must do
        process.send_signal(stop)
        _, said = process.communicate(timeout=120)
        seen = f"{stop.name} after {delay:.3f} s: exit {process.returncode}\n{said}"
        if stop == signal.SIGINT and "KeyboardInterrupt" in said:
            assert not EARLIEST.search(said), seen
            assert "in main" not in said, seen
        else:
            assert "Traceback" not in said, seen
            assert process.returncode in CODES[stop], seen


def test_nothing_is_imported_before_signals_are_taken_care_of():
    """What comes earlier is the interpreter's own; each import here would widen the gap in which Ctrl-C shows it."""
    program = "import sys; before = set(sys.modules); import streammoe.__main__; print(*set(sys.modules) - before)"
    folder = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=folder, capture_output=True, check=True)
    imported = set(done.stdout.decode().split())
    assert {name for name in imported if name.startswith("streammoe")} == {"streammoe", "streammoe.__main__"}
    assert not imported & {"typing", "importlib.metadata", "logging", "click", "numpy"}
