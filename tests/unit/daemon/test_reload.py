import logging
import os
import re
from pathlib import Path

import pytest

from streammoe.configuration import load_settings
from streammoe.daemon.reload import MAY_CHANGE, Reload
from streammoe.daemon.signals import HangupFlag
from streammoe.errors import RetriableCheckpointError

BASE = """
    source = { kind = "file", path = "a.csv" }
    schema.target = "y"
    labels = { %s }
    model = { n_experts = 2%s }
    predictions = { kind = "file", path = "p.jsonl"%s }
    %s
"""


class Taken:
    """A daemon that only remembers what it was told."""

    def __init__(self, error=None):
        self.told = []
        self.error = error

    def reconfigure(self, settings, *, judging):
        if self.error is not None:
            raise self.error
        self.told.append((settings, judging))


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.toml"

    def write(rest="", *, labels="", model="", predictions=""):
        path.write_text(BASE % (labels, model, predictions, rest))
        return path

    return write


@pytest.fixture
def reload(config):
    """Makes a `Reload` of what the file holds now."""

    def make(path, **given):
        def load():
            return load_settings(path, environment=given.get("environment", {}), overrides=given.get("overrides", ()))

        return Reload(HangupFlag(), load(), load, path)

    return make


@pytest.mark.parametrize(
    ("given", "judging"),
    [
        ({"rest": "checkpoint = { every_events = 5, every_seconds = 1.5, keep = 9, retry_seconds = 3.0 }"}, False),
        ({"rest": "dead_letters.max_ratio = 0.9"}, False),
        ({"rest": "metrics.alive_seconds = 3.0"}, False),
        ({"model": ", range_factor = 1e9"}, True),
        ({"predictions": ", interval = 0.5, gate = false"}, True),
        ({"rest": "metrics.alive_seconds = 3.0", "predictions": ", gate = false"}, True),
    ],
)
def test_what_may_change_is_taken_once(config, reload, given, judging):
    asked = reload(config())
    daemon = Taken()
    config(**given)
    assert asked.carry_out(daemon) == "applied"
    ((settings, judged),) = daemon.told
    assert settings == load_settings(config(**given), environment={})
    assert judged == judging
    assert asked.carry_out(daemon) == "unchanged"
    assert len(daemon.told) == 1


def test_limits_of_labels_may_change(config, reload):
    asked = reload(config(labels='key = "id"'))
    daemon = Taken()
    config(labels='key = "id", max_pending = 5, expire_events = 6, expire_seconds = 7.0')
    assert asked.carry_out(daemon) == "applied"
    assert daemon.told[0][0].labels.max_pending == 5
    assert daemon.told[0][1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rest": "checkpoint.dir = 'elsewhere'"}, "checkpoint.dir cannot change"),
        ({"rest": "metrics.port = 1"}, "metrics.port cannot change"),
        ({"model": ", seed = 3"}, "model.seed cannot change"),
        ({"model": ", schedule = { kind = 'constant', gamma = 0.5 }"}, "model.schedule cannot change"),
        ({"rest": "dead_letters.path = 'd'"}, "dead_letters.path cannot change"),
        ({"labels": 'key = "id"'}, "labels.key cannot change"),
        ({"predictions": ", format = 'parquet'"}, "predictions.format cannot change"),
        ({"rest": "checkpoint.keep = 0"}, "checkpoint.keep: must be"),
        ({"rest": "checkpoint.kep = 5"}, "checkpoint.kep: unknown setting"),
        ({"rest": "["}, "is not TOML"),
    ],
)
def test_anything_else_is_refused_as_a_whole_by_name(config, reload, caplog, given, said):
    asked = reload(config())
    daemon = Taken()
    config(**{**given, "rest": "checkpoint.every_events = 7\n" + given.get("rest", "")})
    assert asked.carry_out(daemon) == "refused"
    assert daemon.told == []
    assert said in caplog.text
    assert "stay as they were" in caplog.text
    config("checkpoint.every_events = 7")
    assert asked.carry_out(daemon) == "applied"


def test_a_file_that_is_gone_is_refused(config, reload, caplog):
    path = config()
    asked = reload(path)
    path.unlink()
    assert asked.carry_out(Taken()) == "refused"
    assert "cannot be read" in caplog.text


def test_a_pipe_that_was_read_at_the_start_is_not_waited_for(config, reload, caplog):
    path = config()
    asked = reload(path)
    path.unlink()
    os.mkfifo(path)
    assert asked.carry_out(Taken()) == "refused"
    assert "is no regular file, so it cannot be read again" in caplog.text


def test_another_source_is_refused(config, reload, caplog):
    path = config()
    asked = reload(path)
    path.write_text(path.read_text().replace("a.csv", "b.csv"))
    assert asked.carry_out(Taken()) == "refused"
    assert "source.path cannot change" in caplog.text


def test_flags_and_environment_stand_over_the_file_as_at_the_start(config, reload):
    given = {"overrides": ["checkpoint.keep=7"], "environment": {"STREAMMOE_CHECKPOINT__EVERY_EVENTS": "70"}}
    asked = reload(config(), **given)
    config("checkpoint = { keep = 1, every_events = 10 }")
    assert asked.carry_out(Taken()) == "unchanged"


def test_what_cannot_be_made_safe_first_is_refused_and_can_be_asked_for_again(config, reload, caplog):
    asked = reload(config())
    config(model=", range_factor = 1e9")
    assert asked.carry_out(Taken(RetriableCheckpointError("no room"))) == "refused"
    assert "no room; then send SIGHUP again" in caplog.text
    assert asked.carry_out(Taken()) == "applied"


def test_a_signal_is_dealt_with_once(config, reload):
    asked = reload(config())
    asked._flag.requested = True
    assert asked.requested
    asked.carry_out(Taken())
    assert not asked.requested


def test_what_changed_is_told_with_what_it_was(config, reload, caplog):
    asked = reload(config())
    config("checkpoint.keep = 8")
    with caplog.at_level(logging.INFO):
        asked.carry_out(Taken())
    assert "from now on checkpoint.keep = 8 (was 3)" in caplog.text


def test_each_setting_that_may_change_is_in_the_document():
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    section = text.partition("## While it runs")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", section)) == MAY_CHANGE
