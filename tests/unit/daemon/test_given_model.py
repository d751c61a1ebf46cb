"""A daemon that starts with a model that was fitted elsewhere."""

from pathlib import Path

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.commands.inspect import describe_checkpoint
from streammoe.errors import CheckpointError, ConfigError
from tests.unit import daemons
from tests.unit.daemons import run, store, write_csv

FIRST = 150
EVENTS = 300
MODEL = Path("model.safetensors")
STATE = Path("state")
X = np.random.default_rng(8).normal(size=(EVENTS, 2)).round(4)
Y = np.where(X[:, 0] > 0, 2 * X[:, 0], X[:, 1]).round(4)
COMMON = {"n_experts": 2, "warmup": 100, "standardize": True}


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "file", path = "data.csv", block_bytes = 4096 }
        schema = { target = "y", features = ["a", "b"] }
        model = { n_experts = 2, warmup = 100 }
        metrics.enabled = false
        """,
    )
    write("all.csv", 0)
    write("data.csv", FIRST)


def write(name, first, *targets, header="a,b,y"):
    write_csv(name, np.column_stack([X, *(targets or [Y])])[first:], header)


def fitted(kind=MoERegressor, n=FIRST, targets=Y, names=("a", "b"), **arguments):
    model = kind(**{**COMMON, **arguments})
    model.learn_array(X[:n], targets[:n], feature_names=names)
    model.save(MODEL)
    return model


def fitted_outputs(*names):
    model = MoEMultiTargetRegressor(**COMMON)
    for x, y in zip(X[:FIRST], Y[:FIRST], strict=True):
        model.learn_one({"a": x[0], "b": x[1]}, dict(zip(names, (y, -y), strict=True)))
    model.save(MODEL)
    return model


# --- what it does ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [50, FIRST], ids=["warming up", "learned"])
def test_it_learns_on_as_if_it_had_learned_all_of_it_itself(n):
    fitted(n=n)
    write("data.csv", n)
    found = run(from_model=MODEL)
    whole = run("source.path=all.csv", "checkpoint.dir=whole")
    assert found.state_digest == whole.state_digest
    assert (found.learned, found.model_events) == (EVENTS - n, EVENTS)
    assert describe_checkpoint(STATE)["n"] == whole.model_events == whole.learned == EVENTS
    other = run("checkpoint.dir=other", from_model=STATE)
    assert (other.learned, describe_checkpoint("other")["n"]) == (EVENTS - n, 2 * EVENTS - n), (
        "a folder lends its model"
    )


def test_the_model_is_kept_before_anything_is_read(monkeypatch):
    """A crash before the first checkpoint that is due must not begin with an empty model, should the file be gone."""
    fitted()
    whole = run("checkpoint.dir=calm", from_model=MODEL)

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("streammoe.pipeline.pipeline.Pipeline.process", killed)
        with pytest.raises(Killed):
            run(from_model=MODEL)
    MODEL.unlink()
    assert describe_checkpoint(STATE)["positions"] == [None]
    found = run()
    assert (found.state_digest, found.learned) == (whole.state_digest, EVENTS - FIRST)


def test_where_there_are_checkpoints_it_is_an_error_that_changes_nothing_except_for_a_fresh_start():
    fitted()
    before = run(from_model=MODEL)
    with pytest.raises(ConfigError):
        run(from_model=MODEL)
    assert run().state_digest == before.state_digest
    found = run(fresh=True, from_model=MODEL)
    assert describe_checkpoint(STATE)["n"] == FIRST + found.learned


# --- what it rejects ------------------------------------------------------------------------------------------------


def assert_rejected(*differences, flags=()):
    """Check that the start is rejected with an error that names each of these."""
    with pytest.raises(CheckpointError) as rejected:
        run(*flags, from_model=MODEL)
    for difference in differences:
        assert difference in str(rejected.value)
    assert store().generations() == []


def test_everything_that_differs_is_named_at_once():
    fitted(n=50, n_experts=3, standardize=False, schedule=schedules.Constant(0.1), averaging=None, warmup=90)
    assert_rejected("model.n_experts", "model.standardize", "model.schedule", "model.averaging", "model.warmup")


def test_a_model_of_another_kind_or_with_other_features_classes_or_outputs():
    fitted(MoEClassifier, targets=(Y > 0).astype(int))
    assert_rejected("MoEClassifier", "MoERegressor")
    assert_rejected("its classes are [", flags=["model.kind=classifier"])
    fitted(names=("a", "c"))
    assert_rejected("schema.features")
    assert_rejected("its features include 'c'", flags=["schema.features=*", "schema.ignore=['c']"])
    fitted(names=(0, 1))
    assert_rejected("its features are [0, 1]")
    fitted(categorical=("a",))
    assert_rejected("schema.categorical")
    fitted_outputs("y", "q")
    assert_rejected("schema.target", flags=["schema.target=['y', 'z']"])
    MoERegressor(**COMMON).save(MODEL)
    assert_rejected("no features")


def test_records_with_none_of_its_features_are_not_learned_as_if_all_were_missing():
    fitted()
    write_csv("data.csv", [(1, 2, 3)] * 2, header="p,q,y")
    for model in (MODEL, None):  # also once the model is in a checkpoint
        with pytest.raises(ConfigError):
            run("schema.features=*", from_model=model)
    assert describe_checkpoint(STATE)["n"] == FIRST
    write_csv("data.csv", [(1, 2), (1, 2, 3)], header="a,q,y")  # the first one is no record
    assert run("schema.features=*").learned == 1
