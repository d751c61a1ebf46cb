import json

import numpy as np
import pytest

import streammoe
from streammoe import MoERegressor
from streammoe.errors import CheckpointError, ConfigError
from streammoe.persistence import CheckpointStore, encode
from streammoe.persistence.format import _pack
from streammoe.scaleout.global_model import Contained, read, read_newest, save
from tests.unit.scaleout.shards import Daemon, damage

CONTAINED = Contained(generation=7, n=40, state_digest="0123456789abcdef" * 4, divergence=0.25)


@pytest.fixture(scope="module")
def model():
    model = MoERegressor(n_experts=2, warmup=0)
    X = np.random.default_rng(1).normal(size=(40, 2))
    model.learn_array(X, X[:, 0] - X[:, 1])
    return model


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path)


def put(store, model, *numbers):
    for version in numbers:
        save(store, model, {"shard-0": CONTAINED}, after=version - 1)


def test_what_is_written_is_read_also_by_load(store, model):
    assert read_newest(store) == (None, None)
    shards = {"shard-0": CONTAINED, "an other": CONTAINED.model_copy(update={"divergence": None, "n": 2})}
    saved = save(store, model, shards)
    found, problem = read_newest(store)
    assert (saved.version, saved.n) == (found.version, found.n) == (1, 42)
    assert (found.shards, problem) == (shards, None)
    assert found.model.state_digest() == streammoe.load(store.folder).state_digest() == model.state_digest()


def test_a_damaged_version_is_passed_over_and_said(store, model):
    put(store, model, 1, 2, 3)
    damage(store.path(3))
    found, problem = read_newest(store)
    assert found.version == 2
    assert problem.reason == "damaged"
    assert "checkpoint-000000000003.safetensors: damaged" in problem.text
    assert read_newest(store, after=2) == (None, problem)
    assert read_newest(store, after=1)[0].version == 2


def test_neither_a_later_format_nor_the_folder_of_a_daemon_is_gone_back_from(store, model):
    put(store, model, 1, 2)
    store.path(2).write_bytes(_pack({}, '{"format":2}'))
    found, problem = read_newest(store)
    assert (found, problem.reason) == (None, "unreadable")
    assert "format 2" in problem.text
    Daemon(store.folder, model).save()
    with pytest.raises(ConfigError, match="the checkpoint of a daemon; name a folder of its own"):
        read_newest(store)


SHARD = ("global", "shards", "shard-0")


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ((*SHARD, "n"), 1.5, "n: "),
        (("model", "arguments", "n_experts"), 3, "state"),
    ],
)
def test_everything_read_is_checked(store, model, path, value, words):
    put(store, model, 1)
    checkpoint = store.load(1)
    metadata = inner = json.loads(json.dumps(checkpoint.metadata))
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    store.path(1).write_bytes(encode(checkpoint.arrays, metadata))
    with pytest.raises(CheckpointError, match=words):
        read(store.path(1), 1, store.load(1))
