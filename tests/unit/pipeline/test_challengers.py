"""A pipeline with a challenger: both models learn as each would alone, and are scored over what both have learned."""

import copy
from contextlib import ExitStack

import numpy as np
import pytest

from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.challenger import Challenger
from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.pipeline.writing import PredictionWriter
from tests.unit.pipeline.streams import TARGETS, WARM_UP, event, pipeline, run

N = 4 * WARM_UP
FORMATS = {"regressor": "jsonl", "outputs": "arrow", "classifier": "csv"}


def events_of(kind):
    found = [event(kind, i) for i in range(N)]
    for i in range(5, N, 17):
        found[i] = {**found[i], **dict.fromkeys(TARGETS[kind])}  # predicted only
    found[N // 2]["a"] = 1e300  # rejected by both
    found[N // 3]["a"] = 1e4  # and by one whose range_factor is small
    return found


def with_challenger(line, other):
    line.challenger = Challenger(other, copy.deepcopy(line.scores))
    return line


@pytest.mark.parametrize("sizes", [(1, 7, 40), ()])
@pytest.mark.parametrize("kind", TARGETS)
def test_both_models_learn_and_score_as_each_would_alone(kind, sizes, tmp_path):
    events, options = events_of(kind), {"n_experts": 3, "warmup": 2 * WARM_UP, "seed": 5}
    with ExitStack() as opened:
        lines = [pipeline(kind), pipeline(kind, **options), with_challenger(pipeline(kind), pipeline(kind, **options))]
        results = []
        for i, line in enumerate(lines):
            sink = JsonlPredictions(tmp_path / f"{i}.jsonl")
            opened.callback(sink.close)
            line.predictions = PredictionWriter(sink, 0.8, gate=True)
            results.append(run(line, events, FORMATS[kind], sizes))
            sink.flush()
    own, other, both = lines
    challenger = both.challenger
    assert results[2] == results[0]
    assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "0.jsonl").read_bytes()
    assert both.model.state_digest() == own.model.state_digest()
    assert challenger.model.state_digest() == other.model.state_digest() != own.model.state_digest()
    assert (challenger.failure, challenger.missed) == ("", 0)
    for scores, expected in ((challenger.champion_scores, own.scores), (challenger.pipeline.scores, other.scores)):
        for name, means in scores.means().items():
            assert means == pytest.approx(expected.means()[name], rel=1e-12)


def test_an_event_that_one_of_them_rejects_is_in_the_scores_of_neither():
    events = events_of("regressor")
    alone = pipeline("regressor")
    expected = run(alone, events)
    line = with_challenger(pipeline("regressor"), pipeline("regressor", range_factor=100.0))
    assert run(line, events, sizes=(13,)) == expected
    challenger = line.challenger
    assert line.model.n - challenger.model.n == challenger.missed == 1
    learned = [held["a"] for held in events if held["y"] is not None and held["a"] < 1e300]
    kept = np.delete(expected.losses, learned.index(1e4))
    assert challenger.champion_scores.log_loss.count == len(kept) == challenger.pipeline.scores.log_loss.count
    assert challenger.champion_scores.log_loss.means()["running"] == pytest.approx(kept.mean())
    # The other way round it learns what the champion rejects, as it would alone.
    line = with_challenger(pipeline("regressor", range_factor=100.0), pipeline("regressor"))
    run(line, events)
    assert line.challenger.model.state_digest() == alone.model.state_digest()
    assert (line.challenger.missed, line.challenger.champion_scores.log_loss.count) == (0, len(kept))


def test_a_challenger_that_fails_does_not_keep_the_champion_from_learning(monkeypatch, caplog):
    events, line = events_of("regressor"), with_challenger(pipeline("regressor"), pipeline("regressor", n_experts=1))
    expected = run(pipeline("regressor"), events)
    learn, other = MixtureOfExperts.learn_rows, line.challenger.model

    def fail(model, *arguments, **options):
        if model is other and model.n > 20:
            raise KeyError("gone")
        return learn(model, *arguments, **options)

    monkeypatch.setattr(MixtureOfExperts, "learn_rows", fail)
    assert run(line, events, sizes=(10,)) == expected
    assert line.challenger.failure == "KeyError: 'gone'"
    (said,) = [record for record in caplog.records if getattr(record, "event", "") == "challenger_failed"]
    assert said.exc_info
