"""Fits to rows: the experts that made the data, poor rows, which fit is taken, and starts from the best so far."""

import numpy as np
import pytest

from streammoe.engine import em, mixture, search
from streammoe.engine.jobs import run_job
from tests.unit.cases import Case, draw, em_of, options

LINE = Case("gaussian", 1)
PLANE = Case("gaussian_full", 3)


def fit(R, Y, K, *, case=LINE, prior_strength=0.1, bound="tight", start=None, searches=True):
    given = {"n_experts": K, "n_outputs": case.n_outputs, "seed": 0, "is_searching": searches}
    buffer = em.Buffer(R, R, Y, np.ones(len(R)))
    return run_job(search.fit(case.family, buffer, start, **given, options=options(case, K, prior_strength, bound)))


def loss(state, R, Y, case=LINE):
    scores, _ = mixture.score(case.family, mixture.served_parameters(state), R, R, Y, n_outputs=case.n_outputs)
    return float(scores.losses.mean())


def regions(n, seed=0):
    """Three experts that live in different regions: K-means on (x, y) finds them."""
    rng = np.random.default_rng(seed)
    where = rng.integers(3, size=n)
    x = np.array([-6.0, 0.0, 6.0])[where] + rng.normal(size=n)
    y = np.array([5.0, -5.0, 5.0])[where] + np.array([1.0, -2.0, 0.5])[where] * x + 0.3 * rng.normal(size=n)
    return np.column_stack([np.ones(n), x]), y[:, None]


def crossing(n, seed=0):
    """Two experts that cross, of opposite sign, on the sides of a hyperplane: gate-first starts find them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    slopes = np.array([2.0, -1.0, 1.0, 0.5])
    first = rng.random(n) < 1.0 / (1.0 + np.exp(-8.0 * X[:, 0]))
    y = np.where(first, X @ slopes, -X @ slopes) + 0.3 * rng.normal(size=n)
    return np.column_stack([np.ones(n), X]), y[:, None]


ENTROPY = 0.5 * np.log(2.0 * np.pi * np.e * 0.3**2)
"""Mean loss of the right expert with its noise of 0.3."""


@pytest.mark.parametrize(("make", "K"), [(regions, 3), (crossing, 2)])
def test_experts_that_made_the_data_are_found(make, K):
    state = fit(*make(400), K)
    # What choosing the expert costs comes on top of the noise.
    assert loss(state, *make(1000, 100)) < ENTROPY + 0.25
    assert np.sqrt(state.variances.min()) == pytest.approx(0.3, abs=0.06)


def mirrored(n, seed=0):
    """Four classes of 160 inputs about points that are close to each other; half of the rows are inverted."""
    rng = np.random.default_rng(seed)
    points = 0.3 + 0.1 * np.random.default_rng(7).normal(size=(4, 160))
    labels = rng.integers(4, size=n)
    X = rng.choice([-1.0, 1.0], size=(n, 1)) * (points[labels] + 0.5 * rng.normal(size=(n, 160)))
    return np.column_stack([np.ones(n), X]), labels[:, None].astype(float)


def test_hardly_more_rows_than_features_are_not_interpolated():
    """Without a stronger prior the loss on other rows is above that of guessing."""
    case = Case("categorical", 4)
    state = fit(*mirrored(320), 2, case=case, prior_strength=0.04, bound="adaptive")
    assert loss(state, *mirrored(1000, 100), case=case) < 1.2 < np.log(4)


POOR = {
    "equal columns": lambda R, Y: (np.column_stack([R, R[:, 1]]), Y),
    "one row": lambda R, Y: (R[:1], Y[:1]),
    "no inputs": lambda R, Y: (R[:, :1], Y),
}
POOR_NUMBERS = {
    "no target": lambda R, Y: (R, np.zeros_like(Y)),
    "no noise": lambda R, Y: (R, np.repeat(2.0 * R[:, 1:2], Y.shape[1], axis=1)),
    "sizes": lambda R, Y: (R * np.array([1.0, 1e-9, 1.0, 1e9, 1.0]), 1e6 * Y),
}
POOR_CLASSES = {
    "only the last class": lambda R, Y: (R, np.full_like(Y, Y.max())),
    "separable": lambda R, Y: (R, (R[:, 1:2] > 0.0) * Y.max()),
}
METRIC = [LINE, PLANE, Case("student_t", 3), Case("laplace", 1)]
CLASSES = [Case("categorical", 2), Case("categorical", 5)]


@pytest.mark.parametrize(
    ("case", "spoil", "K", "prior_strength"),
    [
        pytest.param(cases[at % len(cases)], spoil, (1, 3)[at % 2], (0.0, 0.1)[at // 2 % 2], id=name)
        for cases, more in ((METRIC, POOR_NUMBERS), (CLASSES, POOR_CLASSES))
        for at, (name, spoil) in enumerate({**POOR, **more}.items())
    ],
)
def test_poor_buffers_give_a_finite_model(case, spoil, K, prior_strength):
    R, Y = spoil(*draw(case, 40, 5, 2))
    R = np.ascontiguousarray(R)
    state = fit(R, Y, K, case=case, prior_strength=prior_strength, bound="adaptive")
    assert all(np.isfinite(array).all() for array in state)
    assert (state.masses > 0.0).all()
    diagonals = np.einsum("kqq->kq", state.variances) if state.variances.ndim == 3 else state.variances
    assert (diagonals > 0.0).all()
    scores, _ = mixture.score(case.family, mixture.served_parameters(state), R, R, Y, n_outputs=case.n_outputs)
    assert np.isfinite(scores.losses).all()
    assert np.isfinite(scores.predictions).all()


# --- which of several fits is taken ---------------------------------------------------------------------------------


@pytest.fixture
def steps():
    return em_of(LINE, *crossing(200), 2, 1e-3)


def fitted(steps, second, rounds=100):
    theta = run_job(steps.fitted_to(np.column_stack([~second, second]).astype(float)))
    return search.CandidateFit(steps.run(theta, rounds), theta)


@pytest.fixture
def sides(steps):
    return fitted(steps, steps.buffer.R[:, 1] > 0.0)


def test_experts_on_fewer_rows_than_coefficients_are_left_out(steps, sides):
    few = fitted(steps, np.arange(200) < 4, rounds=0)
    few.theta.gate[0, 0] = 6.0
    assert steps.e_step(few.theta)[1][:, 1].sum() < 6.0
    few = few._replace(score=sides.score + 1.0)
    assert run_job(search.chosen([few, sides], steps, None)) is sides.theta
