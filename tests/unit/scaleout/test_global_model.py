import json
from dataclasses import replace

import numpy as np
import pytest

import streammoe
from streammoe import MoERegressor
from streammoe.errors import CheckpointError
from streammoe.persistence import NewerCheckpointError, encode, read_checkpoint
from streammoe.persistence.format import _pack
from streammoe.scaleout.global_model import Contained, GlobalModel, path_of, read, read_newest, versions, write
from tests.unit.scaleout.shards import damage

CONTAINED = Contained(generation=7, n=40, state_digest="0123456789abcdef" * 4, divergence=0.25)


@pytest.fixture(scope="module")
def model():
    model = MoERegressor(n_experts=2, warmup=0)
    X = np.random.default_rng(1).normal(size=(40, 2))
    model.learn_array(X, X[:, 0] - X[:, 1])
    return model


def put(folder, model, *numbers):
    for version in numbers:
        write(folder, GlobalModel(version, model, {"shard-0": CONTAINED}))


def test_what_is_written_is_read_also_by_load(tmp_path, model):
    assert read_newest(tmp_path) == (None, "")
    shards = {"shard-0": CONTAINED, "an other": replace(CONTAINED, divergence=None, n=2)}
    write(tmp_path, GlobalModel(1, model, shards))
    found, problem = read_newest(tmp_path)
    assert (found.version, found.n, found.shards, problem) == (1, 42, shards, "")
    assert found.model.state_digest() == streammoe.load(path_of(tmp_path, 1)).state_digest() == model.state_digest()


def test_the_newest_versions_are_kept(tmp_path, model):
    put(tmp_path, model, 1, 2, 3, 4, 9)
    assert versions(tmp_path) == [3, 4, 9]
    assert read_newest(tmp_path, after=8)[0].version == 9
    assert read_newest(tmp_path, after=9) == (None, "")


def test_a_damaged_version_is_passed_over_and_said(tmp_path, model):
    put(tmp_path, model, 1, 2, 3)
    damage(path_of(tmp_path, 3))
    found, problem = read_newest(tmp_path)
    assert found.version == 2
    assert "global-000000000003.safetensors: damaged" in problem
    assert read_newest(tmp_path, after=2) == (None, problem)


def test_a_later_format_is_an_error(tmp_path, model):
    put(tmp_path, model, 1, 2)
    path_of(tmp_path, 2).write_bytes(_pack({}, '{"format":2}'))
    with pytest.raises(NewerCheckpointError, match="format 2"):
        read_newest(tmp_path)


SHARD = ("global", "shards", "shard-0")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("global",), None, "and must be a table"),
        (("global", "version"), 2, "its version is 2, but its name says 1"),
        (("global", "version"), "1", "its version is '1'"),
        (("global", "shards"), [], "must be a table"),
        (SHARD, 3, "must be a table"),
        ((*SHARD, "generation"), -1, "of shard 'shard-0' it says"),
        ((*SHARD, "n"), 1.5, "of shard 'shard-0' it says"),
        ((*SHARD, "state_digest"), 3, "of shard 'shard-0' it says"),
        ((*SHARD, "divergence"), "0.1", "of shard 'shard-0' it says"),
        (("model", "kind"), "os.system", "which streammoe.load does not know"),
        (("model", "arguments", "n_experts"), 3, "state"),
    ],
)
def test_everything_read_is_checked(tmp_path, model, path, value, words):
    put(tmp_path, model, 1)
    checkpoint = read_checkpoint(path_of(tmp_path, 1))
    metadata = inner = json.loads(json.dumps(checkpoint.metadata))
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    path_of(tmp_path, 1).write_bytes(encode(checkpoint.arrays, metadata))
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path, 1)
