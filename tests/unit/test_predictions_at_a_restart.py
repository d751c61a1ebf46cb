"""A daemon's predictions in files, over whatever ends it: those of an undisturbed run, byte for byte."""

import json
import shutil
from pathlib import Path

import pytest
from pyarrow import parquet

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.commands.rollback import roll_back
from streammoe.configuration import load_settings
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import CheckpointStore

EVENTS = 2000
LATE = ("checkpoint.every_events=1000000", "checkpoint.every_seconds=1e6")


class Asked:
    requested = False


class KilledError(Exception):
    """Ends a daemon as a kill would: nothing is saved."""


@pytest.fixture(params=["rows.jsonl", "rows.parquet"])
def name(request):
    return request.param


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    rows = "".join(f"{i % 7},{i % 5},{i % 3 + i % 7}\n" for i in range(EVENTS))
    (tmp_path / "data.csv").write_text(f"a,b,y\n{rows}")
    (tmp_path / "config.toml").write_text("""
        source = { kind = "file", path = "data.csv", block_bytes = 4096 }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50, warmup_restarts = 1 }
        predictions.kind = "file"
        metrics.enabled = false
        checkpoint = { every_events = 1, keep = 100 }
    """)
    return tmp_path


def run(name, *flags, **options):
    settings = load_settings("config.toml", overrides=[f"predictions.path={name}", *flags], environment={})
    with open_daemon(settings, **options) as running:
        return running.daemon.run(Asked())


def rows(name):
    path = Path(name)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    parts = sorted(path.parent.glob(f"{path.stem}-*"))
    return [row for part in parts for row in parquet.read_table(part).to_pylist()]


@pytest.fixture
def undisturbed(here, name):
    run(f"whole/{name}", "checkpoint.dir=whole/state")
    found = rows(f"whole/{name}")
    assert len(found) == EVENTS
    return found


def killed_at(monkeypatch, generation, when):
    """Let the daemon end just before or after a checkpoint becomes durable."""
    save = CheckpointStore.save

    def saving(self, *content):
        if when == "before" and max(self.generations(), default=0) + 1 == generation:
            raise KilledError
        saved = save(self, *content)
        if saved == generation:
            raise KilledError
        return saved

    monkeypatch.setattr(CheckpointStore, "save", saving)


@pytest.mark.parametrize(("generation", "when"), [(1, "before"), (2, "after"), (3, "before")])
def test_killed_around_a_checkpoint_no_row_comes_twice(here, monkeypatch, name, undisturbed, generation, when):
    with monkeypatch.context() as patch:
        killed_at(patch, generation, when)
        with pytest.raises(KilledError):
            run(name)
    run(name)
    assert rows(name) == undisturbed


def test_rows_that_others_have_left_stay_in_front(here, monkeypatch, name, undisturbed):
    run(name, "checkpoint.dir=other")
    with monkeypatch.context() as patch:
        killed_at(patch, 2, "before")
        with pytest.raises(KilledError):
            run(name)
    run(name)
    assert sorted(map(str, rows(name))) == sorted(map(str, 2 * undisturbed))


def test_a_rollback_takes_them_back_too(here, name, undisturbed):
    run(name)
    roll_back(Path("state"), to=2)
    run(name)
    assert rows(name) == undisturbed


def test_begun_afresh_they_follow_those_that_are_there(here, name, undisturbed):
    run(name)
    run(name, fresh=True)
    assert sorted(map(str, rows(name))) == sorted(map(str, 2 * undisturbed))


def test_a_checkpoint_that_does_not_say_makes_them_again(here, monkeypatch, name, undisturbed):
    """Such as one of an earlier version; the next one is written at once, and says it."""
    with monkeypatch.context() as patch:
        save = CheckpointStore.save
        forgetful = {"predictions"}
        patch.setattr(
            CheckpointStore,
            "save",
            lambda self, arrays, metadata: save(
                self, arrays, {key: value for key, value in metadata.items() if key not in forgetful}
            ),
        )
        run(name)
        roll_back(Path("state"), to=2)
    run(name)
    found = list(map(str, rows(name)))
    assert len(found) > EVENTS
    assert set(found) == set(map(str, undisturbed))


def test_without_anything_read_a_checkpoint_binds_nobody_to_its_settings(here, name):
    with pytest.raises(SourceError):
        run(name, "schema.target=nowhere")
    assert list(Path("state").glob("checkpoint-*"))
    assert run(name).learned == len(rows(name)) == EVENTS


def test_a_file_that_was_edited_ends_the_start_and_leaves_everything(here):
    run("rows.jsonl", *LATE)
    path = Path("rows.jsonl")
    path.write_bytes(path.read_bytes().replace(b"model_version", b"version_model", 1))
    before = {each: each.read_bytes() for each in [path, *Path("state").glob("checkpoint-*")]}
    with pytest.raises(CheckpointError):
        run("rows.jsonl")
    assert {each: each.read_bytes() for each in [path, *Path("state").glob("checkpoint-*")]} == before
    shutil.move(path, "elsewhere.jsonl")
    assert run("rows.jsonl").learned == EVENTS
