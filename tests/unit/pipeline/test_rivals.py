"""A pipeline with a rival: it predicts as it would alone, and the own model learns as it would alone."""

from contextlib import ExitStack

import numpy as np
import pytest

from streammoe.pipeline.pipeline import Rival
from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.pipeline.writing import PredictionWriter
from streammoe.scaleout.rival import Contest
from tests.unit.pipeline.streams import TARGETS, WARM_UP, batches_of, event, pipeline, run
from tests.unit.pipeline.written_rows import lines

N = 4 * WARM_UP
FORMATS = {"regressor": "jsonl", "outputs": "arrow", "classifier": "csv"}


def events_of(kind, start=0):
    found = [event(kind, i) for i in range(start, start + N)]
    for i in range(5, N, 17):
        found[i] = {**found[i], **dict.fromkeys(TARGETS[kind])}  # predicted only
    found[N // 2]["a"] = 1e300  # rejected
    found[-1]["c"] = "blue"  # a level that the rival does not know
    return found


@pytest.fixture
def writer(tmp_path):
    """Makes a writer to a file, which is closed at the end."""
    with ExitStack() as opened:

        def writer(name, interval=0.8, *, gate=True):
            sink = JsonlPredictions(tmp_path / name)
            opened.callback(sink.close)
            return PredictionWriter(sink, interval, gate=gate)

        yield writer


def rival_of(kind, labels=None):
    """A model that has learned other events, with the columns in another order and for a classifier other labels."""
    line = pipeline(kind, n_experts=3)
    for i in range(500, 500 + 3 * WARM_UP):
        held = {name: value for name, value in reversed(event(kind, i).items()) if name != "w"}
        target = {name: held.pop(name) for name in TARGETS[kind]}
        if kind == "classifier":
            target = (labels or {}).get(target["label"], target["label"])
        line.model.learn_one(held, target if kind == "outputs" else target if kind == "classifier" else target["y"])
    return line.model


@pytest.mark.parametrize("sizes", [(1, 7, 40), ()])
@pytest.mark.parametrize("kind", TARGETS)
def test_the_rival_predicts_what_it_would_alone_and_learning_is_what_it_would_be_alone(kind, sizes, writer, tmp_path):
    events, rival = events_of(kind), rival_of(kind, {"low": "some", "some": "new"})
    digest = rival.state_digest()
    alone = pipeline(kind)
    before = run(alone, events, FORMATS[kind], sizes)
    line = pipeline(kind, predictions=writer("rows.jsonl"))
    line.rival, line.may_have_rival = Rival(7, rival, Contest(always=True).choose), True
    line.scores.every = kind != "classifier"  # so that all intervals are scored
    assert run(line, events, FORMATS[kind], sizes) == before, "with the losses, which the guard sees"
    assert line.model.state_digest() == alone.model.state_digest()
    assert rival.state_digest() == digest
    line.predictions.sink.flush()
    # The rival as the own model of events that none of them learns.
    other = pipeline(kind, predictions=writer("others.jsonl"))
    other.model = rival
    unlearned = [{**held, **dict.fromkeys(TARGETS[kind])} for held in events]
    for batch in batches_of(unlearned, "jsonl", sizes):
        other.process(batch)
    other.predictions.sink.flush()
    assert rival.state_digest() == digest
    found, expected = lines(tmp_path / "rows.jsonl"), lines(tmp_path / "others.jsonl")
    assert len(found) == len(expected) == N - 1
    for row, wanted in zip(found, expected, strict=True):
        assert row["global_version"] == 7
        for name in ("prediction", "interval", "probabilities", "gate"):
            assert row.get(name) == wanted.get(name), name
    if kind == "classifier":
        truth = [held["label"] for held in events if held["label"] is not None and held["a"] < 1e300]
        predicted = [row["prediction"] for row in found if row["target"] is not None]
        assert "new" in predicted
        hits = np.mean([a == b for a, b in zip(truth, predicted, strict=True)])
        assert line.scores.means()["accuracy"]["running"] == pytest.approx(hits)
    else:
        known = [row for row in found if row["loss"] is not None]
        assert line.scores.log_loss.means()["running"] == pytest.approx(np.mean([row["loss"] for row in known]))
        said = [(row["interval"], row["target"]) for row in known]
        if kind == "outputs":
            said = [(interval[TARGETS[kind][0]], target[TARGETS[kind][0]]) for interval, target in said]
        inside = np.mean([low <= target <= high for (low, high), target in said])
        assert line.scores.intervals["coverage", 0, 0.8].means()["running"] == pytest.approx(inside)


def test_what_the_rival_cannot_say_in_numbers_the_own_model_says(writer):
    rival = pipeline("regressor").model
    for i in range(3 * WARM_UP):
        rival.learn_one({"a": 1e-150 * i, "b": 1.0}, 1e-160 * (i % 7))
    line = pipeline("regressor", predictions=writer("rows.jsonl"))
    line.rival, line.may_have_rival = Rival(3, rival, Contest(always=True).choose), True
    for batch in batches_of([event("regressor", i) for i in range(N)], "jsonl", (20,)):
        line.process(batch)
    assert np.isfinite(line.scores.log_loss.total)
    assert not line.rival.failure
    assert line.model.n == N
