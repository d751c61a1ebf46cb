import errno
import logging
import shutil

import pytest

from streammoe.persistence import CheckpointStore, store
from streammoe.persistence.format import _pack
from streammoe.scaleout import watcher
from streammoe.scaleout.global_model import read_newest
from streammoe.scaleout.shard import PROBLEMS
from streammoe.scaleout.shard_metrics import ReduceMetrics
from streammoe.scaleout.watcher import Watcher
from tests.unit.scaleout.shards import Daemon, Largest, damage, learned


@pytest.fixture
def world(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, logger="streammoe")
    world = World(tmp_path)
    monkeypatch.setattr(watcher, "reduce_with_details", world.reduction)
    return world


class World:
    """Shards north and south, of 30 and 20 events, and a watcher of them."""

    def __init__(self, folder):
        self.folder = folder
        self.daemons = {
            "north": Daemon(folder / "north", learned(1)),
            "south": Daemon(folder / "south", learned(2, n=20)),
        }
        for daemon in self.daemons.values():
            daemon.save()
        self.out = folder / "out"
        self.out.mkdir()
        self.store = CheckpointStore(self.out)
        self.reduction = Largest()
        self.restart()

    def restart(self, names=("north", "south")):
        """A new process with another watcher."""
        self.reduction.calls.clear()
        self.clock = Clock()
        self.metrics = ReduceMetrics(list(names), self.clock)
        folders = {name: self.folder / name for name in names}
        self.watcher = Watcher(folders, CheckpointStore(self.out), metrics=self.metrics)

    def round(self, outcome="written"):
        done = self.watcher.round()
        assert done.outcome == outcome, done
        return done

    def contained(self):
        """What the newest global model contains: generation and events of each shard."""
        return {name: (part.generation, part.n) for name, part in read_newest(self.store)[0].shards.items()}

    def sample(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"streammoe_{name}", labels)

    def problem(self, name):
        return [reason for reason in PROBLEMS if self.sample("shard_problem", shard=name, reason=reason)]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


# --- versions -------------------------------------------------------------------------------------------------------


def test_a_version_says_what_it_contains_of_each_shard(world):
    newest = world.round().newest
    assert (newest.version, newest.n) == (1, 50)
    assert world.reduction.calls == [([30, 20], [30.0, 20.0])]
    found, _ = read_newest(world.store)
    assert found.shards == newest.shards
    south = found.shards["south"]
    daemon = world.daemons["south"]
    assert (south.generation, south.n, south.divergence) == (1, 20, 0.5)
    assert south.state_digest == daemon.model.state_digest()
    assert found.model.state_digest() == world.daemons["north"].model.state_digest()


def test_there_is_a_new_version_only_when_a_shard_has_something_new(world):
    world.round()
    world.round("unchanged")
    world.daemons["south"].learn()
    assert world.round().newest.version == 2
    assert world.contained() == {"north": (1, 30), "south": (2, 21)}
    world.restart()
    assert world.round("unchanged").newest.version == 2
    world.daemons["south"].save()  # another generation of the same state
    world.round("unchanged")
    world.daemons["north"].learn()
    assert world.round().newest.version == 3
    assert len(world.reduction.calls) == 1
    world.restart(["south"])
    world.round()
    assert world.contained() == {"south": (3, 21)}


def test_a_number_is_not_used_again_whatever_became_of_its_file(world):
    world.round()
    world.daemons["north"].learn()
    world.round()
    damage(world.store.path(2))
    world.restart()
    assert world.round().newest.version == 3
    world.store.path(3).unlink()
    assert world.round().newest.version == 4  # though nothing was learned


# --- each event once ------------------------------------------------------------------------------------------------


def test_a_shard_counts_by_the_events_of_its_own_source(world):
    world.daemons["north"].n, world.daemons["south"].n = 7, 5
    for daemon in world.daemons.values():
        daemon.save()
    assert world.round().newest.n == 12
    assert world.reduction.calls == [([30, 20], [7.0, 5.0])]
    # Those that came with --from-model, 23 in north and 15 in south, count once.
    assert world.reduction.n == 12 + 23


# --- shards that do not count, or not yet ---------------------------------------------------------------------------


def save(world, **changed):
    for name, value in changed.items():
        setattr(world.daemons["north"], name, value)
    world.daemons["north"].path(1).unlink()
    world.daemons["north"].save()


LEFT_OUT = [
    (lambda world: save(world, model=learned(1, warmup=100)), "warming_up", "has learned 30 events"),
    (lambda world: save(world, n=0), "no_events", "has learned no event of its own source"),
    (lambda world: shutil.rmtree(world.folder / "north"), "empty", "there is no checkpoint in this folder"),
    (lambda world: damage(world.daemons["north"].path(1)), "damaged", "does not match its digest"),
    *(
        (lambda world, metadata=metadata: save(world, metadata=metadata), "damaged", "north")
        for metadata in (
            {"counters": {"outcomes": {"learned": -1}}},
            {"model": None},
        )
    ),
]
"""What may be wrong with a shard, as a reason and in words."""


@pytest.mark.parametrize(("spoil", "reason", "words"), LEFT_OUT)
def test_a_shard_that_does_not_count_is_left_out_and_said_once_until_it_does(world, spoil, reason, words, caplog):
    spoil(world)
    world.round()
    assert world.contained() == {"south": (1, 20)}
    assert world.problem("north") == [reason]
    world.round("unchanged")
    [line] = [record.getMessage() for record in caplog.records if "north is left out" in record.getMessage()]
    assert words in line
    assert "\n" not in line
    Daemon(world.folder / "north", learned(1)).save()
    world.round()
    assert world.problem("north") == []
    assert "north: its newest checkpoint counts again" in caplog.text


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"degree": 2}, "model.degree is 2, and 1 in the other shards"),
        (
            {"columns": ("a", "c")},
            "the list of its features is {'a': 'number', 'c': 'number'}, and {'a': 'number', 'b'",
        ),
    ],
)
def test_a_shard_of_another_schema_or_other_settings_is_left_out(world, caplog, other, words):
    # By most, whichever comes first.
    third = Daemon(world.folder / "third", learned(3, n=20))
    third.model.change("range_factor", 1e7)  # is not about the mixture, and may differ
    third.save()
    world.restart(["north", "south", "third"])
    world.daemons["north"].model = learned(1, **other)
    world.daemons["north"].save()
    world.round()
    assert world.contained() == {"south": (1, 20), "third": (1, 20)}
    assert world.problem("north") == ["different"]
    assert words in caplog.text


# --- what a shard contributed stays ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["damaged", "all damaged", "empty", "newer format"])
def test_a_shard_that_cannot_be_read_any_more_keeps_its_part(world, caplog, how):
    world.daemons["north"].learn()
    world.round()
    paths = [world.daemons["north"].path(generation) for generation in (1, 2)]
    for path in paths[how == "damaged" :]:
        if how == "empty":
            path.unlink()
        elif how == "newer format":
            path.write_bytes(_pack({}, '{"format":2}'))
        else:
            damage(path)
    world.daemons["south"].learn()
    world.round()
    assert world.contained() == {"north": (2, 31), "south": (2, 21)}
    assert world.problem("north") == [{"empty": "empty", "newer format": "unreadable"}.get(how, "damaged")]
    assert world.reduction.calls[-1] == ([31, 21], [31.0, 21.0])
    assert "north counts by an earlier checkpoint" in caplog.text


def test_a_copy_of_a_shard_counts_once(world, caplog):
    shutil.copytree(world.folder / "north", world.folder / "twin")
    world.restart(["north", "south", "twin"])
    world.round()
    assert (world.contained().keys(), world.problem("twin")) == ({"north", "south"}, ["overlapping"])
    assert "shard twin is left out" in caplog.text


def test_a_generation_that_was_written_again_after_a_rollback_is_another_one(world):
    world.daemons["north"].learn()
    world.round()
    world.daemons["north"].path(2).unlink()
    world.daemons["north"].model = learned(3)
    world.daemons["north"].learn()
    newest = world.round().newest
    assert newest.shards["north"].generation == 2
    assert newest.model.state_digest() == world.daemons["north"].model.state_digest()
    world.daemons["north"].path(2).unlink()
    world.round()
    assert world.contained()["north"] == (1, 30)


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_round_that_fails_leaves_the_newest_and_the_next_one_tries_again(world, monkeypatch, caplog):
    world.round()
    world.daemons["north"].learn()

    def full(path, *pieces):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as broken:
        broken.setattr(store, "replace", full)
        world.clock.now += 60
        for _ in range(2):
            done = world.round("failed")
            assert "no space left" in str(done.error)
            assert done.newest.version == 1
    assert caplog.text.count("no global model was written; the next round tries again") == 1
    assert world.sample("reduce_rounds_total", outcome="failed") == 2
    assert world.sample("reduce_checked_seconds") == 60
    assert world.round().newest.version == 2
    assert world.sample("reduce_checked_seconds") == 0
    assert "rounds succeed again" in caplog.text


def test_a_folder_that_cannot_be_read_at_the_start_is_tried_again(world):
    world.round()
    world.restart()
    world.out.rename(world.folder / "away")
    world.out.write_text("")
    assert "cannot be listed" in str(world.round("failed").error)
    world.out.unlink()
    (world.folder / "away").rename(world.out)
    assert world.round("unchanged").newest.version == 1


# --- metrics --------------------------------------------------------------------------------------------------------


def test_metrics_show_the_newest_global_model_and_each_shard(world):
    assert world.sample("reduce_rounds_total", outcome="written") == 0
    world.round()
    assert world.sample("reduce_version") == 1
    shown = [
        [world.sample(f"shard_{what}", shard=name) for name in ("north", "south")] for what in ("events", "divergence")
    ]
    assert shown == [[30, 20], [0.0, 0.5]]
    world.daemons["north"].model = learned(1, warmup=100)
    world.daemons["north"].save()
    world.round()
    assert world.sample("shard_events", shard="north") is None
    assert world.sample("shard_events", shard="south") == 20
