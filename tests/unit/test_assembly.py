"""How settings become a daemon, and when they do not."""

import json
import logging
from pathlib import Path

import pytest

from streammoe.commands.inspect import describe_checkpoint
from streammoe.daemon.model import schema_of
from streammoe.daemon.signals import StopFlag
from streammoe.distributions import Gaussian, StudentT
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from tests.unit import daemons
from tests.unit.daemons import checkpoints, latest, opened, run, settings, store, write_csv


@pytest.fixture
def here(tmp_path, monkeypatch):
    daemons.enter_small(tmp_path, monkeypatch, 200, warmup=50)


TWICE = {
    "dead_letters.path": [
        ["dead_letters.path=state/lock"],
        ["dead_letters.path=state/checkpoint-000000000001.safetensors"],
        ["dead_letters.path=config.toml"],
        ["dead_letters.path=data.csv", "source.path=d*.csv"],
    ],
    "predictions.path": [
        ["predictions.kind=file", "predictions.path=data.csv", "source.path=*"],
        ["predictions.kind=file", "predictions.path=one.jsonl", "dead_letters.path=./one.jsonl"],
    ],
}
"""Settings by which one file would be two things."""


def test_no_file_is_written_as_two_things_or_read_and_written(here):
    for named, cases in TWICE.items():
        for flags in cases:
            with pytest.raises(ConfigError) as rejected:
                settings(*flags)
            assert [problem.partition(":")[0] for problem in rejected.value.problems] == [named], flags


# --- settings to model ----------------------------------------------------------------------------------------------


CLASSES = ["model.kind=classifier"]
OUTPUTS = ["schema.target=['y', 'b']"]
FLAGS = [
    (
        MoERegressor,
        ["model.n_experts=3", "model.degree=2", "model.averaging=none", "model.seed=5", "model.range_factor=10.0"],
        {"n_experts": 3, "degree": 2, "averaging": None, "seed": 5, "range_factor": 10.0, "standardize": True},
    ),
    (MoERegressor, ["model.schedule={kind='constant', gamma=0.03}"], {"step_size": 0.03}),
    (
        MoEClassifier,
        [*CLASSES, "model.classes=[0, '1', 2]", "model.max_levels=3", "schema.timestamps=['b']"],
        {"class_labels": ["0", "1", "2"], "max_levels": 3, "timestamps": ("b",), "bound": "adaptive"},
    ),
    (
        MoEMultiTargetRegressor,
        [*OUTPUTS, "model.expert.covariance=full"],
        {"expert": Gaussian("full"), "output_names": ["y", "b"]},
    ),
    (MoEMultiTargetRegressor, [*OUTPUTS, "model.expert=student_t", "model.expert.df=6.0"], {"expert": StudentT(6.0)}),
]


def test_settings_reach_the_model(here):
    for kind, flags, expected in FLAGS:
        with opened(*flags) as running:
            found = running.daemon.model
        assert type(found) is kind
        assert {name: getattr(found, name) for name in expected} == expected


COLUMNS = [
    ([*CLASSES, "schema.categorical=['a']", "model.max_levels=3"], ["b", "a=0", "a=1", "a=2"], 200),
    (OUTPUTS, ["a"], 200),
    (["schema.weight=a"], ["b"], 171),  # a is 0 in every seventh row, which is only predicted
    (["source.path=*.csv", "schema.late_columns=false"], ["a", "b"], 210),
    (["source.path=*.csv", "schema.late_columns=true"], ["a", "b", "late"], 210),
]


def test_columns_are_what_the_schema_says(here):
    write_csv("more.csv", [(1, 2, 3, 4)] * 10, header="a,b,late,y")
    for i, (flags, features, learned) in enumerate(COLUMNS):
        summary = run(f"checkpoint.dir=state-{i}", *flags)
        assert (describe_checkpoint(f"state-{i}")["features"], summary.learned) == (features, learned), flags


# --- opening and closing --------------------------------------------------------------------------------------------


def test_progress_and_the_address_of_metrics_are_reported(here):
    reported = []
    with opened("metrics.enabled=true", "metrics.port=0", on_batch=reported.append) as running:
        assert running.metrics_url.startswith("http://127.0.0.1:")
        running.daemon.run(StopFlag())
    size = Path("data.csv").stat().st_size
    assert (reported[0], reported[-1]) == ((0, size), (size, size))
    with opened() as running:
        assert running.metrics_url is None


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
    assert store().generations() == []
    run(*served)
    before = checkpoints()
    with pytest.raises(error):
        run(*served, flag, fresh=True)
    assert checkpoints() == before


# --- resuming -------------------------------------------------------------------------------------------------------


def test_a_restart_resumes_with_other_settings_that_do_not_shape_the_model(here, caplog):
    first = run()
    flags = ["checkpoint.keep=1", "dead_letters.max_ratio=0.1", "source.block_bytes=8192", "model.range_factor=1e9"]
    with caplog.at_level(logging.INFO), opened(*flags) as running:
        n_at_start = running.daemon.model.n
        again = running.daemon.run(StopFlag())
    assert n_at_start == again.learned == first.learned == 200
    assert running.daemon.model.range_factor == 1e9
    assert " 200 events" in caplog.text


def test_a_fresh_start_sets_the_checkpoints_there_are_aside(here):
    rows = ["predictions.kind=file", "predictions.path=rows.jsonl"]
    first = run(*rows)
    before = Path("rows.jsonl").read_bytes()
    with opened(*rows, fresh=True) as running:
        assert running.daemon.model.n == 0
        second = running.daemon.run(StopFlag())
    assert (second.learned, second.state_digest) == (200, first.state_digest)
    (aside,) = Path("state").glob("set-aside-*")
    assert describe_checkpoint(aside)["state_digest"] == first.state_digest
    assert Path("rows.jsonl").read_bytes() == 2 * before


def test_without_any_valid_checkpoint_it_does_not_start_over(here):
    run()
    store().path(1).write_bytes(b"torn")
    with pytest.raises(CheckpointError):
        run()
    assert store().path(1).read_bytes() == b"torn"
    assert run(fresh=True).learned == 200


# --- labels that come later -----------------------------------------------------------------------------------------


LATER = ["source.path=data*.jsonl", "labels.key=id"]


@pytest.fixture
def later(here):
    """Features, and labels of all of them but the last 20."""
    features = [{"id": f"k{i}", "a": i % 7, "b": i % 5} for i in range(200)]
    labels = [{"id": f"k{i}", "y": i % 3} for i in range(180)]
    Path("data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*features, *labels]))


def test_the_key_of_labels_is_no_feature_unless_it_is_named(here):
    assert "id" in schema_of(settings("labels.key=id")).others
    assert schema_of(settings("labels.key=id", "schema.ignore=['id']")).ignore == ("id",)
    named = schema_of(settings("labels.key=id", "schema.features=['id']"))
    assert (named.features, named.ignore) == (("id",), ())


def test_labels_that_come_later_are_learned_and_their_limits_may_change(later):
    with opened(*LATER) as running:
        summary = running.daemon.run(StopFlag())
    assert (summary.events, summary.learned, summary.pending, summary.expired) == (200, 180, 20, 0)
    assert running.daemon.model.feature_names == ["a", "b"]
    found = describe_checkpoint("state")
    assert (found["pending"], found["state_digest"]) == (20, summary.state_digest)
    assert summary.state_digest == latest()["state_digest"] != running.daemon.model.state_digest()
    limits = ["labels.max_pending=15", "labels.expire_events=500", "labels.expire_seconds=1.0"]
    assert run(*LATER, *limits).pending == 20
    Path("data-2.jsonl").write_text('{"id": "new", "a": 1, "b": 2}\n{"id": "k199", "y": 1}\n')
    last = run(*LATER, *limits)
    assert (last.events, last.learned, last.pending, last.expired) == (201, 181, 14, 6)
