"""A daemon whose stream drifts: metrics, one line in the log, and the same after a restart."""

import logging
from contextlib import contextmanager

import numpy as np

from streammoe import assembly, configuration
from streammoe.commands.inspect import look_into
from streammoe.daemon.signals import StopFlag

N, CHANGE = 1500, 900


def lines():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, N))
    y = np.where(np.arange(N) < CHANGE, 1.0, -1.0) * np.where(a > 0.0, 2.0 * b, -b) + 0.1 * rng.normal(size=N)
    return [b'{"a":%.5f,"b":%.5f,"y":%.5f}' % row for row in zip(a, b, y, strict=True)]


@contextmanager
def opened(folder, rows=slice(None)):
    """Open a daemon that reads what is in the folder by now: one more file with these rows."""
    folder.mkdir(exist_ok=True)
    (folder / f"events-{rows.start or 0:04}.jsonl").write_bytes(b"\n".join(lines()[rows]) + b"\n")
    tables = {
        "source": {"kind": "file", "path": str(folder / "events-*.jsonl"), "block_bytes": 8192},
        "schema": {"target": "y"},
        "model": {"n_experts": 2, "warmup": 100, "warmup_restarts": 1, "drift": "page_hinkley"},
        "checkpoint": {"dir": str(folder / "state")},
        "metrics": {"enabled": False},
        "dead_letters": {"path": str(folder / "letters.jsonl")},
    }
    with assembly.open_daemon(configuration.settings_from(tables, "test")) as running:
        yield running.daemon


def samples(daemon):
    names = ("drifts_total", "drift_last_event", "step_size")
    return [daemon._metrics.registry.get_sample_value(f"streammoe_{name}", {}) for name in names]


def test_a_drift_shows_in_log_metrics_and_inspect_and_a_restart_amid_it_leaves_no_trace(tmp_path, caplog):
    folder = tmp_path / "whole"
    with opened(folder) as daemon, caplog.at_level(logging.WARNING, "streammoe.daemon"):
        assert samples(daemon)[:2] == [0.0, 0.0]
        summary = daemon.run(StopFlag())
        found, shown = daemon.model.last_drift, samples(daemon)
    assert CHANGE < found.n < CHANGE + 400
    assert found.after > found.before + 0.5
    [record] = caplog.records
    assert f"at event {found.n};" in record.getMessage()
    assert shown == [1.0, found.n, (N + 1 - found.n + 200) ** -0.6]
    inspected = look_into(folder / "state")
    assert inspected["drifts"] == 1
    assert inspected["last_drift"] == {"n": found.n, "before": found.before, "after": found.after}
    with opened(folder) as daemon:
        assert samples(daemon)[0] == 1.0
        assert daemon.run(StopFlag()).state_digest == summary.state_digest
        assert samples(daemon) == shown
    for upto in (CHANGE + 20, found.n + 5):
        parts = tmp_path / f"parts-{upto}"
        for rows in (slice(upto), slice(upto, None)):
            with opened(parts, rows) as daemon:
                summary_of_parts = daemon.run(StopFlag())
        assert summary_of_parts.state_digest == summary.state_digest
