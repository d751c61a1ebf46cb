import os
import re
from pathlib import Path

import pytest

from streammoe.configuration import load_settings
from streammoe.daemon.reload import Reload, reloadable
from streammoe.daemon.signals import HangupFlag

BASE = """
    source = { kind = "file", path = "%(path)s" }
    schema.target = "y"
    labels = { key = "%(key)s"%(labels)s }
    model = { n_experts = 2%(model)s }
    predictions = { kind = "file", path = "p.jsonl"%(predictions)s }
    %(rest)s
"""
NOTHING_MORE = {"path": "a.csv", "key": "id", "labels": "", "model": "", "predictions": "", "rest": ""}


class Reconfigured:
    """A daemon that only keeps what it was given."""

    def __init__(self):
        self.given = []

    def reconfigure(self, settings, *, affects_events):
        self.given.append((settings, affects_events))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "config.toml"


@pytest.fixture
def write(path):
    """Write the file, with these settings in a section or at the end."""

    def write(**given):
        path.write_text(BASE % {**NOTHING_MORE, **given})

    write()
    return write


@pytest.fixture
def reload(path, write):
    """Make a `Reload` of what the file holds now."""

    def make(environment=None, overrides=()):
        def load():
            return load_settings(path, environment=environment or {}, overrides=overrides)

        return Reload(HangupFlag(), load(), load, path)

    return make


ACCEPTED = [
    ({"rest": "checkpoint = { every_events = 5, every_seconds = 1.5, keep = 9, retry_seconds = 3.0 }"}, False),
    ({"rest": "dead_letters.max_ratio = 0.9"}, False),
    ({"model": ", range_factor = 1e9"}, True),
    ({"labels": ", max_pending = 5, expire_events = 6, expire_seconds = 7.0, keep_expired = true"}, True),
    ({"rest": "checkpoint.keep = 9", "predictions": ", interval = 0.5, gate = false"}, True),
]
"""What may change, and whether it says what becomes of an event or what is written of it."""


def test_what_may_change_is_taken_once(path, write, reload):
    for given, affects_events in ACCEPTED:
        write()
        asked, daemon = reload(), Reconfigured()
        asked._flag.requested = True
        assert asked.requested
        write(**given)
        assert asked.apply(daemon.reconfigure) == "applied", given
        assert asked.apply(daemon.reconfigure) == "unchanged"
        assert daemon.given == [(load_settings(path, environment={}), affects_events)], given
        assert not asked.requested


REJECTED = {
    "checkpoint.dir": {"rest": "checkpoint.dir = 'elsewhere'"},
    "metrics.port": {"rest": "metrics.port = 1"},
    "model.schedule": {"model": ", schedule = { kind = 'constant', gamma = 0.5 }"},
    "labels.key": {"key": "other"},
    "predictions.format": {"predictions": ", format = 'parquet'"},
    "source.path": {"path": "b.csv"},
    "checkpoint.kep": {"rest": "checkpoint.kep = 5"},
    "config.toml": {"rest": "["},
    " [challenger] cannot": {"rest": "challenger.n_experts = 3"},
}


def test_anything_else_is_rejected_as_a_whole_by_name(write, reload, caplog):
    asked, daemon = reload(), Reconfigured()
    for name, given in REJECTED.items():
        write(**{**given, "rest": "checkpoint.every_events = 7\n" + given.get("rest", "")})
        caplog.clear()
        assert asked.apply(daemon.reconfigure) == "refused", name
        assert name in caplog.text
    assert daemon.given == []
    write(rest="checkpoint.every_events = 7")
    assert asked.apply(daemon.reconfigure) == "applied"


def test_a_missing_file_or_a_pipe_is_rejected_without_waiting(path, reload):
    asked = reload()
    path.unlink()
    assert asked.apply(Reconfigured().reconfigure) == "refused"
    os.mkfifo(path)
    assert asked.apply(Reconfigured().reconfigure) == "refused"


def test_each_setting_that_may_change_is_in_the_document(path, write):
    text = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
    section = text.partition("## While it runs")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+\.[a-z_]+)`", section)) == reloadable(load_settings(path, environment={}))
