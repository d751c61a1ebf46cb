"""A daemon that begins with a model that was fitted elsewhere."""

from pathlib import Path

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, assembly, load, schedules
from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.persistence import CheckpointStore

FIRST = 300
EVENTS = 600
MODEL = Path("model.safetensors")
STATE = Path("state")
RNG = np.random.default_rng(8)
X = RNG.normal(size=(EVENTS, 2)).round(4)
Y = np.where(X[:, 0] > 0, 2 * X[:, 0], X[:, 1]).round(4)


class Asked:
    requested = False


class Never(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    write("all.csv", range(EVENTS))
    write("data.csv", range(FIRST, EVENTS))
    Path("config.toml").write_text("""
        source = { kind = "file", path = "data.csv", block_bytes = 4096 }
        schema = { target = "y", features = ["a", "b"] }
        model = { n_experts = 2, warmup = 100, warmup_restarts = 1 }
        metrics.enabled = false
    """)


def write(name, which):
    Path(name).write_text("a,b,y\n" + "".join(f"{X[i, 0]},{X[i, 1]},{Y[i]}\n" for i in which))


def run(*flags, **options):
    with open_daemon(load_settings("config.toml", overrides=flags, environment={}), **options) as running:
        return running.daemon.run(Asked())


def fitted(kind=MoERegressor, n=FIRST, targets=None, names=("a", "b"), **arguments):
    model = kind(**{"n_experts": 2, "warmup": 100, "warmup_restarts": 1, "standardize": True, **arguments})
    model.learn_array(X[:n], Y[:n] if targets is None else targets[:n], feature_names=names)
    model.save(MODEL)
    return model


def outputs(*names):
    model = MoEMultiTargetRegressor(n_experts=2, warmup=100, warmup_restarts=1, standardize=True)
    for x, y in zip(X[:FIRST], Y[:FIRST], strict=True):
        model.learn_one({"a": x[0], "b": x[1]}, dict(zip(names, (y, -y), strict=True)))
    model.save(MODEL)
    return model


# --- what it does ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [50, FIRST], ids=["warming up", "learned"])
def test_it_learns_on_as_if_it_had_learned_all_of_it_itself(n):
    fitted(n=n)
    write("data.csv", range(n, EVENTS))
    found = run(from_model=MODEL)
    whole = run("source.path=all.csv", "checkpoint.dir=whole")
    assert found.state_digest == whole.state_digest
    assert (found.learned, found.model_events) == (EVENTS - n, EVENTS)
    assert describe_checkpoint(STATE)["n"] == whole.model_events == whole.learned == EVENTS


def test_the_model_is_kept_before_anything_is_read(monkeypatch):
    """A crash before the first checkpoint that is due must not begin with an empty model, should the file be gone."""
    fitted()
    whole = run("checkpoint.dir=calm", from_model=MODEL)

    def killed(*_):
        raise Never

    with monkeypatch.context() as patch:
        patch.setattr("streammoe.pipeline.pipeline.Pipeline.process", killed)
        with pytest.raises(Never):
            run(from_model=MODEL)
    MODEL.unlink()
    assert describe_checkpoint(STATE)["positions"] == [None]
    found = run()
    assert (found.state_digest, found.learned) == (whole.state_digest, EVENTS - FIRST)


def test_of_a_followed_file_the_first_batch_is_still_kept_at_once():
    """The first checkpoint knows no file yet; the one after the first batch must not wait until it is due."""
    fitted()

    class FirstBatch:
        left = 1

        @property
        def requested(self):
            self.left -= 1
            if self.left < -2:
                raise Never  # before the loop ends by itself
            return False

    followed = load_settings("config.toml", overrides=["source.follow=true"], environment={})
    with pytest.raises(Never), open_daemon(followed, from_model=MODEL) as running:
        running.daemon.run(FirstBatch())
    assert CheckpointStore(STATE).latest()[1].metadata["positions"][0] is not None


def test_where_there_are_checkpoints_it_is_an_error_that_changes_nothing_unless_begun_afresh():
    fitted()
    before = run(from_model=MODEL)
    with pytest.raises(ConfigError):
        run(from_model=MODEL)
    assert run().state_digest == before.state_digest
    found = run(fresh=True, from_model=MODEL)
    assert describe_checkpoint(STATE)["n"] == FIRST + found.learned


def test_a_daemons_folder_lends_its_model_and_nothing_else():
    run()
    kept = load(STATE)
    found = run("checkpoint.dir=other", from_model=STATE)
    assert (found.learned, describe_checkpoint("other")["n"]) == (EVENTS - FIRST, kept.n + EVENTS - FIRST)


def test_what_judges_events_is_that_of_the_settings_and_so_is_a_warm_up_that_is_over():
    fitted(range_factor=1e3, reseed="auto", warmup=90, warmup_restarts=2)
    run("model.range_factor=1e9", from_model=MODEL)
    assert (load(STATE).range_factor, load(STATE).reseed) == (1e9, "off")


def test_classes_and_several_outputs():
    labels = np.where(Y > 0, "up", "down")
    fitted(MoEClassifier, targets=labels)
    Path("data.csv").write_text(
        "a,b,y\n" + "".join(f"{x[0]},{x[1]},{label}\n" for x, label in zip(X, labels, strict=True))
    )
    assert run("model.kind=classifier", "checkpoint.dir=classes", from_model=MODEL).scores["accuracy"] > 0.8
    model = outputs("y", "z")
    Path("data.csv").write_text("a,b,y,z\n" + "".join(f"{x[0]},{x[1]},{y},{-y}\n" for x, y in zip(X, Y, strict=True)))
    run("schema.target=['y', 'z']", "checkpoint.dir=outputs", from_model=MODEL)
    assert describe_checkpoint("outputs")["n"] == model.n + EVENTS


# --- what it rejects ------------------------------------------------------------------------------------------------


def rejected(*differences, flags=()):
    """Each of these must be named."""
    with pytest.raises(CheckpointError) as error:
        run(*flags, from_model=MODEL)
    for difference in differences:
        assert difference in str(error.value)
    assert CheckpointStore(STATE).generations() == []


def test_everything_that_differs_is_told_at_once():
    fitted(n=50, n_experts=3, standardize=False, schedule=schedules.constant(0.1), averaging=None, warmup=90)
    rejected("model.n_experts", "model.standardize", "model.schedule", "model.averaging", "model.warmup")


def test_a_model_of_another_kind_or_with_other_features_classes_or_outputs():
    fitted(MoEClassifier, targets=(Y > 0).astype(int))
    rejected("MoEClassifier", "MoERegressor")
    rejected("its classes are [", flags=["model.kind=classifier"])
    fitted(names=("a", "c"))
    rejected("schema.features")
    rejected("its features hold 'c'", flags=["schema.features=*", "schema.ignore=['c']"])
    fitted(names=(0, 1))
    rejected("its features are [0, 1]")
    fitted(categorical=("a",))
    rejected("schema.categorical")
    outputs("y", "q")
    rejected("schema.target", flags=["schema.target=['y', 'z']"])
    MoERegressor(2, warmup=100, warmup_restarts=1, standardize=True).save(MODEL)
    rejected("it has learned nothing")


def test_records_with_none_of_its_features_are_not_learned_as_if_all_were_missing():
    fitted()
    Path("data.csv").write_text("p,q,y\n1,2,3\n" * 2)
    for model in (MODEL, None):  # also once the model is in a checkpoint
        with pytest.raises(ConfigError):
            run("schema.features=*", from_model=model)
    assert describe_checkpoint(STATE)["n"] == FIRST
    Path("data.csv").write_text("a,q,y\n1,2\n1,2,3\n")  # the first one is no record
    assert run("schema.features=*").learned == 1


def test_no_model_and_a_start_that_fails_leave_nothing_behind():
    for content in (None, b"", b"torn"):
        if content is not None:
            MODEL.write_bytes(content)
        rejected()
    fitted()
    with pytest.raises(SourceError):
        run("source.path=nowhere.csv", from_model=MODEL)
    assert CheckpointStore(STATE).generations() == []
