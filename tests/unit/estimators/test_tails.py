"""Gaussian experts with logarithmic tails: outliers hardly move them, and nothing else notices."""

import math

import numpy as np
import pytest

from streammoe import MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian, MultivariateMixture

PLAIN = math.inf
SHORT = {"warmup": 200}


def stream(n, seed, Q=1, noise=0.5):
    """Inputs, the truth of two experts, and targets around it, within ±8."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    truth = np.where(X[:, :1] > 0.0, 2.0 * X[:, 1:2], 0.5 * X[:, 2:3] - X[:, 1:2]) * np.arange(1, Q + 1)
    Y = truth + noise * rng.normal(size=(n, Q)) @ (np.eye(Q) + 0.5 * np.tri(Q, k=-1))
    return (X, truth, Y) if Q > 1 else (X, truth[:, 0], Y[:, 0])


def of(tail, Q=1, covariance="diagonal", **arguments):
    kind = MoERegressor if Q == 1 else MoEMultiTargetRegressor
    return kind(**{"n_experts": 2, "expert": Gaussian(covariance, tail), **SHORT, **arguments})


def rmse(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def line(n, seed):
    """One input, and a target that is that and a little noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1))
    return X, X[:, 0] + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize(
    ("share", "expert"),
    [(0.0005, "student_t"), (0.01, "gaussian")],
)
def test_a_code_in_place_of_many_targets_leaves_means_right_though_experts_are_to_spare(share, expert):
    X, y = line(5_000, 0)
    wrong = np.where(np.random.default_rng(4).random(5_000) < share, -99_999.0, y)
    twin, model = (MoERegressor(4, expert=expert, warmup=400) for _ in range(2))
    twin.learn_array(X, y)
    model.learn_array(X, wrong)
    T, t = line(1_000, 1)
    assert rmse(model.predict_array(T), t) < 1.02 * rmse(twin.predict_array(T), t)


def test_a_rare_region_of_enormous_targets_is_learned():
    X = np.random.default_rng(0).normal(size=(6_000, 1))
    far = X[:, 0] > 1.645
    y = np.where(far, 1_000.0 * X[:, 0], X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=6_000)
    model, free = of(6.0), of(6.0, hold=False)
    late = np.where(np.arange(6_000) < 2_000, X[:, 0], y)
    for targets in (y, late):
        for each in (model, free):
            each.learn_array(X, targets)
        assert rmse(model.predict_array(X[4_000:]), y[4_000:]) < 0.3 * y[4_000:].std()


@pytest.mark.parametrize(
    ("at", "absurd", "expert"), [(0, 1e10, "gaussian"), (5, 1e10, "student_t"), (20, 1e30, Gaussian(tail=PLAIN))]
)
def test_an_absurd_target_before_ranges_are_judged_leaves_scales_and_intervals_of_the_twin(at, absurd, expert):
    X, y = line(1_200, 0)
    wrong = y.copy()
    wrong[at] = absurd
    twin, model = (MoERegressor(2, expert=expert, warmup=400) for _ in range(2))
    widths, means = [], []
    for each, targets in ((twin, y), (model, wrong)):
        for start, stop in ((0, 350), (350, 1_200)):  # one expert predicts, then the mixture
            each.learn_array(X[start:stop], targets[start:stop])
            found = each.predict_distribution_one({"x0": 0.3})
            widths.append(found.quantile(0.95) - found.quantile(0.05))
            means.append(each.predict_one({"x0": 0.3}))
    np.testing.assert_allclose(widths[2:], widths[:2], rtol=0.1)
    np.testing.assert_allclose(means[2:], means[:2], atol=0.03)
    scalers = [each.learner.encoder.scaler for each in (twin, model)]
    np.testing.assert_allclose(scalers[1].target_scale, scalers[0].target_scale, rtol=0.01)


@pytest.mark.parametrize(("share", "code"), [(0.0, 1e30), (0.15, -99_999.0)])
def test_a_code_in_place_of_an_input_leaves_the_others_their_effect(share, code):
    X, y = line(4_000, 0)
    wrong = np.random.default_rng(4).random(4_000) < share
    wrong[20] = True
    X[wrong] = code
    model = MoERegressor(2, warmup=400)
    model.learn_array(X, y)
    T, t = line(1_000, 1)
    usual = np.abs(T[:, 0]) < 2.0  # next to the edge, the code is not far
    assert rmse(model.predict_array(T[usual]), t[usual]) < 0.105


@pytest.mark.parametrize("rows", [list(range(2_000, 2_010)), list(range(500, 6_000, 2_000))], ids=["ten", "three"])
def test_a_few_wrong_targets_leave_the_error_of_the_twin_that_never_saw_them(rows):
    X, _, y = stream(6_000, 0)
    T, _, t = stream(2_000, 1)
    wrong = y.copy()
    wrong[rows] = 1e5 if rows[0] >= 1_000 else -99_999.0
    twin, model = of(6.0), of(6.0)
    twin.learn_array(X, y)
    losses = model.learn_array(X, wrong)
    assert rmse(model.predict_array(T), t) < 1.02 * rmse(twin.predict_array(T), t)
    assert model.n_outliers - twin.n_outliers == len(rows)
    assert losses[200:].max() < 18.0 * (1.0 + 2.0 * math.log(1e6)) + 10.0


@pytest.mark.slow
@pytest.mark.parametrize("tail", [2.0, 3.0])
def test_the_joint_density_has_mass_1_and_its_samples_and_moments_are_its_own(tail):
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    joint = MultivariateMixture(np.ones(1), np.array([[1.0, -1.0]]), covariance[None], Gaussian(tail=tail), ("a", "b"))
    radii, angles = np.geomspace(1e-3, 1e4, 4_000), np.linspace(0.0, 2.0 * np.pi, 64, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1) @ np.linalg.cholesky(covariance).T
    density = joint.pdf(joint.mean() + radii[:, None, None] * circle).mean(axis=1) * 2.0 * np.pi * radii
    mass = np.trapezoid(density * radii, np.log(radii)) * math.sqrt(np.linalg.det(covariance))
    assert mass == pytest.approx(1.0, rel=1e-4)
    spread = np.trapezoid(density * radii**3, np.log(radii)) * math.sqrt(np.linalg.det(covariance)) / 2.0
    assert joint.covariance() == pytest.approx(spread * covariance, rel=1e-3)
    drawn = joint.sample(np.random.default_rng(0), 200_000)
    squares = np.einsum("nq,qc,nc->n", drawn - joint.mean(), np.linalg.inv(covariance), drawn - joint.mean())
    edge = Gaussian(tail=tail).shape(2)[0]
    for times in (0.1, 0.5, 1.0, 1.5, 4.0):
        inside = radii**2 <= times * edge
        expected = np.trapezoid((density * radii)[inside], np.log(radii[inside]))
        expected *= math.sqrt(np.linalg.det(covariance))
        assert np.mean(squares <= times * edge) == pytest.approx(expected, abs=0.005)
