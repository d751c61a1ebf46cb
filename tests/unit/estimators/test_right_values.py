"""Models predict what twins without the trouble do: still columns, lone errors, first targets, growth, weights."""

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.errors import InvalidEvent


def started(n_columns, kind=MoERegressor, **options):
    model = kind(**options)
    model.set_columns([f"x{j}" for j in range(n_columns)])
    return model


def followed(X, y, w=1.0, **options):
    """A model that has learned a stream, and what it predicted of each event before it learned it."""
    model = started(X.shape[1], **options)
    found = model.learn_rows(X.copy(), y[:, None].copy(), np.full(len(X), w))
    assert found.learned.all()
    return model, found.predictions[:, 0]


def rmse(predicted, right):
    return float(np.sqrt(np.mean((predicted - right) ** 2)))


def line(n, seed=0):
    """Inputs, what a line makes of them, and targets with noise of 0.1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    right = 1.0 + X @ [2.0, -1.0]
    return X, right, right + 0.1 * rng.normal(size=n)


# -- Columns that have not varied --------------------------------------------------------------------------------------

AT = 600


def with_still(X, before, after, times, noise):
    """The inputs with columns of one value, give or take rounding, which become another one."""
    value = np.where(np.arange(len(X)) < AT, before, after)[:, None]
    return np.hstack([X, value * (1.0 + noise * np.random.default_rng(1).normal(size=(len(X), times)))])


@pytest.mark.parametrize(
    ("before", "after", "noise", "times"),
    [(1.1, 1.4, 0.0, 5), (93.994, 92.201, 1e-12, 1), (-12_345_678.9, -12_345_677.0, 0.0, 1)],
)
def test_a_column_that_changes_for_the_first_time_costs_what_1_to_1_5_costs(before, after, noise, times):
    X, _, y = line(AT + 200)
    _, clean = followed(with_still(X, 1.0, 1.5, times, 0.0), y)
    _, predicted = followed(with_still(X, before, after, times, noise), y)
    assert rmse(predicted[AT:], y[AT:]) <= 1.15 * rmse(clean[AT:], y[AT:])


@pytest.mark.parametrize(
    ("kind", "n_experts", "noise"), [(MoERegressor, 1, 1e-6), (MoERegressor, 4, 1e-4), (MoEClassifier, 2, 1e-6)]
)
def test_a_column_that_hardly_varied_does_no_harm_where_it_jumps(kind, n_experts, noise):
    X, right, y = line(AT + 400)
    if kind is MoEClassifier:
        y = (right > 1.0).astype(int)
    losses = []
    for after in (1.1, 1.4):
        model = kind(n_experts, warmup=400)
        given = with_still(X, 1.1, after, 1, noise)
        losses.append(model.learn_array(given, y)[AT:])
    assert losses[1].mean() <= losses[0].mean() + 0.05
    assert losses[1].max() <= losses[0].max() + 3.0


# -- Lone errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e9, -1e10])
def test_a_column_far_from_0_says_as_much_as_one_around_it(offset):
    numbers, model = np.random.default_rng(3).normal(size=600), MoERegressor()
    for number in numbers.tolist():
        model.learn_one({"a": offset + number}, 2.0 * number)
    for number in (-2.0, -0.5, 0.0, 0.1, 0.5, 2.0):
        assert model.predict_one({"a": offset + number}) == pytest.approx(2.0 * number, abs=0.02)


@pytest.mark.parametrize("is_curved", [False, True])
def test_one_wrong_label_after_many_changes_hardly_any_label(is_curved):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_500, 3))
    if is_curved:
        y, sure = (X[:, 0] ** 2 + X[:, 1] ** 2 > 1.4).astype(int), np.array([[3.0, 2.0, 1.0]])
    else:
        y = (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-6.0 * X @ [1.0, -1.0, 0.5]))).astype(int)
        sure = np.array([[3.0, -3.0, 1.0]])
    T, right = X[-1_000:], y[-1_000:]
    accuracies = []
    for label in (1, 0):
        model = MoEClassifier(4, warmup=400)
        model.learn_array(X[:-1_000], y[:-1_000])
        model.learn_array(sure, np.array([label]))
        accuracies.append(np.mean(model.predict_array(T) == right))
    assert accuracies[1] >= accuracies[0] - 0.01


# -- The floor ---------------------------------------------------------------------------------------------------------


def test_where_inputs_say_nothing_the_running_mean_is_predicted():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(2_000, 10)), 5.0 + rng.normal(size=2_000)
    model, predicted = followed(X, y, n_experts=2, warmup=400)
    assert rmse(predicted[1_000:], 5.0) <= 0.02  # that of the running mean is 0.01, that of all inputs 0.1
    assert model.member_weights["floor"] > 0.9


# -- Beyond the range --------------------------------------------------------------------------------------------------


def load_of_a_day(night=500, day=400):
    """Voltage and current, which is low at night and rises by day, and the power."""
    rng = np.random.default_rng(0)
    current = np.append(rng.uniform(1.8, 2.3, night), np.linspace(2.3, 15.0, day) + rng.uniform(-0.2, 0.2, day))
    voltage = rng.normal(230.0, 1.0, night + day)
    return np.column_stack([voltage, current]), current * voltage / 1_000.0


def test_a_linear_relation_goes_on_where_a_load_rises():
    X, y = load_of_a_day()
    last = slice(-len(y) // 4, None)
    _, predicted = followed(X, y)
    assert rmse(predicted[last], y[last]) <= 0.02


@pytest.mark.parametrize("trend", [0.001, 0.005])
def test_a_linear_relation_goes_on_where_an_input_grows_for_ever(trend):
    X, _, y = line(3_000)
    rise = trend * np.arange(3_000)
    X[:, 0] += rise
    y += 2.0 * rise
    _, predicted = followed(X, y)
    last = slice(-750, None)
    assert rmse(predicted[last], y[last]) <= 0.13


def test_single_inputs_far_out_stay_harmless():
    X, _, y = line(2_000)
    _, clean = followed(X, y)
    wrong = np.arange(1_000, 2_000, 100)
    X[wrong, 0] = 1e4
    _, predicted = followed(X, y)
    others = np.setdiff1d(np.arange(1_000, 2_000), wrong)
    assert rmse(predicted[others], y[others]) <= 1.1 * rmse(clean[others], y[others])
    assert np.abs(predicted[wrong]).max() <= np.abs(y).max() + 2.0


# -- Weights -----------------------------------------------------------------------------------------------------------

N = 700


def troubled():
    """A stream with a still column that jumps, an input that leaves its range, a wrong target and an absurd input."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(N, 2)), np.where(np.arange(N) < 500, 1.1, 1.4)])
    X[550:, 0] += np.linspace(0.0, 9.0, N - 550)
    y = 1.0 + X @ [2.0, -1.0, 3.0] + 0.1 * rng.normal(size=N)
    X[620, 1], y[600] = 1e4, 40.0
    return X, y


def learned(X, y, w, kind=MoERegressor):
    model = started(X.shape[1], kind, warmup=200)
    model.learn_array(X, y, w=w)
    return model


@pytest.mark.parametrize(("kind", "weight"), [(MoERegressor, 1e-6), (MoEClassifier, 1e3)])
def test_weights_that_are_all_equal_change_no_bit_of_what_is_learned(kind, weight):
    X, y = troubled()
    y = y if kind is MoERegressor else np.where(y > 0.0, "high", "low")
    plain, whole = (learned(X, y, np.full(N, each), kind) for each in (1.0, weight))
    arrays = plain.arrays()
    found = {name for name, array in whole.arrays().items() if array.tobytes() != arrays[name].tobytes()}
    assert found == {"weights.mean"}
    assert whole.arrays()["weights.mean"] == weight


# -- Beginnings, and classes that come back ----------------------------------------------------------------------------


def test_powers_of_the_first_inputs_do_not_leave_the_range_of_the_targets():
    for seed, degree in ((0, 3), (1, 5)):
        rng = np.random.default_rng(seed)
        X = rng.standard_t(2.0, size=(60, 4))
        y = X @ [1.0, 2.0, -1.0, 0.5] + 0.3 * rng.normal(size=60)
        model = MoERegressor(degree=degree)
        for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
            x = dict(zip("abcd", row, strict=True))
            if i > 3:
                low, high = y[:i].min(), y[:i].max()
                assert low - (high - low) <= model.predict_one(x) <= high + (high - low)
            model.learn_one(x, target)


def test_a_class_that_was_away_for_hundreds_of_events_is_known_when_it_comes_back():
    rng = np.random.default_rng(6)
    centers, n = np.array([[3.0, 0.0], [0.0, 3.0], [-3.0, -3.0]]), 2_000
    y = rng.integers(0, 3, n)
    y[1_200:1_600][y[1_200:1_600] == 2] = 0
    X = centers[y] + rng.normal(size=(n, 2))
    model = MoEClassifier()
    model.learn_array(X[:1_600], y[:1_600])
    back = np.flatnonzero(y[1_600:] == 2)[:20] + 1_600
    labels = np.array(model.output_names)
    assert (labels[model.predict_proba_array(X[back]).argmax(axis=1)] == 2).mean() >= 0.95


# -- Frames ------------------------------------------------------------------------------------------------------------


def test_targets_in_another_order_than_the_rows_of_their_frame_are_rejected_and_positions_are_taken_as_they_are():
    X, y = pd.DataFrame({"x": np.arange(20.0)}), pd.Series(np.arange(20.0))
    other = y.sample(frac=1, random_state=0)
    labels = MoEClassifier(), (y > 10).astype(str)
    for model, targets in ((MoERegressor(), y), labels):
        with pytest.raises(InvalidEvent, match="y: has the rows of X in another order"):
            model.learn_many(X, targets[other.index])
        with pytest.raises(InvalidEvent, match="w: has the rows"):
            model.learn_many(X, targets, w=other + 1.0)
        assert model.n == 0
        model.learn_many(X, targets.reset_index(drop=True).rename(lambda i: 100 + i))
        assert model.n == 20
