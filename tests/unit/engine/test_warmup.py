import numpy as np
import pytest

from streammoe.engine import mm, warmup
from streammoe.engine.state import is_finite
from streammoe.engine.warming import WarmUp
from streammoe.schedules import power


def options(K, prior_strength=0.1, bound="tight"):
    return mm.learning_options(
        bound=bound, n_experts=K, prior_strength=prior_strength, averaging="polyak", schedule=power()
    )


def fit(R, Y, K, *, prior_strength=0.1, restarts=2, seed=0):
    return warmup.fit(R, R, Y, n_experts=K, restarts=restarts, seed=seed, options=options(K, prior_strength))


def loss(state, R, Y):
    scores, _ = mm.score(state, R, R, Y)
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


@pytest.mark.parametrize("make", [regions, crossing])
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_experts_that_made_the_data(make, seed):
    R, Y = make(600, seed)
    state = fit(R, Y, 3 if make is regions else 2, restarts=5, seed=seed)
    fresh = make(1000, seed + 100)
    # What choosing the expert costs comes on top of the noise.
    assert loss(state, *fresh) < ENTROPY + 0.25
    assert np.sqrt(state.variances.min()) == pytest.approx(0.3, abs=0.06)


def test_beats_one_expert_by_far():
    R, Y = crossing(600)
    assert loss(fit(R, Y, 2), R, Y) < loss(fit(R, Y, 1), R, Y) - 0.5


def test_one_expert_is_least_squares():
    R, Y = regions(500)
    state = fit(R, Y, 1)
    theta, residuals, _, _ = np.linalg.lstsq(R, Y[:, 0], rcond=None)
    np.testing.assert_allclose(state.experts[0, 0], theta, rtol=1e-3)
    assert state.variances[0, 0] == pytest.approx(residuals[0] / 500, rel=1e-3)


@pytest.mark.parametrize("prior_strength", [0.0, 0.1, 5.0])
def test_statistics_are_averages_over_the_buffer_and_the_prior(prior_strength):
    R, Y = regions(300)
    state = fit(R, Y, 3, prior_strength=prior_strength)
    total = 300 + prior_strength
    gram = (R.T @ R + prior_strength * np.diag(np.mean(R * R, axis=0))) / total
    np.testing.assert_allclose(state.gate_gram, gram, rtol=1e-12)
    np.testing.assert_allclose(state.expert_grams.sum(axis=0), gram, rtol=1e-9)
    assert state.masses.sum() == pytest.approx(1.0)
    assert state.n[0] == 300
    assert state.prior_weight[0] == pytest.approx(prior_strength / total)
    assert state.decay[0] == 1.0


def test_the_prior_is_what_one_expert_makes_of_the_buffer():
    R, Y = crossing(400)
    prior = warmup.one_expert_prior(R, Y, R, options(4))
    theta, residuals, _, _ = np.linalg.lstsq(R, Y[:, 0], rcond=None)
    np.testing.assert_allclose(prior.expert_gram, np.mean(R * R, axis=0))
    np.testing.assert_allclose(prior.experts[0], theta, rtol=1e-4, atol=1e-5)
    assert prior.variances[0] == pytest.approx(residuals[0] / 400, rel=1e-3)


def test_equal_buffers_and_seeds_give_equal_bits_and_another_seed_another_start():
    R, Y = crossing(200)
    first, again = fit(R, Y, 3, seed=1), fit(R.copy(), Y.copy(), 3, seed=1)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))
    assert fit(R, Y, 3, seed=2).experts.tobytes() != first.experts.tobytes()


@pytest.mark.parametrize("prior_strength", [0.0, 0.1])
@pytest.mark.parametrize("K", [1, 2, 5])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda R, Y: (R, np.zeros_like(Y)),
        lambda R, Y: (R, 2.0 * R[:, 1:2]),
        lambda R, Y: (np.column_stack([R, R[:, 1]]), Y),
        lambda R, Y: (np.column_stack([R, np.zeros(len(R)), np.full(len(R), 7.0)]), Y),
        lambda R, Y: (R[:3], Y[:3]),
        lambda R, Y: (R[:1], Y[:1]),
        lambda R, Y: (R[:, :1], Y),
        lambda R, Y: (R * np.array([1.0, 1e-9, 1.0, 1e9, 1.0]), 1e6 * Y),
    ],
    ids=["no target", "no noise", "equal columns", "constant columns", "three rows", "one row", "no inputs", "sizes"],
)
def test_poor_buffers_give_a_finite_model(spoil, K, prior_strength):
    R, Y = spoil(*crossing(60))
    R = np.ascontiguousarray(R)
    state = fit(R, Y, K, prior_strength=prior_strength, restarts=1)
    assert is_finite(state)
    assert (state.variances > 0).all()
    assert np.isfinite(mm.score(state, R, R, Y)[0].losses).all()


@pytest.mark.parametrize("value", [0.1, -0.35161713, 3e8 + 0.1])
def test_a_column_that_varies_by_rounding_only_gets_no_steep_gate(value):
    R, Y = crossing(60)
    W = np.column_stack([R, np.full(60, value)])
    assert W[:, -1].std() > 0.0
    prior = warmup.one_expert_prior(W, Y, W, options(3))
    for start in warmup._gate_first_starts(W, W, Y, 3, 12, np.random.default_rng(0), prior):
        assert np.abs(start.gate).max() < 1e3


@pytest.mark.parametrize(
    ("shape", "size"), [((1, 2, 2, 1), 400), ((4, 11, 11, 1), 972), ((4, 301, 301, 1), 1839), ((64, 400, 400, 1), 800)]
)
def test_default_size_grows_with_the_parameters_within_bounds(shape, size):
    assert warmup.default_size(*shape) == size


class TestWarmingUp:
    def test_predicts_by_recursive_least_squares(self):
        R, Y = regions(250)
        warm_up = WarmUp(1, 2)
        scores = warm_up.learn(R[:, 1:], R, Y)
        # Running means from a prior of one pseudo-event, which the first event, of step 1, replaces.
        prefix = np.linalg.lstsq(R[:200], Y[:200, 0], rcond=None)[0]
        assert scores.predictions[200, 0] == pytest.approx(R[200] @ prefix, rel=1e-2)
        assert np.isfinite(scores.losses).all()

    def test_keeps_rows_with_a_target_and_predicts_the_others(self):
        R, Y = regions(30)
        Y[5] = np.nan
        warm_up = WarmUp(1, 2)
        scores = warm_up.learn(R[:, 1:], R, Y)
        X, kept = warm_up.rows()
        assert len(X) == len(kept) == warm_up.count == 29
        assert np.isnan(scores.losses).tolist() == [i == 5 for i in range(30)]
        assert np.isfinite(scores.predictions).all()

    def test_where_the_rows_were_cut_leaves_no_trace(self):
        R, Y = regions(100)
        whole, parts = WarmUp(1, 2), WarmUp(1, 2)
        losses = whole.learn(R[:, 1:], R, Y).losses
        cut = [parts.learn(R[a:b, 1:], R[a:b], Y[a:b]).losses for a, b in [(0, 1), (1, 64), (64, 65), (65, 100)]]
        assert np.concatenate(cut).tobytes() == losses.tobytes()
        ours, theirs = whole.arrays(), parts.arrays()
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)

    def test_arrays_and_back(self):
        R, Y = regions(10)
        warm_up = WarmUp(1, 2)
        warm_up.learn(R[:, 1:], R, Y)
        again = WarmUp.from_arrays({name: array.copy() for name, array in warm_up.arrays().items()})
        more, target = regions(5, seed=1)
        assert (
            again.learn(more[:, 1:], more, target).losses.tobytes()
            == warm_up.learn(more[:, 1:], more, target).losses.tobytes()
        )
        assert again.count == warm_up.count == 15
