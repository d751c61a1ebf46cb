"""A daemon whose loss jumps: it reports that, stops, or goes back and sets aside what it has read since."""

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


def without(lines, dead):
    """Return the records that no letter holds."""
    offsets = np.cumsum([0, *(len(line) + 1 for line in lines)])
    gone = {letter["place"]["offset"] for letter in dead}
    return [line for line, offset in zip(lines, offsets.tolist(), strict=False) if offset not in gone]


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


def test_rollback_resumes_as_if_the_records_set_aside_had_never_arrived(tmp_path):
    folder = tmp_path / "rollback"
    with opened(folder, "rollback") as daemon:
        summary = daemon.run(StopFlag())
        counted = {outcome: sample(daemon, "events_total", outcome=outcome) for outcome in ("learned", "rejected")}
        assert sample(daemon, "guard_jumps_total") == 1.0
        assert sample(daemon, "rejected_total", reason="jump") == counted["rejected"]
    dead = letters(folder)
    assert {(letter["stage"], letter["reason"]) for letter in dead} == {("learn", "jump")}
    # All since the checkpoint before, up to the end of the batch in which it was found; the rest is learned again.
    first = STREAM.index(dead[0]["record"].encode())
    assert GOOD - 2 * WINDOW < first <= GOOD
    assert [letter["record"].encode() for letter in dead] == STREAM[first : first + len(dead)]
    assert GOOD + 3 * WINDOW <= first + len(dead) < GOOD + BAD + WINDOW
    # Each record is counted once.
    assert summary.learned + summary.rejected == summary.events == len(STREAM)
    assert counted == {"learned": summary.learned, "rejected": len(dead)}
    assert latest(folder)[1]["counters"] == {
        "outcomes": {"learned": summary.learned, "predicted_only": 0, "rejected": len(dead), "skipped": 0},
        "reasons": {"jump": len(dead)},
    }
    assert latest(folder)[1]["guard"]["jumps"]["jumps"] == 1, "restarts count on from there"
    twin = run(tmp_path / "twin", "off", without(STREAM, dead))
    assert summary.learned == twin.learned
    assert summary.state_digest == twin.state_digest
    assert summary.scores == pytest.approx(twin.scores)


@pytest.mark.parametrize("every_events", [WINDOW // 2, int(3.4 * WINDOW)])
def test_a_jump_that_lasts_is_set_aside_again_and_again(tmp_path, every_events):
    """Wherever in a window of losses the checkpoint was made that the daemon goes back to."""
    stream = [*records(GOOD), *records(4 * BAD, 1, jumped=True), *records(BAD, 2)]
    with opened(tmp_path, "rollback", stream, every_events=every_events) as daemon:
        summary = daemon.run(StopFlag())
        assert sample(daemon, "guard_jumps_total") >= 4.0
    assert summary.learned + summary.rejected == summary.events == len(stream)
    dead = letters(tmp_path)
    jumped = set(stream[GOOD : GOOD + 4 * BAD])
    assert len(jumped - {letter["record"].encode() for letter in dead}) < 3 * WINDOW
    assert summary.state_digest == run(tmp_path / "twin", "off", without(stream, dead)).state_digest


class CrashError(Exception):
    """Nobody handles it."""


def test_a_crash_while_a_jump_builds_up_changes_nothing(tmp_path):
    whole = run(tmp_path / "whole", "rollback")
    for at in (GOOD + WINDOW, GOOD + int(2.5 * WINDOW)):
        folder = tmp_path / f"crashed-{at}"
        with opened(folder, "rollback") as daemon:

            def crash(_, daemon=daemon, at=at):
                if daemon.model.n >= at:
                    raise CrashError

            daemon._on_batch = crash
            with pytest.raises(CrashError):
                daemon.run(StopFlag())
        assert latest(folder)[1]["n"] > GOOD, "some of it has been saved"
        resumed = run(folder, "rollback", None)
        assert resumed.state_digest == whole.state_digest
        assert (resumed.learned, resumed.rejected) == (whole.learned, whole.rejected)
        # Letters are written at least once.
        offsets = [{letter["place"]["offset"] for letter in letters(each)} for each in (folder, tmp_path / "whole")]
        assert offsets[0] == offsets[1]


def test_the_last_good_generation_outlives_checkpoint_keep(tmp_path):
    with opened(tmp_path, "rollback", STREAM[: GOOD + int(2.8 * WINDOW)]) as daemon:
        daemon.run(StopFlag())
        assert daemon._jump_handler.guard.high == 2
    kept = CheckpointStore(tmp_path / "state").generations()
    good = [generation for generation, learned in latest(tmp_path)[1]["guard"]["saved"] if learned <= GOOD]
    assert max(good) in kept
    assert len(kept) > 2
    # With the doubt over, no more are kept than wanted.
    run(tmp_path / "sound", "rollback", STREAM[:GOOD])
    assert len(CheckpointStore(tmp_path / "sound" / "state").generations()) <= 4


@pytest.mark.parametrize("on_jump", ["stop", "rollback"])
def test_without_a_checkpoint_from_before_it_stops(on_jump, tmp_path):
    with pytest.raises(ModelJumped):
        run(tmp_path, on_jump, every_events=10**9)
    assert CheckpointStore(tmp_path / "state").generations() == []


def test_labels_that_came_with_the_jump_go_with_it(tmp_path):
    """Features wait for labels in the checkpoint, too: what waits afterwards is what waited then."""

    def halves(lines, first):
        for i, line in enumerate(lines, start=first):
            held = json.loads(line)
            y = held.pop("y")
            yield json.dumps({"id": i, **held}).encode()
            yield json.dumps({"id": i, "y": y}).encode()

    lines = [*halves(STREAM[:GOOD], 0), b'{"id": "open", "a": 1.0, "b": 1.0}', *halves(STREAM[GOOD:], GOOD)]
    folder = tmp_path / "labels"
    summary = run(folder, "rollback", lines, labels={"key": "id"})
    dead = letters(folder)
    assert {letter["reason"] for letter in dead} == {"jump"}
    twin = run(tmp_path / "twin", "off", without(lines, dead), labels={"key": "id"})
    assert summary.state_digest == twin.state_digest
    assert (summary.learned, summary.pending, summary.expired) == (twin.learned, twin.pending, twin.expired)
    assert summary.rejected == len(dead)
