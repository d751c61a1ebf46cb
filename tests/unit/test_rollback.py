"""Rollback: what is learned again, and when it is rejected because something would be lost."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.rollback import roll_back
from streammoe.errors import CheckpointError
from streammoe.persistence import FolderLock
from tests.unit import daemons
from tests.unit.daemons import checkpoints, run, store, write_csv

pytestmark = pytest.mark.usefixtures("logging_as_before")

STATE = Path("state")
RECORDS = 1_300


def enter(folder, patch):
    daemons.enter(
        folder,
        patch,
        """
        source = { kind = "file", path = "data.csv", block_bytes = 4096 }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50 }
        checkpoint = { every_events = 1, keep = 5 }
        predictions = { kind = "file", path = "rows.jsonl" }
        metrics.enabled = false
        """,
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A folder with the last five checkpoints of a run, and its summary."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        enter(folder, patch)
        pairs = np.random.default_rng(5).normal(size=(RECORDS, 2)).round(4)
        rows = [(a, b, round(2 * a - b, 4)) for a, b in pairs.tolist()]
        rows[100] = (1, 1e9, 2)
        write_csv("data.csv", rows)
        return folder, run()


@pytest.fixture
def learned(here, template):
    """The summary of the run whose copy is the working folder."""
    folder, summary = template
    shutil.copytree(folder, ".", dirs_exist_ok=True)
    return summary


def prepare(*metadata):
    """Leave one checkpoint for each of these metadata."""
    store().prepare()
    for n, more in enumerate(metadata, start=1):
        store().save({}, {"n": n, "positions": [None], "counters": {"outcomes": {"learned": n}}, **more})


# --- going back -----------------------------------------------------------------------------------------------------


def test_it_goes_back_by_one_and_what_came_after_is_learned_again(learned):
    *_, before, newest = store().generations()
    n = store().load(before).metadata["n"]
    rows = Path("rows.jsonl").read_bytes()
    records = RECORDS - sum(store().load(before).metadata["counters"]["outcomes"].values())
    done = CliRunner().invoke(main, ["rollback", "state"])
    assert done.exit_code == 0, done.stderr
    aside = [*STATE.glob("set-aside-*/*")]
    for part in (f"generation {before}, with {n:,} events", f"{records} records", '"offset"', str(aside[0].parent)):
        assert part in done.stdout
    assert store().latest()[0] == before
    assert [path.name for path in aside] == [store().path(newest).name]
    again = run()
    assert (again.state_digest, again.learned, again.scores) == (learned.state_digest, learned.learned, learned.scores)
    assert Path("rows.jsonl").read_bytes() == rows, "what was predicted since is taken back, too"


def test_killed_in_the_middle_it_can_be_done_again_and_undone(learned, monkeypatch):
    oldest, *later = store().generations()
    before = checkpoints()
    rename, left = Path.rename, [1, 2, 3]

    def killed(path, target):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            roll_back(STATE, to=oldest)
    assert store().latest()[0] == later[-1], "a start still resumes there"
    assert sorted(path.name for path in checkpoints()) == sorted(path.name for path in before)
    roll_back(STATE, to=oldest)
    for path in STATE.glob("set-aside-*/*"):
        path.rename(STATE / path.name)
    assert checkpoints() == before
    roll_back(STATE, to=oldest)
    assert store().generations() == [oldest]
    assert run().state_digest == learned.state_digest


# --- rejected, and nothing is changed -------------------------------------------------------------------------------


def assert_refused(named="", **options):
    """Check that a rollback is rejected with an error that names this, and changes nothing."""
    before = checkpoints()
    with pytest.raises(CheckpointError) as rejected:
        roll_back(STATE, **options)
    assert named in str(rejected.value)
    assert checkpoints() == before


def test_it_is_rejected_while_a_daemon_runs_or_without_an_earlier_checkpoint(learned):
    with FolderLock(STATE):
        assert_refused()
    _, second, *_, newest = store().generations()
    store().path(second).write_bytes(b"torn")
    assert_refused(f"generation {newest + 1}", to=newest + 1)
    assert_refused(store().path(second).name, to=second)
    assert_refused(f"generation {newest}", to=newest)
    for generation in store().generations()[:-1]:
        store().path(generation).write_bytes(b"")
    assert_refused()
    shutil.rmtree(STATE)
    assert_refused()
    assert not STATE.exists()


def test_it_is_rejected_on_a_stream_that_cannot_be_read_again(here):
    prepare(*[{"positions": [{"kind": "stdin", "offset": 7}]}] * 2)
    assert_refused("generation 1")


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_it_is_rejected_if_later_predictions_have_been_seen_or_may_have_been(here, confirmed):
    prepare(*[{"transactional": True}] * 2)
    store().confirm(confirmed)
    assert_refused("generation 2")


@pytest.mark.parametrize(("metadata", "confirmed"), [({}, 2), ({"transactional": True}, 1)])
def test_it_is_rejected_over_damaged_ones_of_which_a_broker_may_know(here, metadata, confirmed):
    """The confirmed one, or one whose number would be used again and taken for seen."""
    prepare(metadata)
    store().path(2).write_bytes(b"damaged")
    store().confirm(confirmed)
    assert_refused("generation 2", to=1)
