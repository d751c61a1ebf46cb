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

RNG = np.random.default_rng(5)


def updated(values, cuts=()):
    average = Average()
    for part in np.split(values, cuts):
        average.update(part)
    return average


def test_the_running_mean_is_the_mean_and_the_exponential_one_weighs_each_value_by_its_age():
    assert Average().means() == pytest.approx(dict.fromkeys(AVERAGES, math.nan), nan_ok=True)
    values = RNG.normal(size=3 * HORIZON)
    assert updated(values).means()["running"] == pytest.approx(values.mean())
    weights = np.exp(-np.arange(len(values))[::-1] / HORIZON)
    assert updated(values).means()["exponential"] == pytest.approx(np.average(values, weights=weights))


def test_the_window_holds_the_latest_values_only():
    values = np.arange(WINDOW + 700.0)
    assert updated(values).means()["window"] == pytest.approx(values[-WINDOW:].mean())
    assert updated(values, [5, 900, WINDOW - 1, WINDOW + 1]).means()["window"] == updated(values).means()["window"]


def test_cuts_show_in_rounding_only():
    assert updated(np.full(1, 3.0)).means()["exponential"] == pytest.approx(3.0)
    values = RNG.normal(size=2500)
    whole = updated(values).means()
    for cuts in ([1, 2, 3], [0, 0, 2500], list(range(2500)), [1250]):
        assert updated(values, cuts).means() == pytest.approx(whole, rel=1e-9)


def scores_of(n=300, cuts=()):
    targets = RNG.normal(loc=5.0, size=(n, 1))
    predictions = targets + 0.1 * RNG.normal(size=(n, 1))
    losses = RNG.normal(size=n)
    scores = PrequentialScores()
    for part in np.split(np.arange(n), cuts):
        scores.update(losses[part], predictions[part], targets[part])
    return scores, losses, predictions[:, 0], targets[:, 0]


def test_errors_are_those_of_the_predictions_and_the_baseline_predicts_the_mean_of_the_targets_before():
    scores, losses, predictions, targets = scores_of(cuts=[1, 7, 100])
    assert scores.rmse()["running"] == pytest.approx(np.sqrt(np.mean((targets - predictions) ** 2)))
    assert scores.log_loss.means()["running"] == pytest.approx(losses.mean())
    before = [targets[:i].mean() if i else 0.0 for i in range(len(targets))]
    assert scores.baseline_rmse()["running"] == pytest.approx(np.sqrt(np.mean((targets - before) ** 2)))
    assert scores.rmse(0) == scores.rmse()
    before = kept(scores)
    scores.update(np.empty(0), np.empty((0, 1)), np.empty((0, 1)))
    assert kept(scores) == before


def kept(scores):
    """All that a checkpoint keeps of them."""
    return scores.to_json(), {name: array.tobytes() for name, array in scores.arrays().items()}


def through_a_checkpoint(scores):
    found = decode(encode(scores.arrays(), {"scores": scores.to_json()}), "here")
    return type(scores).restore(found.metadata["scores"], found.arrays)


def test_scores_continue_from_a_checkpoint_to_the_last_bit():
    more = RNG.normal(size=(400, 1))
    for scores in (PrequentialScores(), *(scores_of(n)[0] for n in (1, 300, WINDOW + 50))):
        again = through_a_checkpoint(scores)
        for either in (scores, again):
            either.update(more[:, 0], more, more + 1.0)
        assert kept(again) == kept(scores)
        assert again.rmse() == scores.rmse()


def test_targets_as_large_as_are_let_through_stay_finite():
    scores = PrequentialScores()
    scores.update(np.zeros(2), np.zeros((2, 1)), np.array([[1e50], [-1e50]]))
    assert scores.rmse()["running"] == pytest.approx(1e50)
    json.dumps(scores.to_json(), allow_nan=False)


# --- several outputs ------------------------------------------------------------------------------------------------


def test_each_output_has_an_error_of_its_own():
    Y = RNG.normal(loc=[1.0, -5.0, 100.0], scale=[1.0, 2.0, 10.0], size=(200, 3))
    predictions = Y + RNG.normal(scale=[0.1, 0.5, 3.0], size=(200, 3))
    scores = PrequentialScores(3)
    for part in np.split(np.arange(200), [1, 50]):
        scores.update(np.zeros(len(part)), predictions[part], Y[part])
    means = np.array([Y[:i].mean(axis=0) if i else np.zeros(3) for i in range(200)])
    for found, expected in ((scores.rmse, predictions), (scores.baseline_rmse, means)):
        errors = np.sqrt(np.mean((Y - expected) ** 2, axis=0))
        assert [found(q)["running"] for q in range(3)] == pytest.approx(errors)
        assert found()["running"] == pytest.approx(np.sqrt(np.mean(errors**2)))
    again = through_a_checkpoint(scores)
    for either in (scores, again):
        either.update(np.ones(200), Y, predictions)
    assert kept(again) == kept(scores)
    assert again.rmse(2) == scores.rmse(2)


def test_scores_from_before_there_were_several_outputs_continue():
    scores, *_ = scores_of()
    old = scores.to_json()
    (old["target_sum"],) = old.pop("target_sums")
    again = PrequentialScores.restore(old, scores.arrays())
    assert kept(again) == kept(scores)


# --- classes --------------------------------------------------------------------------------------------------------


def classified(n=400, cuts=(), M=4):
    """Classes that become known one after the other; rows of predictions know those of the events before."""
    rng = np.random.default_rng(11)
    classes = np.minimum(rng.integers(0, M, n), np.arange(n) // 5)
    classes = np.array([list(dict.fromkeys(classes.tolist())).index(c) for c in classes.tolist()])
    known = np.array([len(set(classes[:i].tolist())) for i in range(n)])
    probabilities = np.zeros((n, M))
    for i in range(n):
        probabilities[i, : known[i]] = rng.dirichlet(np.ones(known[i])) if known[i] else 0.0
    given = probabilities[np.arange(n), classes]
    # What a model says of a class that it had not met: rare, not impossible.
    losses = -np.log(np.where(given > 0.0, given, 1.0 / (known + 1)))
    scores = ClassificationScores()
    for part in np.split(np.arange(n), cuts):
        # A model has made room for every class of a batch by its end.
        M = int(classes[part].max(initial=-1)) + 1
        scores.update(
            losses[part], probabilities[part, : max(M, int(known[part].max(initial=0)))], column(classes[part])
        )
    return scores, classes, probabilities, losses


def column(classes):
    return np.asarray(classes, np.float64)[:, None]


def test_losses_and_hits_are_those_of_the_predictions():
    scores, classes, probabilities, losses = classified(cuts=[1, 7, 100])
    assert scores.log_loss.means()["running"] == pytest.approx(losses.mean())
    hits = [p.any() and p.argmax() == c for p, c in zip(probabilities, classes, strict=True)]
    assert scores.accuracy()["running"] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize("n", [1, 400])
def test_the_baseline_counts_classes(n):
    scores, classes, *_ = classified(n)
    counts, hits, losses = {}, [], []
    for c in classes.tolist():
        most = max(counts.values(), default=0)
        hits.append(bool(counts) and min(k for k in counts if counts[k] == most) == c)
        losses.append(-math.log((counts.get(c, 0) + 1) / (sum(counts.values()) + len(counts) + 1)))
        counts[c] = counts.get(c, 0) + 1
    assert scores.baseline_accuracy()["running"] == pytest.approx(np.mean(hits))
    assert scores.baseline_log_loss.means()["running"] == pytest.approx(np.mean(losses))


def test_cuts_show_in_rounding_of_class_scores_only():
    whole = classified()[0]
    for cuts in ([1, 2, 3], list(range(400)), [200]):
        cut = classified(cuts=cuts)[0]
        for name, average in cut.averages.items():
            assert average.means() == pytest.approx(whole.averages[name].means(), rel=1e-9)


def test_class_scores_continue_from_a_checkpoint_to_the_last_bit():
    scores, classes, probabilities, losses = classified()
    again = through_a_checkpoint(scores)
    for either in (scores, again):
        either.update(losses, np.hstack([probabilities, probabilities[:, :1]]) / 2, column(classes + 1))
    assert kept(again) == kept(scores)
    assert kept(through_a_checkpoint(ClassificationScores())) == kept(ClassificationScores())


def test_an_event_before_any_class_was_known_is_no_hit():
    scores = ClassificationScores()
    scores.update(np.array([1.0]), np.zeros((1, 1)), column([0]))
    assert scores.summary() == {"accuracy": 0.0, "log_loss": 1.0, "baseline_accuracy": 0.0}
    assert ClassificationScores().summary() == {"accuracy": None, "log_loss": None, "baseline_accuracy": None}


def test_a_class_that_nobody_expected_costs_a_finite_loss():
    scores = ClassificationScores()
    scores.update(np.array([0.0, math.inf]), np.array([[1.0, 0.0, 0.0, 0.0]] * 2), column([0, 3]))
    scores.update(np.empty(0), np.empty((0, 5)), np.empty((0, 1)))
    assert scores.log_loss.means()["running"] == pytest.approx(-math.log(LEAST_PROBABILITY) / 2)
    assert scores.accuracy()["running"] == 0.5
