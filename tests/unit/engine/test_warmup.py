import numpy as np
import pytest

from streammoe.engine import em, mm, starts, warmup
from streammoe.engine.state import is_finite
from streammoe.experts import families
from tests.unit.cases import CASES, CLASSES, HEAVY, Case, bent, draw, log_classes, options, same_bits

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
    @pytest.mark.parametrize("make", [regions, crossing])
    @pytest.mark.parametrize("seed", range(3))
    def test_of_one_output(self, make, seed):
        R, Y = make(600, seed)
        state = fit(R, Y, 3 if make is regions else 2, restarts=5, seed=seed)
        # What choosing the expert costs comes on top of the noise.
        assert loss(state, *make(1000, seed + 100)) < ENTROPY + 0.25
        assert np.sqrt(state.variances.min()) == pytest.approx(0.3, abs=0.06)

    @pytest.mark.parametrize("seed", range(2))
    def test_of_outputs_whose_errors_go_together(self, seed):
        R, Y = crossing_planes(800, seed)
        state = fit(R, Y, 2, case=PLANE, restarts=3, seed=seed)
        noise = 0.09 * (np.array([[1.0], [2.0], [0.0]]) @ [[1.0, 2.0, 0.0]] + MIXING @ MIXING.T)
        for covariance in state.variances:
            np.testing.assert_allclose(covariance, noise, atol=0.12)
        diagonal = fit(R, Y, 2, case=Case("gaussian", 3), restarts=3, seed=seed)
        fresh = crossing_planes(800, seed + 100)
        assert loss(state, *fresh, case=PLANE) < loss(diagonal, *fresh, case=Case("gaussian", 3)) - 0.5

    @pytest.mark.parametrize("bound", ["adaptive", "tight"])
    @pytest.mark.parametrize(("M", "seed"), [(2, 0), (2, 1), (3, 0)])
    def test_of_classes(self, M, seed, bound):
        case = Case("categorical", M)
        R, Y, _ = opposite_classes(700, M, seed)
        state = fit(R, Y, 2, case=case, restarts=3, seed=seed, bound=bound)
        R, Y, truth = opposite_classes(2000, M, seed + 100)
        one = fit(*opposite_classes(700, M, seed)[:2], 1, case=case, bound=bound)
        assert loss(state, R, Y, case) < truth + 0.1
        assert loss(one, R, Y, case) > truth + 0.3

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(3))
    def test_of_five_classes(self, seed):
        case = Case("categorical", 5)
        R, Y, _ = opposite_classes(1500, 5, seed)
        state = fit(R, Y, 2, case=case, restarts=5, seed=seed, bound="adaptive")
        R, Y, truth = opposite_classes(2000, 5, seed + 100)
        assert loss(state, R, Y, case) < truth + 0.1


def test_beats_one_expert_by_far():
    R, Y = crossing(600)
    assert loss(fit(R, Y, 2), R, Y) < loss(fit(R, Y, 1), R, Y) - 0.5


@pytest.mark.parametrize("name", ["gaussian", "gaussian_full"])
def test_one_expert_is_least_squares(name):
    R, Y = regions(500)
    Y = np.column_stack([Y, 1.0 - 3.0 * Y + np.sin(np.arange(500))[:, None]])
    state = fit(R, Y, 1, case=Case(name, 2))
    theta = np.linalg.lstsq(R, Y, rcond=None)[0]
    np.testing.assert_allclose(state.experts[0], theta.T, rtol=1e-3)
    scatter = np.cov((Y - R @ theta).T, bias=True)
    np.testing.assert_allclose(state.variances[0], scatter if name == "gaussian_full" else np.diag(scatter), rtol=1e-3)


def test_one_categorical_expert_is_a_stationary_point_of_the_likelihood():
    R, Y = draw(Case("categorical", 3), 500, 4, 1)
    state = fit(R, Y, 1, case=Case("categorical", 3), prior_strength=1e-3)
    scores, _ = mm.score(families()["categorical"], state, R, R, Y, n_outputs=3)
    gradient = (scores.predictions - (np.arange(3) == Y)).T @ R / 500
    assert np.abs(gradient).max() < 1e-3


@pytest.mark.parametrize("prior_strength", [0.0, 0.1, 5.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_statistics_are_averages_over_the_buffer_and_the_prior(case, prior_strength):
    R, Y = draw(case, 150, 3, 2)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 150)
    state = fit(R, Y, 2, case=case, prior_strength=prior_strength, restarts=1, weights=weights)
    total = 150 + prior_strength
    gram = ((R * weights[:, None]).T @ R + prior_strength * np.diag(np.mean(R * R, axis=0))) / total
    np.testing.assert_allclose(state.gate_gram, gram, rtol=1e-12)
    if case.name not in HEAVY:  # of those an event weighs otherwise than it counts
        np.testing.assert_allclose(state.expert_grams.sum(axis=0), gram, rtol=1e-9)
    assert state.masses.sum() == pytest.approx((weights.sum() + prior_strength) / total)
    assert state.n[0] == 150
    assert state.prior_weight[0] == pytest.approx(prior_strength / total)
    assert state.decay[0] == 1.0


@pytest.mark.parametrize("case", [Case("gaussian", 3), PLANE], ids=str)
def test_the_prior_is_what_one_expert_makes_of_the_buffer(case):
    R, Y = crossing_planes(400)
    prior = em.one_expert_prior(case.family, em.Buffer(R, R, Y, np.ones(400)), 3, options(case, 4))
    theta = np.linalg.lstsq(R, Y, rcond=None)[0]
    np.testing.assert_allclose(prior.expert_gram, np.mean(R * R, axis=0))
    np.testing.assert_allclose(prior.experts, theta.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(prior.variances, np.mean((Y - R @ theta) ** 2, axis=0), rtol=1e-3)


def test_the_prior_of_a_classifier_is_one_expert_held_by_a_pseudo_event():
    """At least one: classes that a line separates would send it off. The penalised gradient vanishes."""
    case = Case("categorical", 3)
    R, Y = draw(case, 400, 4, 1)
    prior = em.one_expert_prior(case.family, em.Buffer(R, R, Y, np.ones(400)), 3, options(case, 4))
    pushes = (np.exp(log_classes(prior.experts, R)) - (np.arange(3) == Y))[:, 1:]
    gradient = pushes.T @ R + bent("tight", 2) @ prior.experts * prior.expert_gram
    assert np.abs(gradient).max() < 1e-6
    assert prior.variances.shape == (0,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equal_buffers_and_seeds_give_equal_bits_and_another_seed_another_start(case):
    R, Y = draw(case, 80, 3, 3)
    given = {"case": case, "restarts": 1}
    first, again = fit(R, Y, 3, seed=1, **given), fit(R.copy(), Y.copy(), 3, seed=1, **given)
    assert same_bits(first, again)
    assert fit(R, Y, 3, seed=2, **given).experts.tobytes() != first.experts.tobytes()


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


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("prior_strength", [0.0, 0.1])
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        (case, name)
        for case in CASES
        if case not in {Case("gaussian", 3), Case("categorical", 3)}
        for name in [*POOR, *(POOR_NUMBERS if case.family.is_metric else POOR_CLASSES)]
    ],
    ids=str,
)
def test_poor_buffers_give_a_finite_model(case, name, K, prior_strength):
    spoil = {**POOR, **(POOR_NUMBERS if case.family.is_metric else POOR_CLASSES)}[name]
    R, Y = spoil(*draw(case, 40, 5, 2))
    R = np.ascontiguousarray(R)
    for bound in ("tight", "adaptive") if K == 1 else ("adaptive",):
        state = fit(R, Y, K, case=case, prior_strength=prior_strength, restarts=1, bound=bound)
        assert is_finite(state)
        assert (state.masses > 0.0).all()
        diagonals = np.einsum("kqq->kq", state.variances) if state.variances.ndim == 3 else state.variances
        assert (diagonals > 0.0).all()
        scores, _ = mm.score(case.family, state, R, R, Y, n_outputs=case.n_outputs)
        assert np.isfinite(scores.losses).all()
        assert np.isfinite(scores.predictions).all()


def test_a_class_that_is_not_there_is_unlikely():
    case = Case("categorical", 3)
    R, Y = draw(Case("categorical", 2), 300, 4, 2)
    state = fit(R, Y, 2, case=case, bound="adaptive")
    scores, _ = mm.score(case.family, state, R, R, n_outputs=3)
    assert 0.0 < scores.predictions[:, 2].mean() < 0.02


@pytest.mark.parametrize("value", [0.1, -0.35161713, 3e8 + 0.1])
def test_a_column_that_varies_by_rounding_only_gets_no_steep_gate(value):
    R, Y = crossing(60)
    W = np.column_stack([R, np.full(60, value)])
    assert W[:, -1].std() > 0.0
    family, chosen = LINE.family, options(LINE, 3)
    buffer = em.Buffer(W, W, Y, np.ones(60))
    steps = em.Em(family, buffer, em.one_expert_prior(family, buffer, 1, chosen), chosen)
    for start in starts.gate_first_starts(steps, 3, 12, np.random.default_rng(0)):
        assert np.abs(start.gate).max() < 1e3


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 1, 2, 2), 400), ((4, 1, 11, 11), 972), ((4, 1, 301, 301), 1839), ((64, 1, 400, 400), 800)]
)
def test_default_size_grows_with_the_parameters_within_bounds(shape, size):
    assert warmup.default_size(LINE.family, warmup.Shape(*shape)) == size


def test_default_size_of_a_classifier_counts_its_classes():
    sizes = [warmup.default_size(families()["categorical"], warmup.Shape(2, M - 1, 11, 11)) for M in (2, 3, 5)]
    assert sizes == [18 * 33, 18 * 55, 18 * 99]
    wide = warmup.Shape(8, 9, 400, 400)
    assert warmup.default_size(families()["categorical"], wide) < 2000


@pytest.mark.parametrize("case", CLASSES, ids=str)
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
        return warmup.Candidate(steps.run(theta, rounds), theta)

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

    @pytest.mark.parametrize(("gain", "taken"), [(0.2, True), (0.05, False), (-0.2, False)])
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
