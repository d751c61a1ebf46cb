"""A daemon whose loss jumps: it reports that, or stops."""

from pathlib import Path

import numpy as np
import pytest

from streammoe.daemon.signals import StopFlag
from streammoe.errors import ModelJumped
from tests.unit import daemons
from tests.unit.daemons import latest, opened, run, store

pytestmark = pytest.mark.slow

WINDOW = 100
"""Events of a window, instead of 500."""
GOOD, BAD = 12 * WINDOW, 4 * WINDOW


def rows(n, seed=0, *, jumped=False):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    y = np.where(a > 0.0, b, -b) + 0.1 * rng.normal(size=n)
    if jumped:
        # As after a deploy that has shuffled a column: no steps get used to it.
        y = 300.0 * rng.choice([-1.0, 1.0], size=n) * (1.0 + rng.exponential(size=n) ** 3)
    return np.column_stack([a, b, y]).round(5).tolist()


STREAM = [*rows(GOOD), *rows(BAD, 1, jumped=True), *rows(BAD, 2)]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Without the detector of drifts, which has a line in the log of its own."""
    monkeypatch.setattr("streammoe.daemon.guards.MIN_WINDOW", WINDOW)
    daemons.enter(
        tmp_path,
        monkeypatch,
        f"""
        source = {{ kind = "file", path = "events.csv", block_bytes = 4096 }}
        schema.target = "y"
        checkpoint = {{ every_events = {WINDOW // 2}, every_seconds = 1e9, keep = 2 }}
        metrics.enabled = false
        guard.on_jump = "stop"
        [model]
        n_experts = 2
        warmup = {WINDOW}
        schedule = {{ kind = "constant", gamma = 0.05 }}
        drift = "off"
        """,
    )
    daemons.write_csv("events.csv", STREAM)


def test_an_alarm_is_a_line_in_the_log_and_a_metric_and_nothing_else(caplog):
    found = {}
    for on_jump in ("alarm", "off"):
        caplog.clear()
        with opened(f"guard.on_jump={on_jump}", f"checkpoint.dir={on_jump}") as running:
            summary = running.daemon.run(StopFlag())
            lines = sum(record.name == "streammoe.daemon" for record in caplog.records)
            jumps = running.daemon.metrics.registry.get_sample_value("streammoe_guard_jumps_total", {})
        found[on_jump] = summary.state_digest, jumps, lines
        assert (summary.learned, summary.rejected) == (len(STREAM), 0)
    digest, jumps, lines = found["alarm"]
    assert jumps == lines >= 1.0
    assert found["off"] == (digest, 0.0, 0)


def test_stop_leaves_the_last_checkpoint_from_before():
    with pytest.raises(ModelJumped) as error:
        run()
    assert error.value.exit_code == 8
    assert GOOD - 3 * WINDOW < latest()["n"] <= GOOD
    assert f"generation {store().latest()[0]}," in str(error.value)
    # A start resumes from there: it learns what it is asked to learn, as if it had never stopped.
    whole = run("guard.on_jump=alarm", "checkpoint.dir=alarm")
    assert run("guard.on_jump=alarm").state_digest == whole.state_digest


def test_the_last_good_generation_outlives_checkpoint_keep():
    daemons.write_csv("events.csv", STREAM[: GOOD + int(2.8 * WINDOW)])
    with opened() as running:
        running.daemon.run(StopFlag())
        assert len(running.daemon.state.jumps.losses.state.high) == 2
    good = [generation for generation, learned in latest()["guard"]["saved"] if learned <= GOOD]
    assert max(good) in store().generations()
    assert len(store().generations()) > 2
    # With the doubt over, no more are kept than wanted.
    daemons.write_csv("events.csv", STREAM[:GOOD])
    run("checkpoint.dir=sound")
    assert len(list(Path("sound").glob("checkpoint-*"))) <= 4


def test_without_a_checkpoint_from_before_it_stops():
    with pytest.raises(ModelJumped):
        run("checkpoint.every_events=1000000")
    assert store().generations() == []
