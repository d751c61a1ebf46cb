"""The mirror of a daemon: what it copies and when, and that nothing which happens there matters to learning."""

import math
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.daemon import mirror
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.mirror import Mirror
from streammoe.errors import ConfigError
from streammoe.persistence import CheckpointStore
from streammoe.persistence.backup import Target
from streammoe.settings import CheckpointSettings


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "LOOK_SECONDS", 0.01)
    store = CheckpointStore(tmp_path / "state")
    store.prepare()
    made = SimpleNamespace(store=store, metrics=Metrics(), checkpoints=SimpleNamespace())
    made.value = lambda name: made.metrics.registry.get_sample_value(f"streammoe_mirror_{name}")

    def set_to(address, **more):
        given = {"mirror_every_seconds": 0.01, **more}
        made.checkpoints.settings = CheckpointSettings(mirror=str(address), **given)

    def save(n, age=0):
        created = datetime.now(UTC) - timedelta(seconds=age)
        return store.save({"theta": np.full(3, float(n))}, {"n": n, "created": created.isoformat()})

    made.set_to, made.save = set_to, save
    made.open = lambda: closing(Mirror(CheckpointStore(store.folder), made.checkpoints, made.metrics))
    return made


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def generations(place):
    return [int(name[23:35]) for name in Target(str(place)).backups()]


def test_what_is_saved_is_copied_and_so_is_the_last_one_at_the_end(here, tmp_path):
    here.set_to(tmp_path / "there", keep=2)
    with here.open():
        for n in (1, 2, 3):
            here.save(n)
            wait_for(lambda n=n: generations(tmp_path / "there")[-1:] == [n])
        wait_for(lambda: generations(tmp_path / "there") == [2, 3])
        here.set_to(tmp_path / "there", mirror_every_seconds=1e6)
        here.save(4)
    assert generations(tmp_path / "there")[-1] == 4
    assert here.value("failures_total") == 0


def test_its_age_is_that_of_the_state_and_without_a_mirror_there_is_none(here, tmp_path):
    assert math.isnan(here.value("age_seconds"))
    here.set_to("")
    here.save(1, age=5_000)
    with here.open():
        assert math.isnan(here.value("age_seconds"))
        here.set_to(tmp_path / "there")  # as SIGHUP does
        wait_for(lambda: here.value("age_seconds") > 4_999)
        assert here.value("age_seconds") < 5_100
        here.set_to(tmp_path / "elsewhere")
        wait_for(lambda: generations(tmp_path / "elsewhere") == [1])
        here.set_to("")
        assert math.isnan(here.value("age_seconds"))


def test_failures_are_counted_and_logged_once_until_it_works_again(here, tmp_path, caplog):
    here.set_to(tmp_path / "there")
    (tmp_path / "there").write_text("no folder")
    here.save(1)
    with here.open():
        wait_for(lambda: here.value("failures_total") >= 3)
        assert here.value("age_seconds") < 60
        (tmp_path / "there").unlink()
        wait_for(lambda: generations(tmp_path / "there") == [1])
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["fails", "hangs"])
def test_an_end_does_not_wait_for_long_and_says_what_is_missing(here, tmp_path, kind, caplog, monkeypatch):
    going_on = threading.Event()

    def act(self):
        going_on.wait()
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(mirror, "CLOSE_SECONDS", 0.05 if kind == "hangs" else 60.0)
    monkeypatch.setattr(Target, "backups", act)
    here.set_to(tmp_path / "there", mirror_every_seconds=1e6)
    here.save(1)
    if kind == "fails":
        going_on.set()
    opened = here.open()
    with opened:
        pass
    assert "last checkpoint" in caplog.text
    going_on.set()
    opened.thing._thread.join(60)


def test_what_cannot_be_opened_is_said_at_the_start(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    here.set_to("memory://there")
    with pytest.raises(ConfigError):
        here.open()
