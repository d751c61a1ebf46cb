"""A daemon whose stream drifts: metrics, one line in the log, and the same after a restart."""

import json
import logging
from contextlib import contextmanager

import numpy as np
import pytest

from streammoe import assembly, configuration
from streammoe.commands.inspect import look_into
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError

N, CHANGE = 1500, 900


def lines():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, N))
    y = np.where(np.arange(N) < CHANGE, 1.0, -1.0) * np.where(a > 0.0, 2.0 * b, -b) + 0.1 * rng.normal(size=N)
    return [b'{"a":%.5f,"b":%.5f,"y":%.5f}' % row for row in zip(a, b, y, strict=True)]


@contextmanager
def opened(folder, rows=slice(None), **model):
    """A daemon that reads what is in the folder by now: these rows in a file more."""
    folder.mkdir(exist_ok=True)
    (folder / f"events-{rows.start or 0:04}.jsonl").write_bytes(b"\n".join(lines()[rows]) + b"\n")
    tables = {
        "source": {"kind": "file", "path": str(folder / "events-*.jsonl"), "block_bytes": 8192},
        "schema": {"target": "y"},
        "model": {"n_experts": 2, "warmup": 100, "warmup_restarts": 1, "drift": "page_hinkley", **model},
        "checkpoint": {"dir": str(folder / "state")},
        "metrics": {"enabled": False},
        "dead_letters": {"path": str(folder / "letters.jsonl")},
    }
    with assembly.open_daemon(configuration.settings_from(tables, "test")) as running:
        yield running.daemon


def sample(daemon, name):
    return daemon._metrics.registry.get_sample_value(name, {})


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """The folder of a run, its summary, what it said, and its metrics."""
    folder = tmp_path_factory.mktemp("drifted")
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("streammoe.daemon")
    logger.addHandler(handler)
    try:
        with opened(folder / "whole") as daemon:
            summary = daemon.run(StopFlag())
            shown = {
                name: sample(daemon, f"streammoe_{name}")
                for name in ("drifts_total", "drift_last_event", "step_size", "model_events")
            }
            found = daemon.model.last_drift
    finally:
        logger.removeHandler(handler)
    said = [record for record in records if "drift" in record.getMessage()]
    return folder / "whole", summary, said, shown, found


def test_one_line_says_where_and_what(drifted):
    _, _, said, _, found = drifted
    [record] = said
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert "events-0000.jsonl: drift" in message
    for number in (f"was {found.before:.3g} an event", f"is {found.after:.3g},", f"at event {found.n};"):
        assert number in message
    assert "next step is 0.0" in message
    assert CHANGE < found.n < CHANGE + 400
    assert found.after > found.before + 0.5


def test_the_metrics_follow(drifted):
    *_, shown, found = drifted
    assert shown["drifts_total"] == 1.0
    assert shown["drift_last_event"] == found.n
    assert shown["step_size"] == (N + 1 - found.n + 200) ** -0.6


def test_without_a_detector_they_are_0(tmp_path):
    with opened(tmp_path / "off", slice(400), drift="off") as daemon:
        daemon.run(StopFlag())
        assert sample(daemon, "streammoe_drifts_total") == 0.0
        assert sample(daemon, "streammoe_drift_last_event") == 0.0


def test_a_restart_goes_on_counting(drifted):
    folder, summary, _, _, found = drifted
    with opened(folder) as daemon:
        assert sample(daemon, "streammoe_drifts_total") == 1.0
        again = daemon.run(StopFlag())
        assert sample(daemon, "streammoe_drifts_total") == 1.0
        assert sample(daemon, "streammoe_drift_last_event") == found.n
    assert again.state_digest == summary.state_digest


@pytest.mark.parametrize("upto", [CHANGE + 20, CHANGE + 150])
def test_a_restart_amid_a_drift_leaves_no_trace(drifted, tmp_path, upto):
    _, summary, *_ = drifted
    with opened(tmp_path / "parts", slice(upto)) as daemon:
        daemon.run(StopFlag())
    with opened(tmp_path / "parts", slice(upto, None)) as daemon:
        assert daemon.run(StopFlag()).state_digest == summary.state_digest


def test_inspect_shows_the_last_one(drifted):
    folder, *_, found = drifted
    seen = json.loads(json.dumps(look_into(folder / "state")))
    assert seen["drifts"] == 1
    assert seen["last_drift"] == {"n": found.n, "before": found.before, "after": found.after}
    assert seen["model"]["arguments"]["drift"] == "page_hinkley"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"drift": "adwin"}, r"model\.drift: .*page_hinkley"),
        ({"drift_restart": 0}, r"model\.drift_restart"),
        ({"averaging_rate": 1.0}, r"model\.averaging_rate"),
        ({"averaging": "polyek"}, r"model\.averaging: .*exponential"),
    ],
)
def test_what_is_no_setting_is_refused(tmp_path, setting, says):
    with pytest.raises(ConfigError, match=says), opened(tmp_path / "wrong", **setting):
        pass
