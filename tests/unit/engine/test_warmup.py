"""Fits of a buffer: the experts that made the data, poor buffers, and which of several fits is taken."""

from itertools import product

import numpy as np
import pytest

from streammoe.engine import em, mm, starts, warmup
from streammoe.engine.state import is_finite
from streammoe.experts import families
from streammoe.testing.literal import curvature_bound
from tests.unit.cases import CASES, Case, draw, log_classes, options, same_bits

LINE = Case("gaussian", 1)
PLANE = Case("gaussian_full", 3)


def fit(R, Y, K, *, case=LINE, prior_strength=0.1, restarts=2, seed=0, bound="tight", weights=None):
    buffer = em.Buffer(R, R, Y, np.ones(len(R)) if weights is None else weights)
    chosen = options(case, K, prior_strength, bound)
    given = {"n_experts": K, "n_outputs": case.n_outputs, "restarts": restarts, "seed": seed, "options": chosen}
    return warmup.fit(case.family, buffer, **given)


def loss(state, R, Y, case=LINE):
    scores, _ = mm.score(case.family, state, R, R, Y, n_outputs=case.n_outputs)
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


MIXING = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [-0.5, 0.0, 1.0]])


def crossing_planes(n, seed=0):
    """The same with three outputs whose errors go together."""
    R, Y = crossing(n, seed)
    rng = np.random.default_rng(seed + 1000)
    noise = 0.3 * rng.normal(size=(n, 3)) @ MIXING.T
    return R, np.column_stack([Y[:, 0] + noise[:, 0], 2.0 * Y[:, 0] + noise[:, 1], noise[:, 2]])


def opposite_classes(n, M, seed=0):
    """Two experts with opposite class weights under a steep gate; also −log P(y|x) of what made them."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 4))
    slopes = 6.0 * np.random.default_rng(M).normal(size=(4, M))
    first = 1.0 / (1.0 + np.exp(-8.0 * X[:, 0]))[:, None]
    sides = [np.exp(sign * X @ slopes) for sign in (1.0, -1.0)]
    one, other = (side / side.sum(axis=1, keepdims=True) for side in sides)
    probabilities = first * one + (1.0 - first) * other
    labels = (probabilities.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    truth = -np.log(probabilities[np.arange(n), labels]).mean()
    return np.column_stack([np.ones(n), X]), labels[:, None].astype(float), truth


ENTROPY = 0.5 * np.log(2.0 * np.pi * np.e * 0.3**2)
"""Mean loss of the right expert with its noise of 0.3."""


class TestFindsTheExpertsThatMadeTheData:
    @pytest.mark.parametrize(("make", "K"), [(regions, 3), (crossing, 2)])
    def test_of_one_output(self, make, K):
        R, Y = make(600)
        state = fit(R, Y, K, restarts=5)
        # What choosing the expert costs comes on top of the noise.
        assert loss(state, *make(1000, 100)) < ENTROPY + 0.25
        assert np.sqrt(state.variances.min()) == pytest.approx(0.3, abs=0.06)

    def test_of_outputs_whose_errors_go_together(self):
        R, Y = crossing_planes(800)
        state = fit(R, Y, 2, case=PLANE, restarts=3)
        noise = 0.09 * (np.array([[1.0], [2.0], [0.0]]) @ [[1.0, 2.0, 0.0]] + MIXING @ MIXING.T)
        for covariance in state.variances:
            np.testing.assert_allclose(covariance, noise, atol=0.12)
        diagonal = fit(R, Y, 2, case=Case("gaussian", 3), restarts=3)
        fresh = crossing_planes(800, 100)
        assert loss(state, *fresh, case=PLANE) < loss(diagonal, *fresh, case=Case("gaussian", 3)) - 0.5

    @pytest.mark.parametrize(
        ("M", "n", "bound"),
        [(2, 700, "adaptive"), (3, 700, "tight"), pytest.param(5, 1500, "adaptive", marks=pytest.mark.exhaustive)],
    )
    def test_of_classes(self, M, n, bound):
        case = Case("categorical", M)
        R, Y, _ = opposite_classes(n, M)
        state, one = (fit(R, Y, K, case=case, restarts=3, bound=bound) for K in (2, 1))
        R, Y, truth = opposite_classes(2000, M, 100)
        assert loss(state, R, Y, case) < truth + 0.1
        assert loss(one, R, Y, case) > truth + 0.3


def test_one_expert_is_least_squares():
    R, Y = regions(500)
    Y = np.column_stack([Y, 1.0 - 3.0 * Y + np.sin(np.arange(500))[:, None]])
    state = fit(R, Y, 1, case=Case("gaussian_full", 2))
    theta = np.linalg.lstsq(R, Y, rcond=None)[0]
    np.testing.assert_allclose(state.experts[0], theta.T, rtol=1e-3)
    scatter = np.cov((Y - R @ theta).T, bias=True)
    np.testing.assert_allclose(state.variances[0], scatter, rtol=1e-3)


def test_the_prior_of_a_classifier_is_one_expert_held_by_a_pseudo_event():
    """At least one: classes that a line separates would send it off. The penalised gradient vanishes."""
    case = Case("categorical", 3)
    R, Y = draw(case, 400, 4, 1)
    prior = em.one_expert_prior(case.family, em.Buffer(R, R, Y, np.ones(400)), 3, options(case, 4))
    pushes = (np.exp(log_classes(prior.experts, R)) - (np.arange(3) == Y))[:, 1:]
    gradient = pushes.T @ R + curvature_bound("tight", 2) @ prior.experts * prior.expert_gram
    assert np.abs(gradient).max() < 1e-6
    assert prior.variances.shape == (0,)


POOR = {
    "equal columns": lambda R, Y: (np.column_stack([R, R[:, 1]]), Y),
    "constant columns": lambda R, Y: (np.column_stack([R, np.zeros(len(R)), np.full(len(R), 7.0)]), Y),
    "three rows": lambda R, Y: (R[:3], Y[:3]),
    "one row": lambda R, Y: (R[:1], Y[:1]),
    "no inputs": lambda R, Y: (R[:, :1], Y),
    "constant inputs": lambda R, Y: (np.ones_like(R), Y),
}
POOR_NUMBERS = {
    "no target": lambda R, Y: (R, np.zeros_like(Y)),
    "no noise": lambda R, Y: (R, np.repeat(2.0 * R[:, 1:2], Y.shape[1], axis=1)),
    "sizes": lambda R, Y: (R * np.array([1.0, 1e-9, 1.0, 1e9, 1.0]), 1e6 * Y),
}
POOR_CLASSES = {
    "one class only": lambda R, Y: (R, np.zeros_like(Y)),
    "only the last class": lambda R, Y: (R, np.full_like(Y, Y.max())),
    "a class with one event": lambda R, Y: (R, np.where(np.arange(len(Y))[:, None] == 7, Y.max(), np.minimum(Y, 0.0))),
    "separable": lambda R, Y: (R, (R[:, 1:2] > 0.0) * Y.max()),
    "sizes": lambda R, Y: (R * np.array([1.0, 1e-9, 1.0, 1e9, 1.0]), Y),
}
FEW = [case for case in CASES if case not in {Case("gaussian", 3), Case("categorical", 3)}]
METRIC, CLASSES = ([case for case in FEW if case.family.is_metric == metric] for metric in (True, False))
BUFFERS = [(METRIC, {**POOR, **POOR_NUMBERS}), (CLASSES, {**POOR, **POOR_CLASSES})]


def is_fitted(case, spoil, K, prior_strength):
    R, Y = spoil(*draw(case, 40, 5, 2))
    R = np.ascontiguousarray(R)
    state = fit(R, Y, K, case=case, prior_strength=prior_strength, restarts=1, bound="adaptive")
    assert is_finite(state)
    assert (state.masses > 0.0).all()
    diagonals = np.einsum("kqq->kq", state.variances) if state.variances.ndim == 3 else state.variances
    assert (diagonals > 0.0).all()
    scores, _ = mm.score(case.family, state, R, R, Y, n_outputs=case.n_outputs)
    assert np.isfinite(scores.losses).all()
    assert np.isfinite(scores.predictions).all()


@pytest.mark.parametrize(
    ("case", "spoil", "K", "prior_strength"),
    [
        pytest.param(cases[at % len(cases)], spoil, (1, 3)[at % 2], (0.0, 0.1)[at // 2 % 2], id=name)
        for cases, names in BUFFERS
        for at, (name, spoil) in enumerate(names.items())
    ],
)
def test_poor_buffers_give_a_finite_model(case, spoil, K, prior_strength):
    is_fitted(case, spoil, K, prior_strength)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("cases", "names"), BUFFERS, ids=["numbers", "classes"])
def test_poor_buffers_of_all_families_give_a_finite_model(cases, names):
    for given in product(cases, names.values(), [1, 3], [0.0, 0.1]):
        is_fitted(*given)


def test_a_class_that_is_not_there_is_unlikely():
    case = Case("categorical", 3)
    R, Y = draw(Case("categorical", 2), 300, 4, 2)
    state = fit(R, Y, 2, case=case, bound="adaptive")
    scores, _ = mm.score(case.family, state, R, R, n_outputs=3)
    assert 0.0 < scores.predictions[:, 2].mean() < 0.02


def test_a_column_that_varies_by_rounding_only_gets_no_steep_gate():
    R, Y = crossing(60)
    W = np.column_stack([R, np.full(60, -0.35161713)])
    assert W[:, -1].std() > 0.0
    family, chosen = LINE.family, options(LINE, 3)
    buffer = em.Buffer(W, W, Y, np.ones(60))
    steps = em.Em(family, buffer, em.one_expert_prior(family, buffer, 1, chosen), chosen)
    for start in starts.gate_first_starts(steps, 3, 12, np.random.default_rng(0)):
        assert np.abs(start.gate).max() < 1e3


@pytest.mark.parametrize(
    ("family", "shape", "size"),
    [
        ("gaussian", (1, 1, 2, 2), 400),
        ("gaussian", (4, 1, 11, 11), 972),
        ("gaussian", (4, 1, 301, 301), 1839),
        ("gaussian", (64, 1, 400, 400), 800),
        ("categorical", (2, 1, 11, 11), 18 * 33),
        ("categorical", (2, 4, 11, 11), 18 * 99),
    ],
)
def test_default_size_grows_with_the_parameters_within_bounds(family, shape, size):
    assert warmup.default_size(families()[family], warmup.Shape(*shape)) == size


@pytest.mark.parametrize("case", [Case("categorical", 3)], ids=str)
def test_no_start_beats_the_one_that_is_chosen(case):
    """The finalist's likelihood is at least that of each start after as many rounds."""
    R, Y = draw(case, 150, 3, 2)
    chosen = options(case, 2, 0.1)
    buffer = em.Buffer(R, R, Y, np.ones(150))
    prior = em.one_expert_prior(case.family, buffer, case.n_outputs, chosen)
    steps = em.Em(case.family, buffer, prior, chosen)
    found = steps.expect(warmup._search(steps, 2, 2, np.random.default_rng(0)))[0]
    others = starts.gate_first_starts(steps, 2, 4, np.random.default_rng(0))
    assert found >= max(steps.run(theta, warmup.SHORT_ROUNDS) for theta in others) - 1e-9


class TestChoosesAmongFits:
    @pytest.fixture
    def steps(self):
        R, Y = crossing(200)
        buffer = em.Buffer(R, R, Y, np.ones(200))
        chosen = options(LINE, 2, 1e-3)
        return em.Em(LINE.family, buffer, em.one_expert_prior(LINE.family, buffer, 1, chosen), chosen)

    @staticmethod
    def fitted(steps, second, rounds=100):
        theta = steps.under(np.column_stack([~second, second]).astype(float))
        return warmup.CandidateFit(steps.run(theta, rounds), theta)

    @pytest.fixture
    def sides(self, steps):
        return self.fitted(steps, steps.buffer.R[:, 1] > 0.0)

    def test_experts_on_fewer_rows_than_coefficients_are_left_out(self, steps, sides):
        few = self.fitted(steps, np.arange(200) < 4, rounds=0)
        few.theta.gate[0, 0] = 6.0
        assert steps.expect(few.theta)[1][:, 1].sum() < 6.0
        few = few._replace(score=sides.score + 1.0)
        assert warmup.chosen([few, sides], steps, None) is sides.theta
        assert warmup.chosen([sides._replace(score=few.score + 1.0), few], steps, None) is sides.theta
        assert warmup.chosen([few], steps, None) is few.theta, "there is no other"

    def test_without_rows_to_judge_by_the_likeliest_is_taken(self, steps, sides):
        half = self.fitted(steps, np.arange(200) % 2 == 0, rounds=1)
        assert half.score < sides.score
        assert warmup.chosen([half, sides], steps, None) is sides.theta
        assert warmup.chosen([half._replace(score=0.0), sides], steps, None) is half.theta

    @pytest.mark.parametrize(("gain", "taken"), [(0.2, True), (0.05, False)])
    def test_what_predicts_other_rows_better_by_more_than_the_error_is_taken_though_it_is_less_likely(
        self, monkeypatch, steps, sides, gain, taken
    ):
        likely = self.fitted(steps, np.arange(200) % 2 == 0, rounds=1)._replace(score=0.0)
        noise = np.where(np.arange(200) % 2 == 0, 1.0, -1.0)  # the standard error is 1/√200 = 0.07
        losses = {id(likely.theta): np.full(200, 2.0), id(sides.theta): 2.0 - gain + noise}
        monkeypatch.setattr(warmup, "_held_out_losses", lambda theta, *_: losses[id(theta)])
        assert (warmup.chosen([likely, sides], steps, np.zeros(200, dtype=np.int64)) is sides.theta) == taken

    def test_judging_changes_no_fit_and_scores_rows_by_fits_that_have_not_seen_them(self, steps, sides):
        before = [array.copy() for array in sides.theta]
        folds = np.arange(200) % warmup.FOLDS
        losses = warmup._held_out_losses(sides.theta, steps, folds)
        assert all(same_bits(old, new) for old, new in zip(before, sides.theta, strict=True))
        # Rows that were learned are explained a little better.
        assert steps.losses(sides.theta).mean() < losses.mean() < steps.losses(sides.theta).mean() + 0.2
        # A row's own target moves its own loss alone through the model that it did not help to fit.
        steps.buffer.Y[0] += 5.0
        moved = warmup._held_out_losses(sides.theta, steps, folds)
        assert moved[0] > losses[0] + 1.0
        assert same_bits(moved[folds == 0][1:], losses[folds == 0][1:])
