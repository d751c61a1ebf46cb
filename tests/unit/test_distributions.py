"""Mixtures that are predicted: densities, distribution functions, quantiles, moments and samples against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from streammoe.distributions import Gaussian, Laplace, Mixture, MultivariateMixture, StudentT

NORMAL = Gaussian(tail=math.inf)


def of(noise, shares, means, squares):
    return Mixture(np.array(shares), np.array(means), np.array(squares), noise)


def joint(noise, shares, means, squares, names=("a", "b")):
    return MultivariateMixture(np.array(shares), np.array(means), np.array(squares), noise, names)


TWO = of(NORMAL, [0.3, 0.7], [-1.0, 2.0], [0.25, 4.0])
CORRELATED = joint(
    NORMAL, [0.4, 0.6], [[0.0, 1.0], [3.0, -2.0]], [[[1.0, 0.5], [0.5, 2.0]], [[0.5, -0.2], [-0.2, 0.3]]]
)
DIAGONAL = joint(NORMAL, [0.4, 0.6], [[0.0, 1.0], [3.0, -2.0]], [[1.0, 2.0], [0.5, 0.3]])


# --- one output -----------------------------------------------------------------------------------------------------


@st.composite
def mixtures(draw):
    """Up to five components of any law, some of share 0, of scales from 1e-8 to 1e8, or to 1e3 with heavy tails."""
    law = draw(st.sampled_from(["gaussian", "gaussian", "student", "laplace"]))
    largest = 8.0 if law == "gaussian" else 3.0
    K = draw(st.integers(1, 5))
    of_any_size = st.floats(-largest, largest).map(lambda power: 10.0**power)
    weights = np.array(draw(st.lists(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0]), min_size=K, max_size=K)))
    assume(weights.sum() > 0.0)
    sign = st.sampled_from([-1.0, 0.0, 1.0])
    means = np.array([draw(sign) * draw(of_any_size) for _ in range(K)])
    scales = np.array([draw(of_any_size) for _ in range(K)])
    shares = weights / weights.sum()
    normal = Gaussian(tail=draw(st.sampled_from([math.inf, 2.0, 6.0])))
    noise = {"student": StudentT(draw(st.sampled_from([2.1, 4.0, 50.0]))), "laplace": Laplace(), "gaussian": normal}
    ranks = draw(st.sampled_from([[1.0], [2.0, 5.0, 0.5], [1e-3, *[1.0] * 37, 50.0, 3.0]]))
    return Mixture(shares, means, scales**2, noise[law], np.array(ranks))


probabilities = st.one_of(
    st.floats(1e-12, 1.0 - 1e-12), st.floats(1e-100, 1e-3), st.sampled_from([1e-300, 0.5, 1.0 - 2.0**-53])
)


@given(mixture=mixtures(), q=st.lists(probabilities, min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_the_cdf_inverts_quantiles_and_both_rise(mixture, q):
    q = np.sort(q)
    found = mixture.quantile(q)
    assert (np.diff(found) >= -1e-12 * np.sqrt(mixture.squares.min()) - 1e-15 * np.abs(found[1:])).all()
    # Brent's method ends within four units in the last place: where the density is high, no more can be asked for.
    lowest, highest = (mixture.cdf(found + sign * 4.0 * np.spacing(np.abs(found))) for sign in (-1.0, 1.0))
    rounding = np.where(q > 0.5, 4e-16, 0.0)
    accuracy = 1e-11 if isinstance(mixture.noise, Gaussian) else 1e-10
    assert (lowest * (1.0 - accuracy) - rounding <= q).all()
    assert (q <= highest * (1.0 + accuracy) + rounding).all()
    level = mixture.cdf(found)
    assert (np.diff(level) >= -1e-15).all()
    assert ((level >= 0.0) & (level <= 1.0)).all()


CALIBRATED = replace(TWO, ranks=np.array([1.0, 0.1, 5.0, 2.0]))


def test_a_calibrated_distribution_has_the_probability_of_its_ranks_in_each_part():
    ends = [-math.inf, *TWO.quantile(np.array([0.25, 0.5, 0.75])), math.inf]
    np.testing.assert_allclose(np.diff(CALIBRATED.cdf(np.array(ends))), np.array([1.0, 0.1, 5.0, 2.0]) / 8.1)
    assert (CALIBRATED.mean(), CALIBRATED.variance()) == (TWO.mean(), TWO.variance())
    y = np.linspace(-60.0, 60.0, 400_001)
    assert CALIBRATED.pdf(y).sum() * (y[1] - y[0]) == pytest.approx(1.0, abs=1e-4)
    drawn = CALIBRATED.sample(np.random.default_rng(0), (2, 50_000)).ravel()
    found = np.histogram(drawn, [-1e3, *ends[1:-1], 1e3])[0] / drawn.size
    np.testing.assert_allclose(found, np.array([1.0, 0.1, 5.0, 2.0]) / 8.1, atol=0.01)
    assert type(CALIBRATED.sample(np.random.default_rng(0))) is float
    one = joint(NORMAL, TWO.shares, TWO.means[:, None], TWO.squares[:, None], ("a",))
    assert replace(one, ranks=CALIBRATED.ranks[None]).interval(0.8)["a"] == CALIBRATED.interval(0.8)


@pytest.mark.parametrize(
    "mixture",
    [TWO, of(StudentT(9.0), [0.3, 0.7], [-1.0, 2.0], [0.25, 4.0]), of(Laplace(), [0.3, 0.7], [-1.0, 2.0], [0.25, 4.0])],
    ids=["gaussian", "student", "laplace"],
)
def test_moments_samples_and_intervals_are_those_of_the_density(mixture):
    y = np.linspace(-400.0, 400.0, 400_001)
    density, step = mixture.pdf(y), y[1] - y[0]
    assert density.sum() * step == pytest.approx(1.0, abs=1e-6)
    assert mixture.mean() == pytest.approx((y * density).sum() * step, abs=1e-5)
    assert mixture.variance() == pytest.approx(((y - mixture.mean()) ** 2 * density).sum() * step, rel=1e-3)
    y = np.linspace(-5.0, 8.0, 53)
    slope = (mixture.cdf(y + 1e-5) - mixture.cdf(y - 1e-5)) / 2e-5
    np.testing.assert_allclose(mixture.pdf(y), slope, rtol=1e-5, atol=1e-9)
    drawn = mixture.sample(np.random.default_rng(0), 100_000)
    assert drawn.mean() == pytest.approx(mixture.mean(), abs=0.05)
    for level in (0.5, 0.8, 0.99):
        low, high = mixture.interval(level)
        error = 5 * math.sqrt((1.0 - level) / 100_000)
        for outside in ((drawn < low).mean(), (drawn > high).mean()):
            assert outside == pytest.approx((1.0 - level) / 2.0, abs=error)


def test_numbers_that_are_hard_to_hold_cost_no_accuracy():
    far = of(NORMAL, [0.5, 0.5], [1e9, 1e9], [1e-6, 3e-6])
    assert far.variance() == pytest.approx(2e-6, rel=1e-9)
    around_0 = of(NORMAL, [0.25, 0.5, 0.25], [-3.0, 0.0, 3.0], [1.0, 4.0, 1.0])
    for tail in (2.0**-30, 2.0**-52):
        assert around_0.quantile(1.0 - tail) == -around_0.quantile(tail)


def test_numbers_give_numbers_and_arrays_arrays():
    rng = np.random.default_rng(0)
    for found in (TWO.pdf(1.0), TWO.cdf(1), TWO.quantile(0.5), TWO.sample(rng), TWO.mean(), TWO.variance()):
        assert type(found) is float
    grid = np.full((2, 3), 0.5)
    for found in (TWO.pdf(grid), TWO.cdf(grid), TWO.quantile(grid), TWO.sample(rng, (2, 3))):
        assert found.shape == (2, 3)
    assert TWO.quantile(grid)[1, 2] == TWO.quantile(0.5)
    assert TWO.cdf(grid)[0, 0] == TWO.cdf(0.5)
    assert TWO.quantile(np.empty(0)).shape == TWO.sample(rng, 0).shape == (0,)


# --- several outputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mixture", [CORRELATED, DIAGONAL], ids=["full", "diagonal"])
def test_several_outputs_have_the_moments_and_marginals_of_their_density(mixture):
    drawn = mixture.sample(np.random.default_rng(2), 200_000)
    assert drawn.shape == (200_000, 2)
    np.testing.assert_allclose(mixture.mean(), drawn.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(mixture.covariance(), np.cov(drawn.T), atol=0.05)
    assert mixture.variance().tolist() == np.diag(mixture.covariance()).tolist()
    a, b = np.linspace(-8.0, 9.0, 201), np.linspace(-10.0, 11.0, 251)
    density = mixture.pdf(np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1))
    assert density.shape == (201, 251)
    steps = a[1] - a[0], b[1] - b[0]
    assert density.sum() * steps[0] * steps[1] == pytest.approx(1.0, abs=1e-6)
    for q, (name, grid) in enumerate(zip(mixture.names, (a, b), strict=True)):
        marginal = mixture.marginal(name)
        np.testing.assert_allclose(density.sum(axis=1 - q) * steps[1 - q], marginal.pdf(grid), atol=1e-6)
        assert marginal.mean() == pytest.approx(mixture.mean()[q])
        assert marginal.variance() == pytest.approx(mixture.variance()[q])
        assert mixture.interval(0.7)[name] == marginal.interval(0.7)
    assert mixture.sample(np.random.default_rng(0)).shape == (2,)
    assert mixture.sample(np.random.default_rng(0), (3, 4)).shape == (3, 4, 2)
    point = mixture.pdf([0.5, 0.5])
    assert type(point) is float
    assert mixture.pdf(np.full((1, 2), 0.5))[0] == point


def test_several_outputs_with_heavy_tails_are_far_out_together():
    one = joint(StudentT(5.0), [1.0], [[1.0, -1.0]], [[1.0, 4.0]])
    drawn = one.sample(np.random.default_rng(0), 100_000)
    np.testing.assert_allclose(np.cov(drawn.T), one.covariance(), atol=0.2)
    np.testing.assert_allclose(one.variance(), [5.0 / 3.0, 20.0 / 3.0])
    apart = np.abs(drawn - one.mean()) / np.array([1.0, 2.0])
    assert np.corrcoef(apart.T)[0, 1] > 0.1
    low, high = one.interval(0.9)["b"]
    assert np.mean((low < drawn[:, 1]) & (drawn[:, 1] < high)) == pytest.approx(0.9, abs=0.005)
    expected = stats.multivariate_t([1.0, -1.0], np.diag([1.0, 4.0]), df=5.0)
    np.testing.assert_allclose(one.pdf(drawn[:10]), expected.pdf(drawn[:10]), rtol=1e-10)


def test_outputs_that_depend_on_each_other_have_a_density_all_the_same():
    line = joint(NORMAL, [1.0], [[0.0, 0.0]], [[[1.0, 2.0], [2.0, 4.0]]])
    assert line.pdf([1.0, 2.0]) > 1e3
    assert line.pdf([1.0, -2.0]) == 0.0
    drawn = line.sample(np.random.default_rng(0), 1_000)
    np.testing.assert_allclose(drawn[:, 1], 2.0 * drawn[:, 0], atol=1e-4)


# --- what is none ---------------------------------------------------------------------------------------------------
