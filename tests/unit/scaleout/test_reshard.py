"""Partitions of stopped daemons, divided among another number of them: all of it or nothing, and never both."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe.assembly import open_daemon
from streammoe.commands import main
from streammoe.commands.inspect import describe_checkpoint
from streammoe.commands.rollback import roll_back
from streammoe.configuration import settings_from
from streammoe.daemon.model import schema_of
from streammoe.daemon.resume import check_checkpoint, is_blank, labels_of, resume_model
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.persistence import CheckpointStore, FolderLock, read_checkpoint, resharding, store
from streammoe.persistence.resharding import NAME, check_mark
from streammoe.pipeline.label_join import LabelJoin, Limits, digest_with, label_arrays
from streammoe.ports import chained
from streammoe.scaleout.commands.reshard import reshard
from streammoe.scaleout.shard import look
from tests.batches import batch_of
from tests.unit.connectors.kafka.test_resharding import position


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """One that a daemon has written."""
    folder = tmp_path_factory.mktemp("daemon")
    lines = [json.dumps({"a": a, "y": 2 * a}) + "\n" for a in np.linspace(-1, 1, 30).tolist()]
    (folder / "data.jsonl").write_text("".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streammoe.assembly.compile_kernels", lambda settings=None: None)
        with open_daemon(settings(folder)) as running, StopFlag() as stop:
            running.daemon.run(stop)
    return read_checkpoint(folder / "state")


def settings(folder, state="state", **more):
    tables = {
        "source": {"kind": "file", "path": str(folder / "data.jsonl")},
        "schema": {"target": "y"},
        "model": {"warmup": 20},
        "checkpoint": {"dir": str(folder / state)},
        "dead_letters": {"path": str(folder / "letters")},
        "metrics": {"enabled": False},
        **more,
    }
    return settings_from(tables, "test")


@pytest.fixture
def save(checkpoint, tmp_path):
    """Writes a checkpoint of a shard at a position, and returns its folder."""

    def written(name, at, arrays=checkpoint.arrays, **metadata):
        store = CheckpointStore(tmp_path / name)
        store.prepare()
        store.save(arrays, {**checkpoint.metadata, "positions": [at], **metadata})
        return tmp_path / name

    return written


@pytest.fixture
def two(save):
    """Folders of two shards."""
    return [save(f"of-2-{i}", position(f"{i}/2", {"t": {i: 5, i + 2: 7}})) for i in range(2)]


@pytest.fixture
def three(tmp_path):
    """Names of three folders."""
    return [tmp_path / "of-3" / str(i) for i in range(3)]


def may_start(folder):
    """Whether a daemon resumes there from a checkpoint."""
    try:
        check_mark(folder)
    except CheckpointError:
        return False
    return bool(CheckpointStore(folder).generations())


def positions(folders):
    return [read_checkpoint(folder).metadata["positions"][0]["topics"]["t"]["partitions"] for folder in folders]


EXPECTED = [{"0": 5, "3": 7}, {"1": 5}, {"2": 7}]


def test_new_shards_begin_empty_where_the_old_ones_end_whose_models_stay(two, three, tmp_path):
    before = [describe_checkpoint(folder)["state_digest"] for folder in two]
    assert reshard(two, three, dry_run=True).positions[1]["shard"] == "1/3"
    assert not three[0].exists()
    done = reshard(two, three)
    assert done.is_new
    assert positions(three) == EXPECTED
    assert [describe_checkpoint(folder)["state_digest"] for folder in two] == before
    assert [may_start(folder) for folder in [*two, *three]] == [False, False, True, True, True]
    for folder in three:
        begun = read_checkpoint(folder)
        check_checkpoint(settings(tmp_path, folder), begun)
        assert is_blank(begun)  # so that a daemon may begin with any settings, or a given model
        assert begun.metadata["state_digest"] == describe_checkpoint(folder)["state_digest"]
    # What merges models counts the old ones on, and the new ones once they have learned something.
    assert [look(folder).shard.n for folder in [*two, *three]] == [30, 30, 0, 0, 0]


def test_old_folders_are_neither_started_nor_rolled_back(two, three, tmp_path, save):
    save("of-2-0", position("0/2", {"t": {0: 5, 2: 8}}))  # a second generation
    reshard(two, three)
    for fresh in (False, True):
        with pytest.raises(CheckpointError), open_daemon(settings(tmp_path, "of-2-0"), fresh=fresh):
            pass
    with pytest.raises(CheckpointError):
        roll_back(two[0])


class Killed(BaseException):
    """Ends the process."""


STEPS = 3 + 3 + 2 + 3  # probes, marks of new and of old folders, checkpoints


@pytest.mark.parametrize("kind", [OSError, Killed])
@pytest.mark.parametrize("allowed", range(STEPS))
def test_after_an_end_at_any_step_old_and_new_never_both_start_and_the_same_again_completes_it(
    kind, allowed, two, three, monkeypatch
):
    write, steps = store.replace, []

    def failing(path, *data):
        steps.append(path)
        if len(steps) > allowed:
            raise kind(28, "No space left on device")
        write(path, *data)

    with monkeypatch.context() as patch:
        for place in (store, resharding):
            patch.setattr(place, "replace", failing)
        with pytest.raises((CheckpointError, Killed)):
            reshard(two, three)
    assert not (any(map(may_start, two)) and any(map(may_start, three)))
    at = 7
    if may_start(two[0]):  # one of the old ones goes on; the new ones have to begin where that ends
        at = 8
        kept = read_checkpoint(two[0])
        CheckpointStore(two[0]).save(
            kept.arrays, {**kept.metadata, "positions": [position("0/2", {"t": {0: 5, 2: at}})]}
        )
    assert reshard(two, three).is_new
    assert positions(three) == [EXPECTED[0], EXPECTED[1], {"2": at}]
    assert [may_start(folder) for folder in [*two, *three]] == [False, False, True, True, True]
    assert not reshard(two, three).is_new


def test_once_complete_the_same_again_changes_nothing_also_while_the_new_daemons_run(two, three):
    reshard(two, three)
    at = read_checkpoint(three[1])
    moved = at.metadata["positions"][0] | {"topics": {"t": {"id": "one", "partitions": {"1": 99}}}}
    CheckpointStore(three[1]).save(at.arrays, {**at.metadata, "positions": [moved]})
    with FolderLock(three[1]):
        done = reshard(two, three)
    assert (done.is_new, done.positions[1]) == (False, moved)
    assert positions(three)[1] == {"1": 99}
    # The last step is made again if its mark is gone.
    (two[1] / NAME).unlink()
    assert reshard(two, three).is_new
    assert not may_start(two[1])
    assert positions(three)[1] == {"1": 99}


def test_the_new_ones_can_be_divided_again(two, three, tmp_path):
    reshard(two, three)
    reshard(three, [tmp_path / "one"])
    assert positions([tmp_path / "one"]) == [{"0": 5, "1": 5, "2": 7, "3": 7}]
    assert [may_start(folder) for folder in [*two, *three, tmp_path / "one"]] == [False] * 5 + [True]


def test_what_cannot_be_divided_is_rejected_and_nothing_is_written(two, three, save, tmp_path):
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "dead-letters.jsonl").write_text("")
    file.write_text("")
    refused = {
        "no checkpoint": ([two[0], tmp_path / "nowhere"], three, CheckpointError),
        "a missing shard": (two[:1], three, SourceError),
        "twice the same": ([two[0], two[0]], three, ConfigError),
        "into itself": (two, [three[0], two[1]], ConfigError),
        "not empty": (two, [full], CheckpointError),
        "a file": (two, [file], CheckpointError),
        "has not begun": ([save("new", None)], three, CheckpointError),
        "several sources": ([save("chain", chained([None, position()]))], three, CheckpointError),
        "files": ([save("files", {"kind": "file", "files": []})], three, SourceError),
        "unknown": ([save("unknown", {"kind": "nothing"})], three, SourceError),
        "of no daemon": ([save("saved", position(), settings=None)], three, CheckpointError),
        "unseen predictions": ([save("unseen", position(), transactional=True)], three, CheckpointError),
    }
    for name, (left, follow, error) in refused.items():
        with pytest.raises(error):
            reshard(left, follow)
        assert not list(tmp_path.rglob(NAME)), name
        assert not three[0].parent.exists(), name
    with FolderLock(two[1]), pytest.raises(CheckpointError):  # its daemon runs
        reshard(two, three)
    assert not three[0].parent.exists()


# --- labels that come later -------------------------------------------------------------------------------------------


def location(partition, offset):
    return {"topic": "t", "partition": partition, "offset": offset}


def features(i):
    return {"id": f"k{i}", "a": i / 9}


@pytest.fixture
def waiting(save, checkpoint, tmp_path):
    """Folders of two shards in which features wait, of key i from partition i mod 4, in turn."""

    def made(**changed):
        labelled = settings(tmp_path, **LABELS)
        table = labelled.learning_settings()
        folders = []
        for shard in range(2):
            join = LabelJoin("id", schema_of(labelled), Limits(99))
            own = [i for i in range(12) if i % 2 == shard]
            records = batch_of([features(i) for i in own], "jsonl")
            times = None if shard else np.array(own, np.int64)  # the other one's have none
            locations = [location(i % 4, i) for i in own]
            join.join(replace(records, locations=locations, timestamps=times, keys=[b"%d" % i for i in own]))
            if shard:
                join.join(batch_of([{"a": 1.0, "y": 1.0}] * 20, "jsonl"))  # others come meanwhile
            at = position(f"{shard}/2", {"t": {shard: 9, shard + 2: 9}})
            given = {**table, **(changed if shard else {})}
            folders.append(save(f"labelled-{shard}", at, {**checkpoint.arrays, **join.arrays()}, settings=given))
        return folders

    return made


LABELS = {"labels": {"key": "id"}, "schema": {"target": "y", "ignore": ["id"]}}


@pytest.mark.parametrize("count", [1, 3])
def test_what_waits_for_its_label_waits_on_where_that_will_come(waiting, count, tmp_path):
    follow = [tmp_path / f"follow-{i}" for i in range(count)]
    left = waiting()
    reshard(left, follow)
    pending = 0
    for index, folder in enumerate(follow):
        begun = read_checkpoint(folder)
        labelled = settings(tmp_path, folder, **LABELS)
        model = resume_model(labelled, begun)
        join = labels_of(labelled, begun)
        pending += join.pending
        assert describe_checkpoint(folder)["state_digest"] == digest_with(model, join.arrays())
        for i in range(12):
            found = join.join(batch_of([{"id": f"k{i}", "y": 1.0}], "jsonl"))
            if i % 4 % count == index:
                assert json.loads(found.record(0)) == {**features(i), "y": 1.0}
                assert (found.location(0), found.keys[0]) == (location(i % 4, i), b"%d" % i)
            else:
                assert len(found) == 0
    assert pending == 12


def test_what_waits_expires_as_it_would_have(waiting, tmp_path):
    """The first shard had 6 records, the last of which waits for 0 more; the second 26."""
    folder = tmp_path / "one"
    reshard(waiting(), [folder])
    arrays = label_arrays(read_checkpoint(folder).arrays)
    seen, now = arrays["labels.clock"].tolist()
    places = json.loads(arrays["labels.places"].tobytes())
    ages = {place["offset"]: seen - number for place, number in zip(places, arrays["labels.numbers"], strict=True)}
    assert ages == {i: 5 - i // 2 + (20 if i % 2 else 0) for i in range(12)}
    assert list(ages.values()) == sorted(ages.values(), reverse=True)  # the oldest first
    times = dict(zip([place["offset"] for place in places], arrays["labels.times"].tolist(), strict=True))
    assert (now, times) == (10, {i: 10 if i % 2 else i for i in range(12)})


def test_waiting_records_that_cannot_go_on_together_are_rejected(waiting, tmp_path):
    follow = [tmp_path / "one"]
    with pytest.raises(CheckpointError):
        reshard(waiting(labels={"key": "other"}), follow)
    left = waiting()
    for folder in left:
        held = read_checkpoint(folder)
        records = held.arrays["labels.records"].tobytes().replace(b"k11", b"k10")
        CheckpointStore(folder).save({**held.arrays, "labels.records": np.frombuffer(records, np.uint8)}, held.metadata)
    with pytest.raises(CheckpointError):
        reshard(left, follow)
    assert not follow[0].exists()


def test_another_division_of_what_was_divided_is_rejected(two, three, tmp_path):
    reshard(two, three)
    for left, follow in ((two, [tmp_path / "other"]), (two[::-1], three), (two, three[::-1])):
        with pytest.raises(CheckpointError):
            reshard(left, follow)
    # Also where one was started by force: what follows has begun at other positions.
    for folder in two:
        (folder / NAME).unlink()
    kept = read_checkpoint(two[0])
    CheckpointStore(two[0]).save(kept.arrays, {**kept.metadata, "positions": [position("0/2", {"t": {0: 9}})]})
    with pytest.raises(CheckpointError):
        reshard(two, three)


def test_a_folder_is_known_by_its_mark_where_ever_it_is_moved(two, three, tmp_path):
    reshard(two, three)
    for folder, expected in ((two[0], False), (three[0], True)):
        moved = shutil.move(folder, tmp_path / f"moved-{folder.name}")
        assert may_start(moved) is expected


def call(*arguments):
    done = CliRunner().invoke(main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.usefixtures("logging_as_before")
def test_the_command_prints_shards_or_json(two, three):
    arguments = ["reshard", *map(str, two), *(part for folder in three for part in ("--into", str(folder)))]
    assert "nothing was written" in call(*arguments, "--dry-run").stdout
    assert "shard 2/3" in call(*arguments).stdout
    found = json.loads(call(*arguments, "--json").stdout)
    assert (found["is_new"], len(found["positions"])) == (False, 3)
