"""Signals during fits that would take long."""

import json
import signal
import time

import numpy as np
import pytest

from tests.process.place import Place

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROWS, COLUMNS = 565, 80
SOON = 40.0
"""Seconds that a busy machine may take for what lasts one on an idle one; the fit would take several times as long."""


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / "here")
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS + 1))
    lines = [[*(f"x{j}" for j in range(COLUMNS)), "y"], *[[f"{value:.3f}" for value in row] for row in values]]
    (place.folder / "rows.csv").write_text("".join(",".join(line) + "\n" for line in lines))
    config = place.config("rows.csv")
    config.write_text(config.read_text().replace("n_experts = 2, warmup = 300", "n_experts = 60, warmup = 560"))
    return place


def signalled(place, *arguments, times=1, words):
    """The exit code of a process that is sent SIGTERM once its log holds these words, its output and the seconds."""
    process = place.start(*arguments, program=("-m", "streammoe"))
    log = []
    for line in process.stderr:
        log.append(line)
        if words in line:
            break
    else:
        pytest.fail("".join(log))
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    while times > 1 and process.poll() is None:  # two signals at once are one
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    done = place.finish(process)
    return done, time.monotonic() - began


def test_a_daemon_gives_a_long_fit_up_and_saves_what_came_before(place):
    done, seconds = signalled(place, "run", "config.toml", "--summary", "json", words="fitting 60 experts")
    assert done.returncode == 0, done.stderr
    assert seconds < SOON
    kept, summary = place.inspect(), json.loads(done.stdout)
    assert kept["warming_up"]
    assert 0 < kept["n"] == summary["learned"] < 560
    assert kept["state_digest"] == summary["state_digest"]


def test_a_second_signal_during_a_long_fit_leaves_at_once(place):
    done, seconds = signalled(place, "run", "config.toml", times=2, words="fitting 60 experts")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert seconds < SOON


def test_a_fit_ends_soon_too_and_leaves_no_model(place):
    asked = ["fit", "rows.csv", "--config", "config.toml", "--out", "past.model"]
    done, seconds = signalled(place, *asked, words="fitting 60 experts")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert seconds < SOON
    assert not (place.folder / "past.model").exists()
