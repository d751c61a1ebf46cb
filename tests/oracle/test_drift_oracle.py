"""Steps after a drift, and averages, against a slow reference that shares nothing with the package."""

import copy

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.distributions import Gaussian
from streammoe.model import fits
from streammoe.options import Exponential, PageHinkley
from tests.oracle.drift import Steps
from tests.oracle.literal import ALGORITHMS

pytestmark = pytest.mark.slow

CHANGE, WARMUP = 1600, 1000
BASE = {"n_experts": 2, "warmup": WARMUP, "drift": PageHinkley(50)}
BASE |= {"serve": "polyak", "hold": False}
SERVED = ("gate", "experts", "variances")
CASES = [
    (MoERegressor, "gaussian", {}),
    (MoERegressor, "gaussian", {"events_per_coefficient": 10.0}),
    (MoERegressor, "gaussian", {"averaging": None, "schedule": schedules.Power(0.7, gamma0=0.9, offset=3)}),
    (MoERegressor, "gaussian", {"schedule": schedules.Constant(0.01)}),
    (
        MoEMultiTargetRegressor,
        "gaussian_full",
        {"expert": Gaussian("full"), "averaging": "decay", "drift": PageHinkley(120), "bound": "adaptive"},
    ),
    (MoEClassifier, "categorical", {"classes": (0, 1), "drift": None, "averaging": Exponential(0.05)}),
]


def stream(kind, n):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 2))
    side = np.where(np.arange(n) < CHANGE, 1.0, -4.0)
    y = side * np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], -X[:, 1]) + 0.1 * rng.normal(size=n)
    if kind is MoEClassifier:
        return X, (y > 0.0).astype(int)
    return X, y if kind is MoERegressor else np.stack([y, X[:, 0] + 0.3 * rng.normal(size=n)], axis=1)


def weight_of(averaging, rate, gamma, forgets):
    """Of the m-th iterate in the average."""
    if averaging is None:
        return lambda m: 1.0
    if averaging == "exponential":
        return lambda m: max(1.0 / m, rate)
    c = 3 if averaging == "decay" else 1
    return lambda m: max(c / (m + c - 1), gamma if forgets else 0.0)


@pytest.mark.parametrize(
    ("kind", "family", "given"), CASES, ids=["default", "limited", "no average", "constant", "several", "classes"]
)
def test_steps_iterates_and_the_average_are_those_of_the_reference(kind, family, given, monkeypatch):
    monkeypatch.setattr(fits, "AT_ONCE", 1e12)  # so that each fit is taken where it begins
    model = kind(**{**BASE, "standardize": False, **given})
    begin, count = (WARMUP, WARMUP + 200) if model.drift is None else (CHANGE - 50, CHANGE + 400)
    X, y = stream(kind, count)
    model.learn_array(X[:WARMUP], y[:WARMUP])
    parameters = sum(value.size for name, value in model.parameters().items() if name in SERVED)
    m = begin - WARMUP + (WARMUP - parameters) // 2  # iterates that the warm-up's fit counts for
    losses = copy.deepcopy(model).learn_array(X[WARMUP:], y[WARMUP:])
    schedule = model.options.schedule
    again = type(model.options).model_fields["schedule"].default if schedule.forgets else schedule
    steps = Steps(schedule, again, (model.drift or PageHinkley()).restart)
    model.learn_array(X[WARMUP:begin], y[WARMUP:begin])
    assert not any(steps.learned(n, losses[n - WARMUP - 1]) for n in range(WARMUP + 1, begin + 1))
    span = 0.0 if schedule.forgets else model.events_per_coefficient * model.n_expert_features
    oracle = ALGORITHMS[family](model.parameters(), bound=model.bound, prior_strength=model.prior_strength, span=span)
    served = model.parameters(averaged=True)
    served = {name: served[name] for name in SERVED if name in served}
    shortened = False
    cuts = np.flatnonzero(np.random.default_rng(0).random(count - begin) < 0.4)
    for piece in np.split(np.arange(begin, count), cuts):
        for at, i in enumerate(piece.tolist()):
            n = i + 1
            given = steps.gamma(n)
            gamma = oracle.step_size(given, n)
            shortened = shortened or gamma < given
            if at == 0:
                assert model.step_size == pytest.approx(gamma, rel=1e-9)
                model.learn_array(X[piece], y[piece])
            row = np.array([1.0, *X[i]])
            oracle.learn(row, row, int(y[i]) if kind is MoEClassifier else np.atleast_1d(y[i]), given)
            m += 1
            weight = weight_of(
                model.options.averaging_kind, getattr(model.options.averaging, "rate", 0.0), gamma, schedule.forgets
            )(m)
            theta = oracle.theta
            served = {name: value + weight * (theta[name] - value) for name, value in served.items()}
            if model.drift is not None and steps.learned(n, losses[i - WARMUP]):
                served, m = {name: theta[name] for name in served}, 1
                oracle.origin = n
        if steps.drifts and n > steps.drifts[-1] + 50:
            break
    assert len(steps.drifts) == model.drifts == (model.drift is not None)
    if steps.drifts:
        assert CHANGE < steps.drifts[-1] == model.last_drift.n
    assert shortened or model.events_per_coefficient < 10.0
    found, average = model.parameters(), model.parameters(averaged=True)
    for name, value in served.items():
        assert np.abs(found[name] - oracle.theta[name]).max() < 1e-9
        assert np.abs(average[name] - value).max() < 1e-9
