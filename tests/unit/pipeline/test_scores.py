"""Scores are those of predictions made before learning, over the whole stream, a window, and with a fading memory."""

import json
import math

import numpy as np
import pytest

from streammoe.persistence import decode, encode
from streammoe.pipeline.scores import (
    AVERAGES,
    HORIZON,
    LEAST_PROBABILITY,
    WINDOW,
    Average,
    ClassificationScores,
    PrequentialScores,
)

N, M = 400, 4


def updated(values, cuts=()):
    average = Average()
    for part in np.split(values, cuts):
        average.update(part)
    return average.means()


def test_averages_are_of_all_values_of_the_latest_and_weighed_by_age():
    assert Average().means() == pytest.approx(dict.fromkeys(AVERAGES, math.nan), nan_ok=True)
    assert updated(np.full(1, 3.0)) == dict.fromkeys(AVERAGES, pytest.approx(3.0))
    values = np.random.default_rng(0).normal(size=WINDOW + 2 * HORIZON)
    whole = updated(values)
    assert whole["running"] == pytest.approx(values.mean())
    assert whole["window"] == pytest.approx(values[-WINDOW:].mean())
    ages = np.arange(len(values))[::-1]
    assert whole["exponential"] == pytest.approx(np.average(values, weights=np.exp(-ages / HORIZON)))
    for cuts in ([5, 900, WINDOW - 1, WINDOW + 1], [0, 0, 2500], list(range(len(values)))):
        assert updated(values, cuts) == pytest.approx(whole, rel=1e-9)


# --- numbers and classes --------------------------------------------------------------------------------------------


def numbers(outputs):
    """Return scores and what they are updated with: losses, predictions and targets."""
    rng = np.random.default_rng(outputs)
    Y = rng.normal(loc=np.array([1.0, -5.0, 100.0])[:outputs], scale=3.0, size=(N, outputs))
    return PrequentialScores(outputs), rng.normal(size=N), Y + rng.normal(size=(N, outputs)), Y


def classes():
    """The same of classes that become known one after the other: a prediction knows those of the events before."""
    rng = np.random.default_rng(11)
    given = np.minimum(rng.integers(0, M, N), np.arange(N) // 5)
    given = np.array([list(dict.fromkeys(given.tolist())).index(c) for c in given.tolist()])
    probabilities = np.zeros((N, M))
    for i in range(N):
        known = len(set(given[:i].tolist()))
        if known:
            probabilities[i, :known] = rng.dirichlet(np.ones(known))
    return ClassificationScores(), rng.exponential(size=N), probabilities, given[:, None].astype(float)


STREAMS = {"one output": lambda: numbers(1), "three outputs": lambda: numbers(3), "classes": classes}


def scored(name, cuts=()):
    scores, *events = STREAMS[name]()
    for part in np.split(np.arange(N), cuts):
        scores.update(*(array[part] for array in events))
    return scores, *events


def kept(scores):
    """All that a checkpoint keeps of them."""
    return scores.to_json(), {name: array.tobytes() for name, array in scores.arrays().items()}


@pytest.mark.parametrize("outputs", [1, 3])
def test_each_output_has_an_error_and_the_baseline_predicts_the_mean_of_the_targets_before(outputs):
    scores, losses, predictions, Y = scored("one output" if outputs == 1 else "three outputs", [1, 7, 100])
    assert scores.log_loss.means()["running"] == pytest.approx(losses.mean())
    means = np.array([Y[:i].mean(axis=0) if i else np.zeros(outputs) for i in range(N)])
    for found, expected in ((scores.rmse, predictions), (scores.baseline_rmse, means)):
        errors = np.sqrt(np.mean((Y - expected) ** 2, axis=0))
        assert [found(q)["running"] for q in range(outputs)] == pytest.approx(errors)
        assert found()["running"] == pytest.approx(np.sqrt(np.mean(errors**2)))


def test_hits_are_those_of_the_predictions_and_the_baseline_counts_classes():
    scores, losses, probabilities, Y = scored("classes", [1, 7, 100])
    assert scores.log_loss.means()["running"] == pytest.approx(losses.mean())
    given = Y[:, 0].astype(int).tolist()
    hits = [p.any() and p.argmax() == c for p, c in zip(probabilities, given, strict=True)]
    assert scores.accuracy()["running"] == pytest.approx(np.mean(hits))
    counts, hits, losses = {}, [], []
    for c in given:
        most = max(counts.values(), default=0)
        hits.append(bool(counts) and min(k for k in counts if counts[k] == most) == c)
        losses.append(-math.log((counts.get(c, 0) + 1) / (sum(counts.values()) + len(counts) + 1)))
        counts[c] = counts.get(c, 0) + 1
    assert scores.baseline_accuracy()["running"] == pytest.approx(np.mean(hits))
    assert scores.baseline_log_loss.means()["running"] == pytest.approx(np.mean(losses))


@pytest.mark.parametrize("name", STREAMS)
def test_cuts_show_in_rounding_only_and_a_restart_in_nothing(name):
    whole, *events = scored(name)
    for cuts in ([1, 2, 3], list(range(N)), [0, 200, N]):
        cut = scored(name, cuts)[0]
        for score, average in cut.averages.items():
            assert average.means() == pytest.approx(whole.averages[score].means(), rel=1e-9)
    for scores in (whole, STREAMS[name]()[0]):
        found = decode(encode(scores.arrays(), {"scores": scores.to_json()}), "here")
        again = type(scores).restore(found.metadata["scores"], found.arrays)
        for either in (scores, again):
            for _ in range(WINDOW // N + 1):
                either.update(*events)
        assert kept(again) == kept(scores)
        assert again.summary() == scores.summary()


def test_scores_from_before_there_were_several_outputs_continue():
    scores = scored("one output")[0]
    old = scores.to_json()
    (old["target_sum"],) = old.pop("target_sums")
    assert kept(PrequentialScores.restore(old, scores.arrays())) == kept(scores)


def test_targets_as_large_as_are_let_through_stay_finite():
    scores = PrequentialScores()
    scores.update(np.zeros(2), np.zeros((2, 1)), np.array([[1e50], [-1e50]]))
    assert scores.rmse()["running"] == pytest.approx(1e50)
    json.dumps(scores.to_json(), allow_nan=False)


def test_a_class_before_any_was_known_or_that_seemed_impossible_is_no_hit_and_costs_a_finite_loss():
    scores = ClassificationScores()
    assert scores.summary() == {"accuracy": None, "log_loss": None, "baseline_accuracy": None}
    scores.update(np.array([1.0]), np.zeros((1, 1)), np.zeros((1, 1)))
    assert scores.summary() == {"accuracy": 0.0, "log_loss": 1.0, "baseline_accuracy": 0.0}
    before = kept(scores)
    scores.update(np.empty(0), np.empty((0, 5)), np.empty((0, 1)))
    assert kept(scores) == before
    scores.update(np.array([0.0, math.inf]), np.array([[1.0, 0.0, 0.0, 0.0]] * 2), np.array([[0.0], [3.0]]))
    assert scores.log_loss.means()["running"] == pytest.approx((1 - math.log(LEAST_PROBABILITY)) / 3)
    assert scores.accuracy()["running"] == pytest.approx(1 / 3)
