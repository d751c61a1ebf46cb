"""How settings become a daemon, and when they do not."""

import inspect
import json
import logging
import socket

import pytest
from pyarrow import parquet

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe.daemon import model
from streammoe.daemon.model import schema_of
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.persistence import CheckpointStore, FolderLock
from streammoe.settings import Model, Schema


class Asked:
    requested = False


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    rows = "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(200))
    (tmp_path / "data.csv").write_text(f"a,b,y\n{rows}")
    (tmp_path / "config.toml").write_text("""
        source = { kind = "file", path = "data.csv" }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50, warmup_restarts = 1 }
        metrics.enabled = false
    """)
    return tmp_path


TWICE = {
    "dead_letters.path": [
        ["dead_letters.path=state/lock"],
        ["dead_letters.path=state/checkpoint-000000000001.safetensors"],
        ["dead_letters.path=config.toml"],
        ["dead_letters.path=data.csv"],
        ["dead_letters.path=data.csv", "source.path=d*.csv"],
    ],
    "predictions.path": [
        ["predictions.kind=file", "predictions.path=data.csv", "predictions.format=jsonl", "source.path=*"],
        ["predictions.kind=file", "predictions.path=one.jsonl", "dead_letters.path=./one.jsonl"],
    ],
}
"""Settings by which one file would be two things."""


def test_no_file_is_written_as_two_things_or_read_and_written(here):
    for named, cases in TWICE.items():
        for flags in cases:
            with pytest.raises(ConfigError) as refused:
                settings(*flags)
            assert [problem.partition(":")[0] for problem in refused.value.problems] == [named], flags


def settings(*flags):
    return load_settings("config.toml", overrides=flags, environment={})


def run(*flags, **options):
    with open_daemon(settings(*flags), **options) as running:
        return running.daemon.run(Asked()), running


# --- settings to model ----------------------------------------------------------------------------------------------


def test_every_setting_of_the_model_is_an_argument_of_the_estimator():
    arguments = {
        name
        for kind in (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)
        for name in inspect.signature(kind).parameters
    }
    assert set(Model.model_fields) - {"kind"} == arguments - {"categorical", "timestamps"}
    assert arguments & {"categorical", "timestamps"} <= set(Schema.model_fields)


def test_settings_reach_the_model(here):
    flags = ["model.n_experts=3", "model.degree=2", "model.averaging=none", "model.seed=5", "model.range_factor=10.0"]
    with open_daemon(settings(*flags, "model.schedule={kind='constant', gamma=0.03}")) as running:
        model = running.daemon.model
    assert (model.n_experts, model.degree, model.averaging, model.seed, model.range_factor) == (3, 2, None, 5, 10.0)
    assert model.step_size == 0.03
    assert model.standardize


@pytest.mark.parametrize(("averaging", "warns"), [("polyak", True), ("none", False)])
def test_averages_over_times_are_warned_of(here, caplog, averaging, warns):
    run("schema.timestamps=['a']", f"model.averaging={averaging}")
    assert any(record.levelname == "WARNING" for record in caplog.records) is warns


CLASSES = ("model.kind=classifier", "schema.target=y")
OUTPUTS = ("schema.target=['y', 'b']",)


def test_kind_and_targets_choose_the_estimator(here):
    kinds = {(): MoERegressor, OUTPUTS: MoEMultiTargetRegressor, CLASSES: MoEClassifier}
    for flags, kind in kinds.items():
        with open_daemon(settings(*flags)) as running:
            assert type(running.daemon.model) is kind


def test_settings_reach_a_classifier(here):
    flags = ["model.classes=[0, '1', 2]", "model.max_levels=3", "schema.categorical=['a']", "schema.timestamps=['b']"]
    with open_daemon(settings(*CLASSES, *flags)) as running:
        model = running.daemon.model
    assert model.class_labels == ["0", "1", "2"]
    assert (model.max_levels, tuple(model.categorical), tuple(model.timestamps)) == (3, ("a",), ("b",))
    assert model.bound == "adaptive"
    summary, _ = run(*CLASSES, *flags)
    assert summary.learned == 200
    assert summary.scores.keys() == {"accuracy", "log_loss", "baseline_accuracy"}
    found = describe_checkpoint("state")
    assert found["outputs"] == ["0", "1", "2"]
    assert [name for name in found["features"] if name.startswith("a=")] == ["a=0", "a=1", "a=2"]


def test_settings_reach_several_outputs(here):
    with open_daemon(settings(*OUTPUTS, "model.covariance=full")) as running:
        model = running.daemon.model
    assert (model.covariance, model.output_names) == ("full", ["y", "b"])
    summary, _ = run(*OUTPUTS)
    assert summary.scores.keys() == {"rmse", "log_loss", "baseline_rmse"}
    assert describe_checkpoint("state")["features"] == ["a"]


def test_settings_reach_the_noise(here):
    flags = [*OUTPUTS, "model.expert=student_t", "model.degrees_of_freedom=6.0"]
    summary, running = run(*flags)
    model = running.daemon.model
    assert (model.expert, model.degrees_of_freedom) == ("student_t", 6.0)
    assert summary.learned == 200


def test_kernels_of_heavy_tails_are_compiled_before_events(here):
    assert model._kind(settings("model.expert=student_t")) == "heavy-tailed"
    assert model._kind(settings(*OUTPUTS, "model.expert=student_t")) == "heavy-tailed outputs"
    assert model._kind(settings("model.expert=laplace")) == "heavy-tailed"


def test_a_column_of_weights_is_no_feature(here):
    summary, _ = run("schema.weight=a")
    assert describe_checkpoint("state")["features"] == ["b"]
    # a is 0 in every seventh row.
    assert (summary.learned, summary.predicted_only) == (171, 29)


@pytest.mark.parametrize(("late", "features"), [("false", ["a", "b"]), ("true", ["a", "b", "late"])])
def test_late_columns_are_taken_up_only_if_the_settings_say_so(here, late, features):
    (here / "more.csv").write_text("a,b,late,y\n" + "1,2,3,4\n" * 10)
    run("source.path=*.csv", f"schema.late_columns={late}")
    assert describe_checkpoint("state")["features"] == features


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_predictions_are_written_where_the_settings_say(here, name):
    run("predictions.kind=file", f"predictions.path=out/{name}")
    (part,) = (here / "out").iterdir()
    if part.suffix == ".jsonl":
        rows = [json.loads(line) for line in part.read_text().splitlines()]
    else:
        rows = parquet.read_table(part).to_pylist()
    assert [row["model_version"] for row in rows] == list(range(200))
    assert rows[0].keys() == {"place", "model_version", "prediction", "interval", "target", "loss", "gate"}


def test_classes_and_scores_go_on_from_a_checkpoint(here):
    rows = "".join(f"{i % 7},{i % 5},{'abc'[i % 3 if i > 120 else i % 2]}\n" for i in range(3000))
    (here / "data.csv").write_text(f"a,b,y\n{rows}")
    whole, _ = run(*CLASSES, "checkpoint.dir=whole")
    stopped = ("checkpoint.every_events=1", "source.block_bytes=4096", "predictions.kind=file")
    rows = "predictions.path=rows.jsonl"
    for polls in (1, 2, 10**9):
        stop = Stopping(polls)
        with open_daemon(settings(*CLASSES, *stopped, rows)) as running:
            found = running.daemon.run(stop)
    assert found.state_digest == whole.state_digest
    assert found.scores == pytest.approx(whole.scores, rel=1e-9)
    versions = [json.loads(line)["model_version"] for line in (here / "rows.jsonl").read_text().splitlines()]
    assert versions == list(range(3000))


class Stopping:
    """Asks to stop after so many batches."""

    def __init__(self, batches):
        self.left = batches

    @property
    def requested(self):
        self.left -= 1
        return self.left < 0


# --- opening and closing --------------------------------------------------------------------------------------------


def test_where_the_metrics_are(here):
    assert run()[1].metrics_url is None
    with open_daemon(settings("metrics.enabled=true", "metrics.port=0")) as running:
        assert running.metrics_url.startswith("http://127.0.0.1:")


def test_the_progress_is_told(here):
    told = []
    run(on_batch=told.append)
    size = (here / "data.csv").stat().st_size
    assert (told[0], told[-1]) == ((0, size), (size, size))


def test_the_folder_is_locked_while_it_runs_and_free_afterwards(here):
    with open_daemon(settings()), pytest.raises(CheckpointError):
        FolderLock("state")
    FolderLock("state").close()


@pytest.mark.parametrize(
    ("flag", "error"),
    [
        ("source.path=nowhere.csv", SourceError),
        ("dead_letters.path=data.csv/x", ConfigError),
        ("metrics.host=192.0.2.1", ConfigError),
    ],
)
def test_what_cannot_be_opened_leaves_nothing_open_and_checkpoints_in_place(here, flag, error):
    served = ("metrics.enabled=true", "metrics.port=0")
    with pytest.raises(error):
        run(*served, flag)
    assert CheckpointStore("state").generations() == []
    first, _ = run(*served)
    with pytest.raises(error):
        run(*served, flag, fresh=True)
    assert describe_checkpoint("state")["state_digest"] == first.state_digest


def test_a_failure_afterwards_closes_the_port_and_the_lock(here):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("metrics.enabled=true", f"metrics.port={port}")
    with pytest.raises(ZeroDivisionError), open_daemon(settings(*flags)):
        raise ZeroDivisionError
    assert run(*flags)[0].learned == 200


# --- taking up a checkpoint -----------------------------------------------------------------------------------------


def test_a_restart_says_where_it_goes_on(here, caplog):
    assert run()[1].resumed_at == 0
    with caplog.at_level(logging.INFO):
        assert run()[1].resumed_at == 200
    assert " 200 events" in caplog.text


def test_a_fresh_start_sets_the_checkpoints_there_are_aside(here):
    first, _ = run()
    second, running = run(fresh=True)
    assert running.resumed_at == 0
    assert (second.learned, second.state_digest) == (200, first.state_digest)
    (aside,) = (here / "state").glob("set-aside-*")
    assert describe_checkpoint(aside)["state_digest"] == first.state_digest


def test_all_other_settings_may_change(here):
    run()
    again, running = run(
        "checkpoint.every_events=7",
        "checkpoint.keep=1",
        "dead_letters.path=other.jsonl",
        "dead_letters.max_ratio=0.1",
        "source.block_bytes=8192",
        "predictions.kind=file",
        "predictions.path=rows.parquet",
        "predictions.interval=0.5",
        "metrics.enabled=true",
        "metrics.port=0",
        "model.range_factor=1e9",
    )
    assert running.resumed_at == again.learned == 200
    assert running.daemon.model.range_factor == 1e9


# --- labels that come later -----------------------------------------------------------------------------------------


@pytest.fixture
def later(here):
    """Features, and labels of all of them but the last 20."""
    features = [{"id": f"k{i}", "a": i % 7, "b": i % 5} for i in range(200)]
    labels = [{"id": f"k{i}", "y": i % 3} for i in range(180)]
    (here / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*features, *labels]))
    return ["source.path=data*.jsonl", "labels.key=id"]


def test_the_key_of_labels_is_no_feature_unless_it_is_named(here):
    assert "id" in schema_of(settings("labels.key=id")).others
    assert schema_of(settings("labels.key=id", "schema.ignore=['id']")).ignore == ("id",)
    named = schema_of(settings("labels.key=id", "schema.features=['id']"))
    assert (named.features, named.ignore) == (("id",), ())


def test_labels_that_come_later_are_learned_and_the_others_wait(later):
    summary, running = run(*later)
    assert (summary.events, summary.learned, summary.pending, summary.expired) == (200, 180, 20, 0)
    assert running.daemon.model.feature_names == ["a", "b"]
    found = describe_checkpoint("state")
    assert (found["pending"], found["state_digest"]) == (20, summary.state_digest)
    assert summary.state_digest != running.daemon.model.state_digest()
    metadata = CheckpointStore("state", keep=3).latest()[1].metadata
    assert metadata["state_digest"] == summary.state_digest


def test_their_limits_may_change(here, later):
    run(*later)
    limits = ["labels.max_pending=15", "labels.expire_events=500", "labels.expire_seconds=1.0"]
    again, running = run(*later, *limits)
    assert (running.resumed_at, again.learned, again.pending) == (180, 180, 20)
    (here / "data-2.jsonl").write_text('{"id": "new", "a": 1, "b": 2}\n{"id": "k199", "y": 1}\n')
    last, _ = run(*later, *limits)
    assert (last.events, last.learned, last.pending, last.expired) == (201, 181, 14, 6)


def test_a_checkpoint_from_before_there_were_labels_goes_on(here, monkeypatch):
    with monkeypatch.context() as patch:
        written = settings().learning_settings()
        del written["labels"]
        patch.setattr("streammoe.settings.Settings.learning_settings", lambda self: written)
        run()
    assert "labels" not in CheckpointStore("state", keep=3).latest()[1].metadata["settings"]
    assert run()[1].resumed_at == 200


def test_without_a_key_nothing_of_labels_is_kept_and_with_one_records_must_be_json(here):
    with pytest.raises(SourceError):
        run("labels.key=id")
    summary, running = run()
    found = CheckpointStore("state", keep=3).latest()[1]
    assert not [name for name in found.arrays if name.startswith("labels.")]
    assert describe_checkpoint("state")["pending"] == 0
    assert summary.state_digest == running.daemon.model.state_digest()


def test_a_checkpoint_of_the_library_is_not_a_daemons(here):
    model = MoERegressor(2)
    model.learn_one({"a": 1.0}, 1.0)
    store = CheckpointStore("state")
    store.prepare()
    store.save(model.arrays(), model.describe())
    with pytest.raises(CheckpointError):
        run()


def test_without_any_sound_checkpoint_it_does_not_begin_anew_by_itself(here):
    run()
    CheckpointStore("state").path(1).write_bytes(b"torn")
    with pytest.raises(CheckpointError):
        run()
    assert CheckpointStore("state").path(1).read_bytes() == b"torn"
    assert run(fresh=True)[0].learned == 200


# --- looking into a checkpoint --------------------------------------------------------------------------------------


def test_looking_needs_no_lock_and_changes_nothing(here):
    run()
    before = {path: path.stat().st_mtime_ns for path in (here / "state").iterdir()}
    with FolderLock("state"):
        before[here / "state" / "lock"] = (here / "state" / "lock").stat().st_mtime_ns
        describe_checkpoint("state")
        assert {path: path.stat().st_mtime_ns for path in (here / "state").iterdir()} == before


def test_what_holds_no_checkpoint(here):
    for place in ("nowhere", "data.csv", "."):
        with pytest.raises(CheckpointError) as refused:
            describe_checkpoint(place)
        assert str(refused.value).startswith(f"{place}: ")


@pytest.mark.slow
def test_kernels_compile_without_a_word(capsys):
    assembly.compile_kernels()
    assert capsys.readouterr() == ("", "")
