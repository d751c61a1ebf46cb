"""Going back on purpose: what is learned again, and when it is refused because something would be lost."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.commands import main
from streammoe.commands.dead_letters import replay
from streammoe.commands.inspect import describe_checkpoint
from streammoe.commands.rollback import roll_back
from streammoe.configuration import load_settings
from streammoe.daemon.loop import Daemon
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, FolderLock, encode
from streammoe.persistence.format import _pack

pytestmark = pytest.mark.usefixtures("logging_as_before")

STATE = Path("state")
RECORDS = 1_300


class Asked:
    requested = False


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    monkeypatch.setattr(Daemon, "_begin_checkpoint", Daemon.checkpoint)  # so that there is one for each batch
    rng = np.random.default_rng(5)
    rows = [f"{a:.4f},{b:.4f},{2 * a - b:.4f}\n" for a, b in rng.normal(size=(RECORDS, 2))]
    rows[100] = "1,1e9,2\n"
    Path("data.csv").write_text("a,b,y\n" + "".join(rows))
    Path("config.toml").write_text("""
        source = { kind = "file", path = "data.csv", block_bytes = 4096 }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50, warmup_restarts = 1 }
        checkpoint = { every_events = 1, keep = 5 }
        metrics.enabled = false
    """)


def settings(*flags):
    return load_settings("config.toml", overrides=flags, environment={})


def run(*flags, **options):
    with open_daemon(settings(*flags), **options) as running:
        return running.daemon.run(Asked())


@pytest.fixture
def learned(here):
    """A folder with the last five checkpoints of a run."""
    return run()


def store():
    return CheckpointStore(STATE)


def content():
    return {path.name: path.read_bytes() for path in STATE.rglob("*.safetensors")}


# --- going back -----------------------------------------------------------------------------------------------------


def test_it_goes_back_by_one_and_what_came_after_is_learned_again(learned):
    *_, before, newest = store().generations()
    n = store().load(before).metadata["n"]
    done = roll_back(STATE)
    assert (done.generation, done.before, done.n) == (before, newest, n)
    assert done.records == RECORDS - sum(store().load(before).metadata["counters"]["outcomes"].values())
    assert done.records > 0
    assert store().latest()[0] == before
    assert [path.name for path in Path(done.aside).iterdir()] == [store().path(newest).name]
    again = run()
    assert (again.state_digest, again.learned, again.scores) == (learned.state_digest, learned.learned, learned.scores)


def test_it_goes_back_to_any_generation_that_is_there(learned):
    oldest, *later = store().generations()
    before = content()
    done = roll_back(STATE, to=oldest)
    for path in Path(done.aside).iterdir():  # it can be undone
        path.rename(STATE / path.name)
    assert content() == before
    done = roll_back(STATE, to=oldest)
    assert store().generations() == [oldest]
    assert {path.name for path in Path(done.aside).iterdir()} == {store().path(number).name for number in later}
    assert run().state_digest == learned.state_digest


@pytest.mark.parametrize("moved", [0, 3])
def test_killed_in_the_middle_it_can_be_done_again(learned, monkeypatch, moved):
    oldest, *later = store().generations()
    rename, left = Path.rename, list(range(moved))

    def killed(path, target):
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            roll_back(STATE, to=oldest)
    assert store().latest()[0] == later[-1]  # still where a start would go on
    assert sorted(path.name for path in STATE.rglob("checkpoint-*")) == [
        store().path(number).name for number in (oldest, *later)
    ]
    roll_back(STATE, to=oldest)
    assert store().generations() == [oldest]
    assert run().state_digest == learned.state_digest


def test_a_damaged_newest_one_is_not_what_one_goes_back_from(learned):
    """A start passes it over by itself; going back means the one that a start would have taken."""
    *_, target, taken, newest = store().generations()
    store().path(newest).write_bytes(b"")
    done = roll_back(STATE)
    assert (done.generation, done.before) == (target, taken)
    assert store().generations()[-1] == target


def test_a_newer_format_can_be_left(learned):
    """After a downgrade this is the way back, and the user's own wish."""
    newest = store().generations()[-1]
    store().path(newest + 1).write_bytes(_pack({}, '{"format":2}'))
    with pytest.raises(CheckpointError):
        run()
    done = roll_back(STATE)
    assert (done.generation, done.before, done.records) == (newest, None, None)
    assert run().state_digest == learned.state_digest


def test_dead_letters_that_come_again_are_replayed_once(here):
    run("model.range_factor=1e6")
    letters = STATE / "dead-letters.jsonl"
    assert len(letters.read_text().splitlines()) == 1
    oldest = store().generations()[0]
    roll_back(STATE, to=oldest)
    run()
    done = replay(letters, settings("model.range_factor=1e12"))
    assert (done.learned, letters.read_text()) == (1, "")
    assert describe_checkpoint(STATE)["n"] == RECORDS


# --- refused, and nothing is changed --------------------------------------------------------------------------------


def refused(named="", **options):
    """A rollback is refused, which names this, and nothing is changed."""
    before = content()
    with pytest.raises(CheckpointError) as told:
        roll_back(STATE, **options)
    assert named in str(told.value)
    assert content() == before


def test_not_beside_a_daemon(learned):
    with FolderLock(STATE):
        refused()


def test_not_where_there_is_nothing(here):
    refused()
    assert not STATE.exists()


def test_not_to_what_is_not_there_or_not_sound(learned):
    _, second, *_, newest = store().generations()
    store().path(second).write_bytes(b"torn")
    refused(f"generation {newest + 1}", to=newest + 1)
    refused(store().path(second).name, to=second)
    refused(f"generation {newest}", to=newest)


def test_not_from_the_only_one(learned):
    for generation in store().generations()[:-1]:
        store().path(generation).write_bytes(b"")
    refused()


@pytest.mark.parametrize("chained", [False, True])
def test_not_on_a_stream_that_cannot_be_read_again(here, chained):
    position = {"kind": "stdin", "offset": 7}
    for n in (1, 2):
        kept = {"kind": "chain", "positions": [None, position]} if chained else position
        CheckpointStore(STATE).prepare()
        store().save({}, {"n": n, "positions": [kept], "counters": {"outcomes": {"learned": n}}})
    refused("generation 1")


@pytest.mark.parametrize("confirmed", [0, 1, 2])
def test_not_behind_predictions_that_have_been_seen_or_may_have_been(here, confirmed):
    CheckpointStore(STATE).prepare()
    for n in (1, 2):
        metadata = {"n": n, "positions": [None], "counters": {"outcomes": {"learned": n}}, "transactional": True}
        store().save({}, metadata)
    store().confirm(confirmed)
    refused("generation 2")


def test_not_behind_what_was_confirmed_though_nothing_else_tells_of_it(here):
    CheckpointStore(STATE).prepare()
    store().save({}, {"n": 1})
    store().path(2).write_bytes(b"damaged")
    store().confirm(2)
    refused("generation 2", to=1)


def test_not_over_damaged_ones_whose_numbers_would_be_given_anew(here):
    """A broker that knows a transaction of generation 2 would take the new generation 2 for seen."""
    CheckpointStore(STATE).prepare()
    store().save({}, {"n": 1, "counters": {"outcomes": {"learned": 1}}, "transactional": True})
    store().path(2).write_bytes(b"damaged")
    store().confirm(1)
    refused("generation 2", to=1)


def test_not_behind_dead_letters_that_have_left_their_file(learned):
    letters = STATE / "dead-letters.jsonl"
    before = store().generations()[-1]
    replay(letters, settings("model.range_factor=1e12"))
    refused(f"generation {before + 1}", to=before)
    (Path("data-2.csv")).write_text("a,b,y\n1,2,0\n")
    run("model.range_factor=1e12", "source.path=data*.csv")
    assert roll_back(STATE).generation == before + 1


def test_a_stranger_among_them_is_told_and_no_bug(learned):
    store().path(10**6).write_bytes(encode({}, {}))
    assert roll_back(STATE).before == 10**6


# --- the command ----------------------------------------------------------------------------------------------------


def call(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def test_the_command_says_what_comes_again(learned):
    before = store().generations()[-2]
    done = call("rollback", "state", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["generation"], found["records"] > 0) == (before, True)
    shown = call("rollback", "config.toml").stdout
    assert f"generation {before - 1}" in shown
    assert '"offset"' in shown
    assert "state/set-aside-" in shown


def test_the_commands_settings_may_be_flags(learned):
    shutil.move("state", "elsewhere")
    done = call("rollback", "config.toml", "--set", "checkpoint.dir=elsewhere")
    assert done.exit_code == 0, done.stderr
    assert call("rollback", "elsewhere", "--set", "checkpoint.dir=state").exit_code == 2
    assert call("rollback", "config.toml").exit_code == 4
