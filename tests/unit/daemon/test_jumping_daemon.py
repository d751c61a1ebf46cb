"""A daemon whose loss jumps: it reports that, or stops."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from streammoe import assembly, configuration
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ModelJumped
from streammoe.persistence import CheckpointStore

pytestmark = pytest.mark.slow

WINDOW = 100
"""Events of a window, instead of 500."""
GOOD, BAD = 12 * WINDOW, 4 * WINDOW


@pytest.fixture(autouse=True)
def short_windows(monkeypatch):
    monkeypatch.setattr("streammoe.daemon.guards.MIN_WINDOW", WINDOW)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)


def records(n, seed=0, *, jumped=False):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, n))
    y = np.where(a > 0.0, b, -b) + 0.1 * rng.normal(size=n)
    if jumped:
        # As after a deploy that has shuffled a column: no steps get used to it.
        y = 300.0 * rng.choice([-1.0, 1.0], size=n) * (1.0 + rng.exponential(size=n) ** 3)
    return [b'{"a":%.5f,"b":%.5f,"y":%.5f}' % row for row in zip(a, b, y, strict=True)]


STREAM = [*records(GOOD), *records(BAD, 1, jumped=True), *records(BAD, 2)]


def tables(folder, on_jump, every_events=WINDOW // 2, **more):
    # Without the detector of drifts, which has a line in the log of its own.
    model = {"n_experts": 2, "warmup": {"size": WINDOW, "restarts": 1}, "drift": "off"}
    model["schedule"] = {"kind": "constant", "gamma": 0.05}
    return {
        "source": {"kind": "file", "path": str(folder / "events*.jsonl"), "block_bytes": 4096},
        "schema": {"target": "y"},
        "model": model,
        "checkpoint": {"dir": str(folder / "state"), "every_events": every_events, "every_seconds": 1e9, "keep": 2},
        "metrics": {"enabled": False},
        "dead_letters": {"path": str(folder / "letters.jsonl"), "max_ratio": 0.5},
        "guard": {"on_jump": on_jump},
        **more,
    }


@contextmanager
def opened(folder, on_jump, lines=STREAM, **more):
    folder.mkdir(exist_ok=True)
    if lines is not None:
        (folder / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    with assembly.open_daemon(configuration.settings_from(tables(folder, on_jump, **more), "test")) as running:
        yield running.daemon


def run(*arguments, **more):
    with opened(*arguments, **more) as daemon:
        return daemon.run(StopFlag())


def letters(folder):
    return [json.loads(line) for line in (folder / "letters.jsonl").read_text().splitlines()]


def latest(folder):
    generation, found = CheckpointStore(folder / "state").latest()
    return generation, found.metadata


def sample(daemon, name, **labels):
    return daemon._metrics.registry.get_sample_value(f"streammoe_{name}", labels)


def test_an_alarm_is_a_line_in_the_log_and_a_metric_and_nothing_else(tmp_path, caplog):
    found = {}
    for on_jump in ("alarm", "off"):
        caplog.clear()
        with opened(tmp_path / on_jump, on_jump) as daemon:
            summary = daemon.run(StopFlag())
            lines = sum(record.name == "streammoe.daemon" for record in caplog.records)
            found[on_jump] = summary.state_digest, sample(daemon, "guard_jumps_total"), lines
        assert summary.learned == len(STREAM)
        assert letters(tmp_path / on_jump) == []
    digest, jumps, lines = found["alarm"]
    assert jumps == lines >= 1.0
    assert found["off"] == (digest, 0.0, 0)


def test_stop_leaves_the_last_checkpoint_from_before(tmp_path):
    folder = tmp_path / "stop"
    with pytest.raises(ModelJumped) as error:
        run(folder, "stop")
    assert error.value.exit_code == 8
    generation, metadata = latest(folder)
    assert GOOD - 3 * WINDOW < metadata["n"] <= GOOD
    assert f"generation {generation}," in str(error.value)
    # A start resumes from there: it learns what it is asked to learn, as if it had never stopped.
    assert run(folder, "alarm").state_digest == run(tmp_path / "alarm", "alarm").state_digest


def test_the_last_good_generation_outlives_checkpoint_keep(tmp_path):
    with opened(tmp_path, "stop", STREAM[: GOOD + int(2.8 * WINDOW)]) as daemon:
        daemon.run(StopFlag())
        assert daemon._jump_handler.guard.high == 2
    kept = CheckpointStore(tmp_path / "state").generations()
    good = [generation for generation, learned in latest(tmp_path)[1]["guard"]["saved"] if learned <= GOOD]
    assert max(good) in kept
    assert len(kept) > 2
    # With the doubt over, no more are kept than wanted.
    run(tmp_path / "sound", "stop", STREAM[:GOOD])
    assert len(CheckpointStore(tmp_path / "sound" / "state").generations()) <= 4


def test_without_a_checkpoint_from_before_it_stops(tmp_path):
    with pytest.raises(ModelJumped):
        run(tmp_path, "stop", every_events=10**9)
    assert CheckpointStore(tmp_path / "state").generations() == []
