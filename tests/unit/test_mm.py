"""Algorithm 1 without experts: its formula, its two worked examples, what it rejects, and its files.

One long file, as the module is.
"""

import copy
import math
import pickle

import numpy as np
import pytest

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.mm import IncrementalMM
from streammoe.options import Exponential
from streammoe.schedules import Constant, Power
from tests.pairs import pairwise_cases


def learn(model, X, y=None, weights=None):
    """Learn events one after the other."""
    targets = [None] * len(X) if y is None else y
    for x, target, weight in zip(X, targets, np.ones(len(X)) if weights is None else weights, strict=True):
        model.learn_one(x, target, weight)


# --- the formula ----------------------------------------------------------------------------------------------------


def squares_statistics(x, y, theta):
    """Least squares with a statistic that depends on θ, so that a wrong θ shows."""
    u = 1.0 / (1.0 + abs(y - x @ theta["slope"] - theta["level"]))
    row = np.append(x, 1.0)
    return {"gram": u * np.outer(row, row), "b": u * y * row}


def squares_maximize(s):
    solved = np.linalg.solve(s["gram"] + 0.1 * np.eye(3), s["b"])
    return {"slope": solved[:2], "level": solved[2]}


START = {"slope": np.zeros(2), "level": 0.5}
PRIOR = {"gram": np.diag([0.5, 1.0, 2.0]), "b": np.array([0.1, 0.0, -0.3])}


def events(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, X @ [1.0, -2.0] + 0.3 + rng.normal(size=n)


def fresh(**arguments):
    arguments = {"initial_parameters": START} | arguments
    return IncrementalMM(squares_statistics, squares_maximize, **arguments)


OPTIONS = {
    "schedule": [Power(0.6), Power(1.0, gamma0=0.5, offset=3), Constant(0.05)],
    "averaging": ["polyak", "decay", Exponential(0.02), None],
    "start": [
        {"min_events": 1},
        {"min_events": 7},
        {"initial_statistics": PRIOR},
        {"initial_statistics": PRIOR, "initial_parameters": None},
    ],
    "weighted": [False, True],
}


@pytest.mark.parametrize("options", pairwise_cases(**OPTIONS))
def test_iterates_averages_and_residual_are_their_formulas(options):
    schedule, averaging, start, weighted = options.values()
    model = fresh(schedule=schedule, averaging=averaging, **start)
    n = 60
    X, y = events(n)
    weights = np.random.default_rng(3).gamma(2.0, 0.5, size=n) if weighted else np.ones(n)
    learn(model, X, y, weights if weighted else None)

    s = start.get("initial_statistics")
    theta = START if "initial_parameters" not in start else squares_maximize(PRIOR)
    minimum = start.get("min_events", 0 if s else 1)
    average, m, pull, norm, entered = theta, 0, 0.0, 0.0, 0
    for i in range(n):
        seen = {name: weights[i] * block for name, block in squares_statistics(X[i], y[i], theta).items()}
        gamma = 1.0 / (i + 1) if i < minimum else schedule(i + 1)
        if s is None:
            s = seen
        else:
            if i >= minimum:
                entered += 1
                share = max(1.0 / entered, 1e-3)
                now = np.concatenate([(seen[name] - s[name]).ravel() for name in sorted(s)])
                pull = pull + share * (now - pull)
                norm += share * (np.linalg.norm(now) - norm)
            s = {name: s[name] + gamma * (seen[name] - s[name]) for name in s}
        if i + 1 < minimum:
            continue
        theta = squares_maximize(s)
        m += 1
        weight = {"polyak": 1.0 / m, "decay": 3.0 / (m + 2), Exponential(0.02): max(1.0 / m, 0.02), None: 1.0}[
            averaging
        ]
        if schedule.forgets and averaging in {"polyak", "decay"}:
            weight = max(weight, gamma)
        average = {name: average[name] + weight * (theta[name] - average[name]) for name in theta}

    assert model.n == n
    for found, expected in ((model.statistics, s), (model.last_iterate, theta), (model.parameters(), average)):
        for name, block in expected.items():
            np.testing.assert_allclose(found[name], block, rtol=1e-12, atol=1e-13)
    assert model.convergence_residual == pytest.approx(np.linalg.norm(pull) / norm, rel=1e-10)
    assert model.step_size == schedule(n + 1)


def test_steps_may_be_given_and_statistics_replaced():
    model = fresh(averaging=None)
    learn(model, *events(20))
    before = model.statistics
    model.step(PRIOR, gamma=0.25)
    assert model.n == 21
    expected = {name: before[name] + 0.25 * (PRIOR[name] - before[name]) for name in PRIOR}
    for name, block in expected.items():
        np.testing.assert_allclose(model.statistics[name], block, rtol=1e-12)
    residual = model.convergence_residual
    model.replace_statistics(PRIOR)
    assert (model.n, model.convergence_residual) == (21, residual)
    replaced = model.statistics
    model.step({name: 1e20 * block for name, block in PRIOR.items()}, gamma=0.3)
    model.step(PRIOR, gamma=1.0)
    for name, block in PRIOR.items():
        np.testing.assert_array_equal(replaced[name], block)
        np.testing.assert_array_equal(model.statistics[name], block)
    for name, block in squares_maximize(PRIOR).items():
        np.testing.assert_array_equal(model.parameters()[name], block)
    for gamma in (0.0, 1.5, math.nan, "1"):
        with pytest.raises(ConfigError):
            model.step(PRIOR, gamma=gamma)


# --- what is rejected -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("found", "error", "reason"), [(1e300, InvalidEvent, "poison"), ([1, 2], ConfigError, None)])
def test_parameters_that_cannot_be_used_leave_the_model_as_it_was(found, error, reason):
    model = IncrementalMM(lambda x, y, theta: x, lambda s: found if s > 2.0 else s, initial_parameters=0.0)
    learn(model, [1.0, 1.5])
    before = model.state_digest()
    for act in (lambda: model.learn_one(10.0), lambda: model.step(10.0), lambda: model.replace_statistics(10.0)):
        with pytest.raises(error) as caught:
            act()
        assert getattr(caught.value, "reason", None) == reason
    assert model.state_digest() == before


def test_what_the_functions_raise_comes_through_and_what_is_rejected_changes_nothing():
    model = fresh()
    X, y = events(20)
    learn(model, X, y)
    before = model.state_digest()

    with pytest.raises(TypeError):
        model.learn_one("text", 1.0)
    with pytest.raises(InvalidEvent) as rejected:
        model.learn_one(np.array([1e141, 1.0]), 1.0)
    assert rejected.value.reason == "out_of_range"
    for weight in (-1.0, math.nan):
        with pytest.raises(InvalidEvent):
            model.learn_one(X[0], y[0], weight)
    model.learn_one(X[0], y[0], 0.0)
    with pytest.raises(InvalidEvent):  # an event of weight 0 is checked, too
        model.learn_one(np.array([1.0, math.nan]), 1.0, 0.0)
    assert model.state_digest() == before


def test_the_state_cannot_be_changed_from_outside():
    kept = []

    def statistics(x, y, theta):
        kept.append(theta)
        return x

    start = np.zeros(2)
    model = IncrementalMM(statistics, lambda s: s, initial_parameters=start)
    start[0] = 9.0
    x = np.ones(2)
    model.learn_one(x)
    x[0] = 9.0
    before = model.state_digest()
    for array in (model.parameters(), model.last_iterate, model.statistics):
        array[:] = 7.0
    assert model.state_digest() == before
    assert kept[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="read-only"):
        kept[0][0] = 1.0


# --- copies and files -----------------------------------------------------------------------------------------------


def through_a_file(model, folder, **more):
    model.save(folder / "m")
    return IncrementalMM.load(folder / "m", statistics=squares_statistics, maximize=squares_maximize, **more)


@pytest.mark.parametrize(("way", "cut"), [("file", 0), ("copy", 3), ("pickle", 30), ("file", 30)])
def test_a_copy_continues_bit_for_bit(way, cut, tmp_path):
    start = {"min_events": 7, "averaging": "exponential"}
    X, y = events(60)
    whole, part = fresh(**start), fresh(**start)
    learn(whole, X, y)
    learn(part, X[:cut], y[:cut])
    ways = {
        "file": lambda model: through_a_file(model, tmp_path),
        "copy": copy.deepcopy,
        "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    }
    other = ways[way](part)
    before = part.state_digest()
    learn(other, X[cut:], y[cut:])
    assert part.state_digest() == before
    assert other.state_digest() == whole.state_digest()
    assert other.convergence_residual == whole.convergence_residual
    assert repr(other) == repr(whole)


def test_a_loaded_model_may_continue_with_another_schedule(tmp_path):
    X, y = events(60)
    model = fresh(schedule=Power(0.6))
    learn(model, X[:30], y[:30])
    changed = through_a_file(model, tmp_path, schedule=Constant(0.1))
    assert (changed.n, changed.step_size, changed.state_digest()) == (30, 0.1, model.state_digest())
    assert through_a_file(changed, tmp_path).step_size == 0.1
    with pytest.raises(ConfigError):
        through_a_file(changed, tmp_path, schedule=0.1)
