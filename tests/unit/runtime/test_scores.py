import json
import math

import numpy as np
import pytest

from streammoe.persistence import decode, encode
from streammoe.runtime.scores import AVERAGES, HORIZON, WINDOW, Average, PrequentialScores

RNG = np.random.default_rng(5)


def updated(values, cuts=()):
    average = Average()
    for part in np.split(values, cuts):
        average.update(part)
    return average


def test_nothing_is_known_before_the_first_value():
    assert all(math.isnan(mean) for mean in Average().means().values())
    assert Average().means().keys() == set(AVERAGES)


def test_the_running_mean_is_the_mean():
    values = RNG.normal(size=500)
    assert updated(values).means()["running"] == pytest.approx(values.mean())


def test_the_exponential_mean_weighs_each_value_by_its_age():
    values = RNG.normal(size=3 * HORIZON)
    weights = np.exp(-np.arange(len(values))[::-1] / HORIZON)
    assert updated(values).means()["exponential"] == pytest.approx(np.average(values, weights=weights))


def test_the_exponential_mean_of_equal_values_is_that_value_from_the_first_one_on():
    assert updated(np.full(1, 3.0)).means()["exponential"] == pytest.approx(3.0)


def test_the_window_holds_the_latest_values_only():
    values = np.arange(WINDOW + 700.0)
    assert updated(values).means()["window"] == pytest.approx(values[-WINDOW:].mean())
    assert updated(values, [5, 900, WINDOW - 1, WINDOW + 1]).means()["window"] == updated(values).means()["window"]


def test_cuts_show_in_rounding_only():
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


def test_errors_are_those_of_the_predictions():
    scores, losses, predictions, targets = scores_of(cuts=[7, 100])
    assert scores.rmse()["running"] == pytest.approx(np.sqrt(np.mean((targets - predictions) ** 2)))
    assert scores.log_loss.means()["running"] == pytest.approx(losses.mean())


def test_the_baseline_predicts_the_mean_of_the_targets_before_each():
    scores, _, _, targets = scores_of(cuts=[1, 2, 50])
    before = [targets[:i].mean() if i else 0.0 for i in range(len(targets))]
    assert scores.baseline_rmse()["running"] == pytest.approx(np.sqrt(np.mean((targets - before) ** 2)))


def test_an_empty_update_changes_nothing():
    scores, *_ = scores_of()
    before = kept(scores)
    scores.update(np.empty(0), np.empty((0, 1)), np.empty((0, 1)))
    assert kept(scores) == before


def kept(scores):
    """All that a checkpoint keeps of them."""
    return scores.to_json(), {name: array.tobytes() for name, array in scores.arrays().items()}


def through_a_checkpoint(scores):
    found = decode(encode(scores.arrays(), {"scores": scores.to_json()}), "here")
    return PrequentialScores.restore(found.metadata["scores"], found.arrays)


@pytest.mark.parametrize("n", [1, 300, WINDOW + 50])
def test_scores_go_on_from_a_checkpoint_to_the_last_bit(n):
    scores, *_ = scores_of(n)
    again = through_a_checkpoint(scores)
    more = RNG.normal(size=(400, 1))
    for either in (scores, again):
        either.update(more[:, 0], more, more + 1.0)
    assert kept(again) == kept(scores)
    assert again.rmse() == scores.rmse()


def test_fresh_ones_go_through_a_checkpoint_too():
    assert kept(through_a_checkpoint(PrequentialScores())) == kept(PrequentialScores())


def test_targets_as_large_as_are_let_through_stay_finite():
    scores = PrequentialScores()
    scores.update(np.zeros(2), np.zeros((2, 1)), np.array([[1e50], [-1e50]]))
    assert scores.rmse()["running"] == pytest.approx(1e50)
    json.dumps(scores.to_json(), allow_nan=False)
