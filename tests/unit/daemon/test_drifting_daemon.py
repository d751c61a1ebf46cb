"""A daemon whose stream drifts: metrics, one line in the log, and both again after a restart."""

import logging

import numpy as np

from streammoe.commands.inspect import describe_checkpoint
from streammoe.daemon.signals import StopFlag
from tests.unit import daemons

N, CHANGE = 3600, 3000


def samples(running):
    names = ("drifts_total", "drift_last_event", "step_size")
    return [running.daemon.metrics.registry.get_sample_value(f"streammoe_{name}", {}) for name in names]


def test_a_drift_shows_in_log_metrics_and_inspect_also_after_a_restart(tmp_path, monkeypatch, caplog):
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "file", path = "events.csv", block_bytes = 8192 }
        schema.target = "y"
        model = { n_experts = 2, warmup = 100, drift = "page_hinkley" }
        metrics.enabled = false
        """,
    )
    a, b, noise = np.random.default_rng(5).normal(size=(3, N)).round(5)
    y = np.where(np.arange(N) < CHANGE, 1.0, -1.0) * np.where(a > 0.0, 2.0 * b, -b) + 0.1 * noise
    daemons.write_csv("events.csv", np.column_stack([a, b, y]))
    with daemons.opened() as running, caplog.at_level(logging.WARNING, "streammoe.daemon"):
        assert samples(running)[:2] == [0.0, 0.0]
        summary = running.daemon.run(StopFlag())
        found, shown = running.daemon.model.last_drift, samples(running)
    assert CHANGE < found.n < CHANGE + 400
    assert found.after > found.before + 0.5
    [record] = caplog.records
    assert f"at event {found.n};" in record.getMessage()
    assert shown == [1.0, found.n, (N + 1 - found.n + 200) ** -0.6]
    noted = {entry["event"]: entry for entry in describe_checkpoint("state")["history"]}
    assert list(noted) == ["started", "fitted", "drift"]
    assert noted["drift"]["drift"] == found._asdict()
    assert noted["drift"]["before"] is None
    assert noted["drift"]["after"] == summary.state_digest
    inspected = describe_checkpoint("state")
    assert inspected["drifts"] == 1
    assert inspected["last_drift"] == {"n": found.n, "before": found.before, "after": found.after}
    with daemons.opened() as running:
        assert samples(running)[0] == 0.0, "counters begin with each start"
        assert running.daemon.run(StopFlag()).state_digest == summary.state_digest
        assert samples(running) == [0.0, *shown[1:]]
