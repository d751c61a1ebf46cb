"""A global model next to a daemon's own: who predicts, and a model that is adopted holds each event once."""

import json
import math
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from streammoe.errors import RetriableCheckpointError
from streammoe.estimators import MoERegressor, load
from streammoe.persistence import CheckpointStore, read_checkpoint
from streammoe.pipeline.contest import HORIZON, Contest
from streammoe.scaleout import follower
from streammoe.scaleout.follower import GlobalReader
from streammoe.scaleout.global_model import Contained, file_name
from streammoe.scaleout.metrics import FOLLOWER_PROBLEMS
from streammoe.scaleout.places import Folder
from tests.unit import daemons
from tests.unit.daemon.scripted import settle
from tests.unit.daemons import latest, opened, run, store
from tests.unit.scaleout import global_models
from tests.unit.scaleout.global_models import of_others, taught

EVENTS, WARM_UP = 600, 60
OWN = "state"
OTHERS = 300
"""Events of another shard in the global model."""


def event(i):
    a, b = math.sin(3 * i), math.cos(5 * i)
    return a, b, round((2 * a if a > 0 else b - 1) + 0.1 * math.sin(77 * i), 4)


ROWS = [event(i) for i in range(EVENTS)]
ELSEWHERE = [event(10_000 + i) for i in range(OTHERS)]
MODEL = f"model = {{ n_experts = 2, warmup.size = {WARM_UP}, warmup.restarts = 1 }}"


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


GLOBAL = ["global.path=shared", "global.every=1e6"]
ADOPT = [*GLOBAL, "global.adopt=true"]
EACH = "checkpoint.every_events=1"
"""A checkpoint after each batch."""


def fitted(rows, **arguments):
    return taught(MoERegressor(**{"n_experts": 2, "warmup": WARM_UP, **arguments}), rows)


def of_another_schema():
    model = MoERegressor(2, warmup=WARM_UP, categorical=["a"])
    for i in range(2 * WARM_UP):
        model.learn_one({"a": "xyz"[i % 3], "b": i % 5}, float(i % 2))
    return model


def publish(version, model, shards=None):
    global_models.publish(version, model, {"elsewhere": of_others(OTHERS), **(shards or {})})


def reduced(generation=None, rows=ELSEWHERE):
    return global_models.reduced(store(), rows, generation)


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
            self.daemon._observer._reader.look()
        self.requested = self.batches == self.stop_after
        self.batches += 1

    def value(self, name, **labels):
        return self.daemon._metrics.registry.get_sample_value(f"streammoe_global_{name}", labels)

    def problems(self):
        return {
            reason: int(times) for reason in FOLLOWER_PROBLEMS if (times := self.value("problems_total", reason=reason))
        }


def metadata_of(folder):
    return read_checkpoint(folder).metadata


def wait_until(condition):
    end = time.monotonic() + 60.0
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def rows():
    return [json.loads(line) for line in Path("rows.jsonl").read_bytes().splitlines()]


# -- Serving -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_learning_is_the_same_to_the_last_bit_whoever_predicts():
    alone = run()
    plain = rows()
    good = fitted(ROWS)
    for serve in ("local", "global", "better"):
        Path("rows.jsonl").unlink()
        publish({"local": 1, "global": 2, "better": 3}[serve], good)
        played = Play(*GLOBAL, f"global.serve={serve}", f"checkpoint.dir={serve}")
        found = played.summary
        assert found.state_digest == alone.state_digest
        assert (found.events, found.learned, found.rejected) == (alone.events, alone.learned, alone.rejected)
        assert [row["place"] for row in rows()] == [row["place"] for row in plain]
        assert [row["model_version"] for row in rows()] == [row["model_version"] for row in plain]
        if serve == "local":
            assert rows() == plain
            assert found.scores == alone.scores
            continue
        by_global = [row for row in rows() if row["global_version"]]
        expected = {row["place"]["offset"]: row for row in plain}
        predicted = iter(good.predict_array(np.array(ROWS)[:, :2], feature_names=["a", "b"]))
        likely = iter(good.log_likelihood_array(np.array(ROWS)[:, :2], np.array(ROWS)[:, 2], feature_names=["a", "b"]))
        for row in rows():
            now, loss = next(predicted), -next(likely)
            if row.pop("global_version"):
                assert (row["prediction"], row["loss"]) == (now, loss)
                assert row["interval"][0] < now < row["interval"][1]
                assert len(row["gate"]) == 2
                assert sum(row["gate"]) == pytest.approx(1.0)
            else:
                assert row == expected[row["place"]["offset"]]
        assert len(by_global) == EVENTS if serve == "global" else EVENTS // 2 < len(by_global) < EVENTS
        assert found.scores["rmse"] < alone.scores["rmse"]
        assert played.value("log_loss", model="global") < played.value("log_loss", model="own")


@pytest.mark.usefixtures("here")
def test_a_worse_global_model_predicts_nothing_and_what_is_damaged_changes_nothing(caplog):
    alone, plain = run(), rows()
    Path("rows.jsonl").unlink()
    publish(1, fitted([(a, b, 5 - y) for a, b, y in ROWS]))

    def damage():
        Path("shared", file_name(2)).write_bytes(Path("shared", file_name(1)).read_bytes()[:-1])

    played = Play(
        *GLOBAL, "checkpoint.dir=other", script={3: damage, 5: lambda: None, 6: lambda: publish(3, fitted(ROWS))}
    )
    assert played.summary.state_digest == alone.state_digest
    assert played.problems() == {"damaged": 2}
    assert sum("global-000000000002" in line.message for line in caplog.records) == 1
    assert played.value("version") == 3
    before = [row for row in rows() if row.pop("global_version") == 0]
    assert before == plain[: len(before)]
    assert len(before) > 100


def test_the_choice_depends_on_no_cut_and_no_outlier_and_goes_on_after_a_restart():
    rng = np.random.default_rng(3)
    own, rival = rng.normal(1.0, 1.0, 4000), rng.normal(0.9, 1.0, 4000)
    own[2000:] -= 0.4
    own[::97] = np.nan
    whole, parts = Contest(), Contest()
    chosen = whole.choose(own, rival)
    pieces = []
    for start in range(0, 4000, 331):
        pieces.append(parts.choose(own[start : start + 331], rival[start : start + 331]))
        saved = json.loads(json.dumps(parts.to_json()))
        parts = Contest()
        parts.restore(saved)
    assert (np.concatenate(pieces) == chosen).all()
    assert parts.to_json() == whole.to_json()
    assert not chosen[0]
    assert chosen[HORIZON:2000].mean() > 0.9
    assert chosen[3500:].mean() < 0.1
    assert whole.own_loss == pytest.approx(0.6, abs=0.2)
    assert whole.rival_loss == pytest.approx(0.9, abs=0.2)
    before = whole.favours_rival
    whole.choose(np.array([1e200]), np.array([0.0]))
    assert whole.favours_rival == before
    whole.choose(np.array([0.0, 0.0]), np.array([np.nan, np.inf]))
    assert all(map(math.isfinite, whole.to_json().values()))
    assert Contest(always=True).choose(np.array([0.0]), np.array([9.0])).all()


@pytest.mark.usefixtures("here")
def test_the_comparison_goes_on_where_the_checkpoint_was_taken():
    publish(1, fitted(ROWS))
    whole = Play(*GLOBAL, "checkpoint.dir=whole")
    assert metadata_of("whole")["contest"]["weight"] > 0.5
    expected = rows()
    Path("rows.jsonl").unlink()
    assert Play(*GLOBAL, stop_after=9).summary.events < EVENTS
    again = Play(*GLOBAL)
    assert metadata_of("state")["contest"] == metadata_of("whole")["contest"]
    assert again.summary.state_digest == whole.summary.state_digest
    assert rows() == expected


# -- Reading -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_another_schema_or_an_older_version_is_a_warning_and_the_last_good_one_stays(caplog):
    good = fitted(ROWS)
    publish(5, good)
    strange = of_another_schema()

    def back():
        for path in Path("shared").iterdir():
            path.unlink()
        publish(2, good)

    script = {3: lambda: publish(6, strange), 4: lambda: publish(7, MoERegressor(2)), 6: back, 7: lambda: None}
    played = Play(*GLOBAL, script=script)
    assert played.problems() == {"mismatch": 2, "went_back": 2}
    assert played.value("version") == 5
    assert sum("is no longer there" in line.message for line in caplog.records) == 1
    assert played.value("age_seconds") >= 0.0
    assert {row["global_version"] for row in rows()} == {0, 5}


@pytest.mark.usefixtures("here")
def test_a_damaged_newest_version_is_passed_over_with_one_warning(caplog):
    publish(4, fitted(ROWS))
    publish(5, fitted(ROWS))
    path = Path("shared", file_name(5))
    path.write_bytes(path.read_bytes()[:-1])
    played = Play(*GLOBAL, script={3: lambda: None, 4: lambda: None})
    assert played.value("version") == 4
    assert played.problems() == {"damaged": 3}
    assert sum(line.levelname == "WARNING" and path.name in line.message for line in caplog.records) == 1


@pytest.mark.usefixtures("here")
def test_columns_of_other_kinds_are_found_once_there_are_any():
    publish(1, of_another_schema())
    played = Play(*GLOBAL, "global.serve=global", script={9: lambda: publish(2, fitted(ROWS))})
    assert played.problems() == {"mismatch": 1}
    served = [row["global_version"] for row in rows()]
    assert served == sorted(served, key=lambda version: {1: 0, 0: 1, 2: 2}[version])
    assert 0 < served.count(1) < 40 < served.count(0) < 300 < served.count(2)


class Strange(Folder):
    """A place that does not answer, or answers with an error."""

    def __init__(self, error=None):
        super().__init__(Path("nowhere"))
        self.error = error
        self.asked = threading.Event()

    def names(self):
        self.asked.set()
        if self.error is not None:
            raise self.error
        threading.Event().wait()


def test_a_place_that_does_not_answer_holds_up_nothing(monkeypatch):
    monkeypatch.setattr(follower, "FIRST_LOOK_SECONDS", 0.05)
    reader = GlobalReader(Strange(), 1e9)
    reader.start()
    assert reader.place.asked.wait(10)
    assert list(reader.news()) == []
    reader.close()


@pytest.mark.parametrize("error", [RetriableCheckpointError("no network"), ValueError("a bug of a client")])
def test_whatever_a_place_raises_is_a_problem_and_no_more(error):
    reader = GlobalReader(Strange(error), 1e9)
    reader.look()
    (found,) = reader.news()
    assert found.reason == "unreadable"
    assert str(error) in found.text


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


# -- Adopting ----------------------------------------------------------------------------------------------------------


def script_of(generation=None):
    return {12: lambda: publish(1, *reduced(generation))}


def by_hand(generation):
    """The global model, which then learns once what came after the shard's part in it."""
    model, shards = reduced(generation)
    return taught(model, ROWS[shards[OWN].n :])


@pytest.mark.parametrize("serve", ["local", "better"])
@pytest.mark.usefixtures("here")
def test_an_adopted_model_holds_each_event_once_and_nothing_is_counted_twice(serve):
    alone = run()
    plain = [row["place"] for row in rows()]
    Path("rows.jsonl").unlink()
    Path("state").rename("alone")
    played = Play(*ADOPT, f"global.serve={serve}", script=script_of(2))
    assert played.value("adoptions_total") == 1
    assert played.summary.state_digest == by_hand(2).state_digest()
    assert played.summary.state_digest != alone.state_digest
    assert (played.summary.events, played.summary.learned) == (alone.events, alone.learned)
    assert played.summary.model_events == EVENTS + OTHERS
    assert [row["place"] for row in rows()] == plain
    assert [row["model_version"] for row in rows()] == list(range(EVENTS))
    contains = latest()["contains"]
    assert contains == {
        "version": 1,
        "adopted_n": OTHERS,
        "shards": {"elsewhere": {"generation": 7, "n": OTHERS, "positions": [{"kind": "x"}]}},
    }
    assert latest()["counters"]["outcomes"]["learned"] == EVENTS
    # It goes on from there as from any checkpoint, with or without a global model, and does not adopt it again.
    Path("data.csv").rename("first.csv")
    fill("second.csv", ELSEWHERE[:50])
    later = run("source.path=*.csv", *ADOPT)
    assert later.state_digest == taught(by_hand(2), ELSEWHERE[:50]).state_digest()
    assert latest()["contains"] == contains
    fill("third.csv", ELSEWHERE[50:60])
    assert run("source.path=*.csv").model_events == later.model_events + 10
    assert latest()["contains"] == contains
    assert rows()[-1]["model_version"] == EVENTS + 59


@pytest.mark.usefixtures("here")
def test_what_is_rejected_or_has_no_target_is_neither_learned_nor_rejected_again():
    lines = Path("data.csv").read_text().splitlines()
    for i in range(40, EVENTS, 50):
        lines[i] = ("1,2,x,inf", "what,2,x,3", "1,2,x,")[i // 50 % 3]
    Path("data.csv").write_text("\n".join([*lines, ""]))
    alone = run()
    letters = Path("state/dead-letters.jsonl").read_bytes().count(b"\n")
    assert letters == alone.rejected > 5
    Path("state").rename("alone")
    played = Play(*ADOPT, script=script_of())
    assert played.value("adoptions_total") == 1
    assert played.summary._replace(scores={}, state_digest="", events_per_second=0, checkpoint="", model_events=0) == (
        alone._replace(scores={}, state_digest="", events_per_second=0, checkpoint="", model_events=0)
    )
    assert Path("state/dead-letters.jsonl").read_bytes().count(b"\n") == letters
    assert played.summary.model_events == alone.model_events + OTHERS


@pytest.mark.usefixtures("here")
def test_a_version_that_does_not_fit_is_not_adopted_and_learning_goes_on():
    alone = run()
    Path("state").rename("alone")
    strange = {OWN: Contained(1, EVENTS, [None], "f" * 64, 1.0, 1.0, None)}

    def narrow():
        _, shards = reduced()
        publish(4, fitted(ROWS[: 2 * OTHERS], prior_strength=3.0), shards)

    def steep():
        _, shards = reduced()
        publish(5, fitted([(1e-9 * a, 1e-9 * b, y) for a, b, y in ROWS]), shards)  # its ranges leave out the others

    script = {
        7: lambda: publish(1, fitted(ROWS[:OTHERS])),
        11: lambda: publish(3, reduced()[0], strange),
        13: narrow,
        15: steep,
    }
    played = Play(*ADOPT, EACH, "global.serve=local", script=script)
    assert played.problems() == {"absent": 1, "too_far_back": 1, "mismatch": 1, "rejected": 1}
    assert played.value("adoptions_total") == 0
    assert played.summary.state_digest == alone.state_digest
    assert "contains" not in latest()


@pytest.mark.usefixtures("here")
def test_what_other_shards_had_in_an_adopted_version_may_not_be_missing_in_the_next():
    def again(n):
        model, shards = reduced(rows=ELSEWHERE[:5])  # after those that it has adopted
        publish(2 if n < OTHERS else 3, model, {**shards, "elsewhere": of_others(n)})

    played = Play(*ADOPT, EACH, script={**script_of(), 16: lambda: again(OTHERS - 1), 21: lambda: again(OTHERS + 5)})
    assert played.problems() == {"went_back": 1}
    assert played.value("adoptions_total") == 2
    assert latest()["contains"]["version"] == 3
    assert latest()["contains"]["shards"]["elsewhere"]["n"] == OTHERS + 5


@pytest.mark.usefixtures("here")
def test_what_comes_while_a_checkpoint_is_written_is_after_it(monkeypatch):
    save = CheckpointStore.save

    def slowly(self, *arguments):
        if self.generations() == [1]:  # the second waits until some batches more have been learned
            wait_until(lambda: Play.latest.batches > 8)
        return save(self, *arguments)

    def publish_once_saved():
        wait_until(lambda: 2 in store().generations())
        publish(1, *reduced(2))

    settled = {batch: lambda: settle(Play.latest.daemon) for batch in range(13, 30)}
    monkeypatch.setattr(CheckpointStore, "save", slowly)
    played = Play(*ADOPT, "guard.on_jump=off", script={**settled, 12: publish_once_saved})
    assert played.value("adoptions_total") == 1
    assert played.summary.state_digest == by_hand(2).state_digest()


@pytest.mark.usefixtures("here")
def test_with_late_labels_what_waits_stays_and_what_came_with_them_is_learned_again():
    pairs = [(json.dumps({"id": i, "a": a, "b": b}), json.dumps({"id": i, "y": y})) for i, (a, b, y) in enumerate(ROWS)]
    late = 40
    lines = [pairs[i][0] for i in range(late)]
    for i in range(EVENTS):
        lines += [pairs[i][1], *([pairs[i + late][0]] if i + late < EVENTS else [])]
    Path("data.jsonl").write_text("".join(f"{line:<90}\n" for line in lines))
    labels = ["source.path=data.jsonl", "labels.key=id", "schema.ignore=[]"]
    alone = run(*labels)
    Path("state").rename("alone")
    played = Play(*ADOPT, *labels, script={20: lambda: publish(1, *reduced(2))})
    assert played.value("adoptions_total") == 1
    assert played.summary.events == alone.events
    assert latest()["counters"] == metadata_of("alone")["counters"]
    assert load("state").state_digest() == by_hand(2).state_digest()
    assert load("alone").n == EVENTS


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kept", [2, 1])
def test_a_start_that_goes_back_before_an_adoption_adopts_only_what_fits(kept):
    whole = Play(*ADOPT, script=script_of(2)).summary
    expected = rows()
    store().set_aside(after=kept)
    if kept == 1:  # the version contains a checkpoint that is no more
        again = Play(*ADOPT)
        assert again.problems() == {"too_far_back": 1}
        assert again.summary.model_events == EVENTS
        assert "contains" not in latest()
    else:
        assert Play(*ADOPT).summary.state_digest == whole.state_digest == by_hand(2).state_digest()
        assert [row["place"] for row in rows()] == [row["place"] for row in expected]


@pytest.mark.usefixtures("here")
def test_adopting_needs_a_place():
    with pytest.raises(ValueError, match=r"global\.adopt"):
        daemons.settings("global.adopt=true")
