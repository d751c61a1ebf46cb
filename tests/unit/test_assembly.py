"""How settings become a daemon, and when they do not."""

import logging
from pathlib import Path

import pytest

from streammoe.commands.inspect import describe_checkpoint
from streammoe.daemon.model import schema_of
from streammoe.daemon.signals import StopFlag
from streammoe.distributions import Gaussian, StudentT
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe_connectors.files.source import FileSource
from tests.unit import daemons
from tests.unit.daemons import checkpoints, opened, run, settings, store


@pytest.fixture
def here(tmp_path, monkeypatch):
    daemons.enter_small(tmp_path, monkeypatch, 200, warmup=50)


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
        {"output_names": ["0", "1", "2"], "max_levels": 3, "timestamps": ("b",), "bound": "adaptive"},
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


@pytest.mark.parametrize("replayable", [True, False])
def test_a_restart_keeps_predictions_that_its_source_cannot_have_made_again(replayable, here, monkeypatch):
    rows = ["predictions.kind=file", "predictions.path=rows.jsonl"]
    run(*rows)
    written = Path("rows.jsonl").read_text()
    Path("rows.jsonl").write_text(f"{written}{{}}\n")
    monkeypatch.setattr(FileSource, "replayable", replayable)
    run(*rows)
    assert Path("rows.jsonl").read_text() == (written if replayable else f"{written}{{}}\n")


def test_without_any_valid_checkpoint_it_does_not_start_over(here):
    run()
    store().path(1).write_bytes(b"torn")
    with pytest.raises(CheckpointError):
        run()
    assert store().path(1).read_bytes() == b"torn"
    assert run(fresh=True).learned == 200


# --- labels that come later -----------------------------------------------------------------------------------------


def test_the_key_of_labels_is_no_feature_unless_it_is_named(here):
    assert "id" in schema_of(settings("labels.key=id")).others
    assert schema_of(settings("labels.key=id", "schema.ignore=['id']")).ignore == ("id",)
    named = schema_of(settings("labels.key=id", "schema.features=['id']"))
    assert (named.features, named.ignore) == (("id",), ())
