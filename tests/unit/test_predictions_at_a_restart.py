"""A daemon's predictions in files, over whatever ends it: those of an undisturbed run, byte for byte."""

import json
from pathlib import Path

import pytest

from streammoe.commands.rollback import roll_back
from streammoe.daemon.loop import Daemon
from streammoe.errors import SourceError
from streammoe.persistence import CheckpointStore
from tests.unit import daemons
from tests.unit.daemons import checkpoints, write_csv

EVENTS = 400


class KilledError(Exception):
    """Ends a daemon as a kill would: nothing is saved."""


@pytest.fixture
def name():
    return "rows.jsonl"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(Daemon, "_begin_checkpoint", Daemon.checkpoint)  # so that there is one for each batch
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "file", path = "data.csv", block_bytes = 4096 }
        schema.target = "y"
        model = { n_experts = 2, warmup.size = 50, warmup.restarts = 1 }
        predictions.kind = "file"
        metrics.enabled = false
        checkpoint = { every_events = 1, keep = 100 }
        """,
    )
    write_csv("data.csv", [[f"{y:.10f}" for y in (i % 7, i % 5, i % 3 + i % 7)] for i in range(EVENTS)])  # three blocks


def run(name, *flags, **options):
    return daemons.run(f"predictions.path={name}", *flags, **options)


def rows(name):
    return [json.loads(line) for line in Path(name).read_bytes().splitlines()]


@pytest.fixture
def undisturbed(name):
    run(f"whole/{name}", "checkpoint.dir=whole/state", "checkpoint.every_events=1000000")
    found = rows(f"whole/{name}")
    assert len(found) == EVENTS
    return found


def kill(monkeypatch, name, generation, when):
    """Run until just before or after a checkpoint becomes durable."""
    save = CheckpointStore.save

    def saving(self, *content):
        if when == "before" and max(self.generations(), default=0) + 1 == generation:
            raise KilledError
        saved = save(self, *content)
        if saved == generation:
            raise KilledError
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", saving)
        with pytest.raises(KilledError):
            run(name)


@pytest.mark.parametrize(("generation", "when"), [(1, "before"), (2, "after"), (3, "before")])
def test_killed_around_a_checkpoint_no_row_comes_twice(monkeypatch, name, undisturbed, generation, when):
    kill(monkeypatch, name, generation, when)
    run(name)
    assert rows(name) == undisturbed


def test_a_rollback_takes_rows_back_too(name, undisturbed):
    run(name)
    roll_back(Path("state"), to=2)
    run(name)
    assert rows(name) == undisturbed


def test_rows_of_another_daemon_or_from_before_a_fresh_start_stay(monkeypatch, name, undisturbed):
    run(name, "checkpoint.dir=other")
    kill(monkeypatch, name, 2, "before")
    run(name)
    assert sorted(map(str, rows(name))) == sorted(map(str, 2 * undisturbed))
    run(name, fresh=True)
    assert sorted(map(str, rows(name))) == sorted(map(str, 3 * undisturbed))


def test_a_checkpoint_without_any_event_does_not_fix_settings(name):
    with pytest.raises(SourceError):
        run(name, "schema.target=nowhere")
    assert checkpoints()
    assert run(name).learned == len(rows(name)) == EVENTS
