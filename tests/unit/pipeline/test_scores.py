"""Scores are those of predictions made before learning, over the whole stream, a window, and with a fading memory."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from streammoe.distributions import Gaussian
from streammoe.kernels.state import Trace
from streammoe.persistence import decode, encode
from streammoe.pipeline.scores import (
    AVERAGES,
    HORIZON,
    MIN_PROBABILITY,
    WINDOW,
    Average,
    ClassificationScores,
    PrequentialScores,
    Spread,
)

N, M = 400, 4


def updated(values, cuts=()):
    average = Average()
    for part in np.split(values, cuts):
        average.update(part)
    return average.means()


def test_averages_are_of_all_values_of_the_latest_and_weighed_by_age():
    assert Average().means() == pytest.approx(dict.fromkeys(AVERAGES, math.nan), nan_ok=True)
    values = np.random.default_rng(0).normal(size=WINDOW + 2 * HORIZON)
    ages = np.arange(len(values))[::-1]
    expected = {
        "running": values.mean(),
        "window": values[-WINDOW:].mean(),
        "exponential": np.average(values, weights=np.exp(-ages / HORIZON)),
    }
    for cuts in ((), [5, 900, WINDOW - 1, WINDOW + 1], [0, 0, 2500]):
        assert updated(values, cuts) == pytest.approx(expected)


# --- numbers and classes --------------------------------------------------------------------------------------------


def numbers():
    """Return scores of three outputs and what they are updated with: losses, predictions and targets."""
    rng = np.random.default_rng(3)
    Y = rng.normal(loc=[1.0, -5.0, 100.0], scale=3.0, size=(N, 3))
    predictions = Y + rng.normal(size=(N, 3))
    return PrequentialScores(3), rng.normal(size=N), predictions, Y, spread_of(predictions)


def spread_of(means):
    """Normal distributions with these means; the first event has none."""
    n = len(means)
    none = np.empty((n, 3, 0))
    trace = Trace(np.ones((n, 1)), means[:, None], np.broadcast_to([1.0, 4.0, 0.25], (n, 1, 3)), none, none[..., None])
    trace.shares[0] = 0.0
    return trace


def classes():
    """The same of classes that become known one after the other: a prediction knows those of the events before."""
    rng = np.random.default_rng(11)
    given = [i // 5 if i % 5 == 0 and i // 5 < M else int(rng.integers(min(1 + i // 5, M))) for i in range(N)]
    probabilities = np.zeros((N, M))
    for i in range(1, N):
        known = len(set(given[:i]))
        probabilities[i, :known] = rng.dirichlet(np.ones(known))
    return ClassificationScores(), rng.exponential(size=N), probabilities, np.array(given, float)[:, None], None


STREAMS = {"three outputs": numbers, "classes": classes}


def scored(name, cuts=()):
    scores, *events, trace = STREAMS[name]()
    for part in np.split(np.arange(N), cuts):
        spread = None if trace is None else Spread(Trace(*(array[part] for array in trace)), Gaussian())
        scores.update(*(array[part] for array in events), spread)
    return scores, *events


def test_intervals_are_scored_where_something_was_predicted():
    scores, _, means, Y = scored("three outputs", [1, 7, 100])
    at = np.arange(1, N)  # of the first one nothing was predicted
    for (score, q, level), average in scores.intervals.items():
        half = norm.ppf(0.5 + 0.5 * level) * [1.0, 2.0, 0.5][q]
        inside = np.abs(Y[at, q] - means[at, q]) <= half
        expected = inside.mean() if score == "coverage" else 2.0 * half
        assert average.means()["running"] == pytest.approx(expected)


def kept(scores):
    """All that a checkpoint keeps of them."""
    return scores.to_json(), {name: array.tobytes() for name, array in scores.arrays().items()}


def test_scores_are_those_of_the_predictions_and_the_baselines_know_only_what_came_before():
    scores, losses, predictions, Y = scored("three outputs", [1, 7, 100])
    means = np.array([Y[:i].mean(axis=0) if i else np.zeros(3) for i in range(N)])
    errors = np.sqrt(np.mean((Y - predictions) ** 2, axis=0))
    assert [scores.rmse(q)["running"] for q in range(3)] == pytest.approx(errors)
    expected = {"rmse": predictions, "baseline_rmse": means}
    expected = {name: np.sqrt(np.mean((Y - said) ** 2)) for name, said in expected.items()}
    assert scores.summary() == pytest.approx({**expected, "log_loss": losses.mean()})
    scores, losses, probabilities, Y = scored("classes", [1, 7, 100])
    counts, hits, usual = np.zeros(M), [], []
    for said, c in zip(probabilities, Y[:, 0].astype(int).tolist(), strict=True):
        hits.append(said.any() and said.argmax() == c)
        usual.append(counts.any() and counts.argmax() == c)
        counts[c] += 1
    expected = {"accuracy": np.mean(hits), "baseline_accuracy": np.mean(usual), "log_loss": losses.mean()}
    assert scores.summary() == pytest.approx(expected)


@pytest.mark.parametrize("name", STREAMS)
def test_cuts_show_in_rounding_only_and_a_restart_in_nothing(name):
    whole, *events = scored(name)
    cut = scored(name, [0, 1, 3, 200, N])[0]
    for score, average in cut.averages.items():
        assert average.means() == pytest.approx(whole.averages[score].means(), rel=1e-9)
    found = decode(encode(whole.arrays(), {"scores": whole.to_json()}), "here")
    again = STREAMS[name]()[0].restore(found.metadata["scores"], found.arrays)
    for either in (whole, again):
        for _ in range(WINDOW // N + 1):
            either.update(*events)
    assert kept(again) == kept(whole)
    assert again.summary() == whole.summary()


def test_a_class_before_any_was_known_or_that_seemed_impossible_is_no_hit_and_costs_a_finite_loss():
    scores = ClassificationScores()
    assert scores.summary() == {"accuracy": None, "log_loss": None, "baseline_accuracy": None}
    scores.update(np.array([1.0]), np.zeros((1, 1)), np.zeros((1, 1)))
    assert scores.summary() == {"accuracy": 0.0, "log_loss": 1.0, "baseline_accuracy": 0.0}
    scores.update(np.array([0.0, math.inf]), np.array([[1.0, 0.0, 0.0, 0.0]] * 2), np.array([[0.0], [3.0]]))
    assert scores.log_loss.means()["running"] == pytest.approx((1 - math.log(MIN_PROBABILITY)) / 3)
    assert scores.means()["accuracy"]["running"] == pytest.approx(1 / 3)
