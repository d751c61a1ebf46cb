import json
from dataclasses import replace

import fsspec
import numpy as np
import pytest

import streammoe
from streammoe import MoERegressor
from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.persistence import NewerCheckpointError, decode, encode
from streammoe.persistence.format import _pack
from streammoe.scaleout.global_model import Contained, GlobalModel, file_name, read, read_newest, versions, write
from streammoe.scaleout.places import MissingFileError, place_of

POSITION = {"kind": "kafka", "partitions": [["topic", 0, 17]]}
CONTAINED = Contained(
    generation=7,
    n=40,
    positions=[POSITION],
    state_digest="0123456789abcdef" * 4,
    weight=40.0,
    share=1.0,
    divergence=0.25,
)


@pytest.fixture(scope="module")
def model():
    model = MoERegressor(n_experts=2, warmup=0)
    X = np.random.default_rng(1).normal(size=(40, 2))
    model.learn_array(X, X[:, 0] - X[:, 1])
    return model


@pytest.fixture(params=["folder", "memory"])
def place(request, tmp_path):
    yield place_of(tmp_path / "out" if request.param == "folder" else "memory://out", "--out")
    fsspec.filesystem("memory").store.clear()


def put(place, model, *numbers, keep=3):
    for version in numbers:
        write(place, GlobalModel(version, model, {"shard-0": CONTAINED}), keep)


def damage(place, version):
    content = place.read(file_name(version))
    place.write(file_name(version), content[:-1] + bytes([content[-1] ^ 1]))


def test_what_is_written_is_read(place, model):
    assert read_newest(place) is None
    other = replace(CONTAINED, positions=[None], divergence=None, n=2)
    write(place, GlobalModel(1, model, {"shard-0": CONTAINED, "an other": other}))
    found = read_newest(place)
    assert (found.version, found.n) == (1, 42)
    assert found.shards == {"shard-0": CONTAINED, "an other": other}
    assert found.model.state_digest() == model.state_digest()


def test_it_is_a_checkpoint_that_load_reads(tmp_path, model):
    put(place_of(tmp_path, "--out"), model, 1)
    assert streammoe.load(tmp_path / file_name(1)).state_digest() == model.state_digest()


def test_the_newest_versions_are_kept_and_none_is_written_again(place, model):
    put(place, model, 1, 2, 3, 4, 9)
    assert versions(place) == [3, 4, 9]
    assert read_newest(place, after=8).version == 9
    assert read_newest(place, after=9) is None
    for version in (8, 9):
        with pytest.raises(CheckpointError, match=f"holds version 9 .* version {version} cannot be written"):
            put(place, model, version)
    damage(place, 9)
    with pytest.raises(CheckpointError, match="only one process"):
        put(place, model, 9)


def test_a_damaged_version_is_passed_over_with_a_warning(place, model, caplog):
    put(place, model, 1, 2, 3)
    damage(place, 3)
    assert read_newest(place).version == 2
    assert "version 3 is passed over" in caplog.text
    assert "damaged" in caplog.text
    seen = []
    assert read_newest(place, after=2, on_damage=lambda version, error: seen.append((version, str(error)))) is None
    [(version, words)] = seen
    assert version == 3
    assert "damaged" in words


def test_a_version_that_goes_between_listing_and_reading_is_no_problem(place, model, monkeypatch, caplog):
    put(place, model, 1, 2)
    reading = type(place).read

    def after_a_while(self, name):
        if name == file_name(2):
            self.delete(name)
        return reading(self, name)

    monkeypatch.setattr(type(place), "read", after_a_while)
    assert read_newest(place).version == 1
    assert not caplog.records
    with pytest.raises(MissingFileError):
        read(place, 2)


def test_what_is_unreadable_for_now_is_not_passed_over(place, model, monkeypatch):
    put(place, model, 1, 2)

    def fail(self, name):
        raise RetriableCheckpointError("for now")

    monkeypatch.setattr(type(place), "read", fail)
    with pytest.raises(RetriableCheckpointError, match="for now"):
        read_newest(place)


def changed(place, change):
    """Replace version 1 by a sound file whose metadata are others."""
    checkpoint = decode(place.read(file_name(1)), "here")
    metadata = json.loads(json.dumps(checkpoint.metadata))
    change(metadata)
    place.write(file_name(1), encode(checkpoint.arrays, metadata))


def test_a_later_format_is_an_error(place, model):
    put(place, model, 1, 2)
    place.write(file_name(2), _pack({}, '{"format":2}'))
    with pytest.raises(NewerCheckpointError, match="format 2"):
        read_newest(place)


SHARD = ("global", "shards", "shard-0")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("global",), None, "and must be a table"),
        (("global", "version"), 2, "its version is 2, but its name says 1"),
        (("global", "version"), "1", "its version is '1'"),
        (("global", "shards"), {}, "contains 0 shards"),
        (("global", "shards"), [], "must be a table"),
        (("global", "shards", "a/b"), {}, "'a/b' is not a shard's name"),
        (SHARD, 3, "must be a table"),
        ((*SHARD, "generation"), -1, "generation of shard 'shard-0' is -1"),
        ((*SHARD, "n"), 1.5, "n of shard 'shard-0' is 1.5"),
        ((*SHARD, "positions"), {"kind": "kafka"}, "not a list of positions"),
        ((*SHARD, "positions"), ["x"], "not a list of positions"),
        ((*SHARD, "state_digest"), "0" * 63, "state_digest of shard"),
        ((*SHARD, "weight"), -1.0, "weight of shard"),
        ((*SHARD, "share"), 1.5, "share of shard"),
        ((*SHARD, "share"), True, "share of shard"),
        ((*SHARD, "divergence"), "0.1", "divergence of shard"),
        (("model", "kind"), "os.system", "which streammoe.load does not know"),
        (("model", "arguments", "n_experts"), 10**9, "n_experts"),
        (("model", "arguments", "n_experts"), 3, "state"),
    ],
)
def test_everything_read_is_checked(tmp_path, model, path, value, words):
    place = place_of(tmp_path, "--out")
    put(place, model, 1)

    def change(metadata):
        for key in path[:-1]:
            metadata = metadata[key]
        metadata[path[-1]] = value

    changed(place, change)
    with pytest.raises(CheckpointError, match=words):
        read(place, 1)


def test_entries_of_a_later_version_are_ignored_and_missing_ones_are_not(tmp_path, model):
    place = place_of(tmp_path, "--out")
    put(place, model, 1)
    changed(place, lambda metadata: metadata["global"]["shards"]["shard-0"].update(later=1))
    assert read(place, 1).shards == {"shard-0": CONTAINED}
    changed(place, lambda metadata: metadata["global"]["shards"]["shard-0"].pop("n"))
    with pytest.raises(CheckpointError, match="n of shard 'shard-0' is None"):
        read(place, 1)
    changed(place, lambda metadata: metadata.pop("global"))
    with pytest.raises(CheckpointError, match="not a global one"):
        read(place, 1)
