"""What counts as a jump of the loss, and what does not."""

import json

import numpy as np
import pytest

from benchmarks import tasks
from streammoe import MoEClassifier, MoERegressor, schedules
from streammoe.daemon.guards import KNOWN, LEAST, SHORTEST, WINDOWS, LossGuard

USUAL = KNOWN + 2
"""Windows of usual losses."""


def small(_):
    return 0.1


def noise(windows, mean=0.0, seed=0):
    return mean + 0.3 * np.random.default_rng(seed).normal(size=int(windows * SHORTEST))


def test_three_high_windows_in_a_row_are_a_jump():
    guard = LossGuard(small)
    assert guard.watch(noise(USUAL)) is None
    assert guard.watch(noise(WINDOWS - 1, LEAST + 0.5)) is None
    assert (guard.high, guard.sound) == (WINDOWS - 1, USUAL * SHORTEST)
    jump = guard.watch(noise(1, LEAST + 0.5))
    assert jump.loss == pytest.approx(LEAST + 0.5, abs=0.1)
    assert jump.usual == pytest.approx(0.0, abs=0.1)
    assert (jump.events, jump.sound) == (WINDOWS * SHORTEST, USUAL * SHORTEST)
    assert guard.jumps == 1


def test_it_is_told_once_and_what_is_usual_is_measured_anew():
    guard = LossGuard(small)
    guard.watch(noise(USUAL))
    assert guard.watch(noise(50, 20.0)) is not None
    assert guard.jumps == 1
    assert guard.watch(noise(WINDOWS, 40.0)) is not None


@pytest.mark.parametrize(
    "losses",
    [
        noise(10, -30.0),
        noise(10, LEAST - 0.5),
        np.concatenate([noise(WINDOWS - 1, 50.0), noise(1), noise(WINDOWS - 1, 50.0), noise(1)]),
        np.concatenate([[1e200], noise(2)]),
    ],
    ids=["lower", "a little higher", "high, but not for long", "one absurd event"],
)
def test_what_is_no_jump(losses):
    guard = LossGuard(small)
    guard.watch(noise(USUAL))
    assert guard.watch(losses) is None
    assert guard.jumps == 0


def test_a_loss_that_always_varies_much_has_to_vary_more():
    rng = np.random.default_rng(0)
    guard = LossGuard(small)
    guard.watch(np.concatenate([noise(1, rng.normal(scale=3.0)) for _ in range(30)]))
    assert guard.watch(noise(WINDOWS, 12.0)) is None
    assert guard.watch(noise(1)) is None
    assert guard.watch(noise(WINDOWS, 60.0)) is not None


def test_nights_that_differ_from_days_are_no_jump():
    guard = LossGuard(small)
    days = np.concatenate([noise(1, 10.0 if i % 10 > 5 else 0.0) for i in range(60)])
    assert guard.watch(days[: KNOWN * SHORTEST]) is None
    assert guard.watch(days[KNOWN * SHORTEST :]) is None
    assert guard.watch(noise(WINDOWS, 20.0)) is not None


def test_one_absurd_window_hides_no_jump():
    guard = LossGuard(small)
    guard.watch(np.concatenate([noise(USUAL), [1e6], noise(USUAL)]))
    assert guard.watch(noise(WINDOWS, LEAST + 1.0)) is not None


def test_with_little_known_nothing_is_judged():
    guard = LossGuard(small)
    guard.watch(noise(KNOWN - WINDOWS))
    assert guard.watch(noise(WINDOWS, 50.0)) is None


def test_small_steps_have_long_windows():
    guard = LossGuard(lambda _: 0.001)
    guard.watch(noise(USUAL * 10))
    assert guard.watch(noise(WINDOWS * 10 - 1, 50.0)) is None
    assert guard.watch(noise(1, 50.0)).events == WINDOWS * 5000


@pytest.mark.parametrize("cuts", [(1,), (499, 3), (5000,)], ids=str)
def test_what_is_found_does_not_depend_on_how_events_came(cuts):
    losses = np.concatenate([noise(USUAL + 0.3), noise(WINDOWS + 1, 9.0)])
    whole, parts = LossGuard(small), LossGuard(small)
    expected = whole.watch(losses)
    found, at, turn = None, 0, 0
    while at < len(losses):
        size = cuts[turn % len(cuts)]
        found = parts.watch(losses[at : at + size]) or found
        at, turn = at + size, turn + 1
        if turn % 100 == 0:  # a restart in between
            parts = LossGuard(small, 7, json.loads(json.dumps(parts.to_json())))
    assert found == expected
    assert parts.to_json() == whole.to_json()


def watched(model, X, y):
    guard = LossGuard(model.step_size_at)
    guard.watch(model.learn_array(X, y))
    assert guard._events == len(X)
    return guard


STEPS = {"default": None, "constant": schedules.constant(0.01), "power": schedules.power(0.8)}
TASKS = {
    "two experts": lambda: tasks.two_experts(n=12_000, seed=1)[:2],
    "full gate": lambda: tasks.full_gate(n=12_000, seed=1)[:2],
    "paper 5.2": lambda: tasks.paper_5_2(n=12_000, seed=1)[:2],
    "classes": lambda: tasks.classes(3, n=12_000, seed=1)[:2],
}


@pytest.mark.slow
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("warmup", [None, 5_500])
def test_no_alarm_on_any_task_nor_at_the_end_of_a_warm_up(task, steps, warmup):
    X, y = TASKS[task]()
    estimator = MoEClassifier if task == "classes" else MoERegressor
    model = estimator(2, schedule=steps, warmup=warmup, warmup_restarts=2)
    assert (watched(model, X, y).jumps, model.is_warming_up) == (0, False)


@pytest.mark.parametrize("gamma", [0.01, 0.03])
@pytest.mark.parametrize("averaging", ["polyak", None])
def test_no_alarm_on_an_abrupt_drift_that_steps_of_one_size_follow(gamma, averaging):
    (before, was, _), (after, now, _) = (tasks.two_experts(n=8000, seed=seed) for seed in (1, 11))
    model = MoERegressor(2, schedule=schedules.constant(gamma), averaging=averaging, warmup_restarts=2)
    assert watched(model, np.concatenate([before, after]), np.concatenate([was, now])).jumps == 0


def test_an_alarm_on_a_drift_that_shrinking_steps_do_not_follow():
    (before, was, _), (after, now, _) = (tasks.two_experts(n=16_000, seed=seed) for seed in (1, 11))
    model = MoERegressor(2, warmup_restarts=2)
    assert watched(model, np.concatenate([before, after]), np.concatenate([was, now])).jumps == 1
