"""A global model next to a daemon's own: who predicts, and what is wrong with it stops nothing.

That learning is the same to the last bit whoever predicts is in tests/unit/pipeline/test_rivals.py as well.
"""

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest

from streammoe.errors import RetriableCheckpointError
from streammoe.estimators import MoERegressor
from streammoe.persistence import CheckpointStore
from streammoe.scaleout import follower
from streammoe.scaleout.follower import GlobalReader
from streammoe.scaleout.rival import HORIZON, Contest
from streammoe.scaleout.shard_metrics import FOLLOWER_PROBLEMS
from tests.unit import daemons
from tests.unit.daemons import opened, run
from tests.unit.scaleout.global_models import publish, taught

EVENTS, WARM_UP = 600, 60
SHARED = CheckpointStore("shared")


def event(i):
    a, b = math.sin(3 * i), math.cos(5 * i)
    return a, b, round((2 * a if a > 0 else b - 1) + 0.1 * math.sin(77 * i), 4)


ROWS = [event(i) for i in range(EVENTS)]
MODEL = f"model = {{ n_experts = 2, warmup = {WARM_UP} }}"


def enter(folder, monkeypatch, extra=""):
    daemons.enter(
        folder,
        monkeypatch,
        f"""
        source = {{ kind = "file", path = "data.csv", block_bytes = 4096 }}
        schema = {{ target = "y", ignore = ["padding"] }}
        {MODEL}
        metrics.enabled = false
        checkpoint = {{ every_events = 100, every_seconds = 1e6, keep = 100 }}
        guard.on_jump = "stop" # so that learning waits for checkpoints
        predictions = {{ kind = "file", path = "rows.jsonl" }}
        {extra}
        """,
    )
    fill("data.csv", ROWS)
    return folder


def fill(name, rows):
    """Write events of such a length that a batch holds some 25."""
    daemons.write_csv(name, [(a, b, "x" * 120, y) for a, b, y in rows], "a,b,padding,y")


@pytest.fixture
def here(tmp_path, monkeypatch):
    return enter(tmp_path, monkeypatch)


GLOBAL = ["global.path=shared"]


def fitted(rows, **arguments):
    return taught(MoERegressor(**{"n_experts": 2, "warmup": WARM_UP, **arguments}), rows)


def of_another_schema():
    model = MoERegressor(2, warmup=WARM_UP, categorical=["a"])
    for i in range(2 * WARM_UP):
        model.learn_one({"a": "xyz"[i % 3], "b": i % 5}, float(i % 2))
    return model


class Play:
    """Runs a daemon, and does things after so many batches, between which it looks for the global model."""

    def __init__(self, *flags, script=None, stop_after=None):
        self.script, self.batches, self.stop_after = script or {}, 0, stop_after
        self.requested = False
        Play.latest = self
        with opened(*flags, on_batch=self.after_batch) as running:
            self.daemon = running.daemon
            self.summary = running.daemon.run(self)

    def after_batch(self, progress):
        act = self.script.get(self.batches)
        if act is not None:
            act()
            self.daemon.observer._reader.read_once()
        self.requested = self.batches == self.stop_after
        self.batches += 1

    def value(self, name, **labels):
        return self.daemon.metrics.registry.get_sample_value(f"streammoe_global_{name}", labels)

    def problems(self):
        return {
            reason: int(times) for reason in FOLLOWER_PROBLEMS if (times := self.value("problems_total", reason=reason))
        }


def rows():
    return [json.loads(line) for line in Path("rows.jsonl").read_bytes().splitlines()]


# -- Serving -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_a_worse_global_model_predicts_nothing_and_what_is_damaged_changes_nothing(caplog):
    alone, plain = run(), rows()
    Path("rows.jsonl").unlink()
    publish(1, fitted([(a, b, 5 - y) for a, b, y in ROWS]))

    def damage():
        SHARED.path(2).write_bytes(SHARED.path(1).read_bytes()[:-1])

    played = Play(
        *GLOBAL, "checkpoint.dir=other", script={3: damage, 5: lambda: None, 6: lambda: publish(3, fitted(ROWS))}
    )
    assert played.summary.state_digest == alone.state_digest
    assert played.problems() == {"damaged": 2}
    assert sum("checkpoint-000000000002" in line.message for line in caplog.records) == 1
    assert played.value("version") == 3
    before = [row for row in rows() if row.pop("global_version") == 0]
    assert before == plain[: len(before)]
    assert len(before) > 100


def test_the_choice_depends_on_no_cut_and_no_outlier():
    rng = np.random.default_rng(3)
    own, rival = rng.normal(1.0, 1.0, 4000), rng.normal(0.9, 1.0, 4000)
    own[2000:] -= 0.4
    own[::97] = np.nan
    whole, parts = Contest(), Contest()
    chosen = whole.choose(own, rival)
    pieces = [parts.choose(own[start : start + 331], rival[start : start + 331]) for start in range(0, 4000, 331)]
    assert (np.concatenate(pieces) == chosen).all()
    assert not Contest().choose(np.array([9.0]), np.array([0.0])).any()  # not in hindsight
    assert chosen[HORIZON:2000].mean() > 0.9
    assert chosen[3500:].mean() < 0.1
    assert whole.own_loss == pytest.approx(0.6, abs=0.2)
    assert whole.rival_loss == pytest.approx(0.9, abs=0.2)
    before = whole.favours_rival
    whole.choose(np.array([1e200]), np.array([0.0]))
    assert whole.favours_rival == before
    whole.choose(np.array([0.0, 0.0]), np.array([np.nan, np.inf]))
    assert math.isfinite(whole.rival_loss)
    assert Contest(always=True).choose(np.array([0.0]), np.array([9.0])).all()


# -- Reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_another_schema_or_an_older_version_is_a_warning_and_the_last_good_one_stays(caplog):
    good = fitted(ROWS)
    publish(5, good)
    strange = of_another_schema()

    def back():
        for path in SHARED.folder.iterdir():
            path.unlink()
        publish(2, good)

    script = {3: lambda: publish(6, strange), 4: lambda: publish(7, MoERegressor(2)), 6: back, 7: lambda: None}
    played = Play(*GLOBAL, script=script)
    assert played.problems() == {"mismatch": 2, "went_back": 2}
    assert played.value("version") == 5
    assert sum("is no longer there" in line.message for line in caplog.records) == 1
    assert played.value("age_seconds") >= 0.0
    assert {row["global_version"] for row in rows()} == {0, 5}


def test_a_folder_that_does_not_answer_holds_up_nothing(monkeypatch):
    asked = threading.Event()

    def wait(store, *, after):
        asked.set()
        threading.Event().wait()

    monkeypatch.setattr(follower, "read_newest", wait)
    monkeypatch.setattr(follower, "FIRST_LOOK_SECONDS", 0.05)
    reader = GlobalReader(Path("nowhere"))
    reader.start()
    assert asked.wait(10)
    assert list(reader.looks()) == []
    reader.close()


@pytest.mark.parametrize("error", [RetriableCheckpointError("no network"), ValueError("a bug")])
def test_whatever_reading_raises_is_a_problem_and_no_more(error, monkeypatch):
    def fail(store, *, after):
        raise error

    monkeypatch.setattr(follower, "read_newest", fail)
    reader = GlobalReader(Path("nowhere"))
    reader.read_once()
    ((found, problem),) = reader.looks()
    assert (found, problem.reason) == (None, "unreadable")
    assert str(error) in problem.text


@pytest.mark.usefixtures("here")
def test_a_model_that_cannot_score_is_given_up_and_learning_goes_on(monkeypatch):
    alone = run()
    publish(1, fitted(ROWS))

    def fail(*arguments, **more):
        raise ValueError("strange arrays")

    monkeypatch.setattr(MoERegressor, "score_rows", fail)
    played = Play(*GLOBAL, "checkpoint.dir=other")
    assert played.summary.state_digest == alone.state_digest
    assert played.problems() == {"mismatch": 1}
