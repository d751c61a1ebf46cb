import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from streammoe.distributions import (
    GaussianMixture,
    LaplaceMixture,
    MultivariateGaussianMixture,
    MultivariateStudentTMixture,
    StudentTMixture,
)
from streammoe.errors import ConfigError

TWO = GaussianMixture([0.3, 0.7], [-1.0, 2.0], [0.25, 4.0])
CORRELATED = MultivariateGaussianMixture(
    [0.4, 0.6],
    [[0.0, 1.0], [3.0, -2.0]],
    [[[1.0, 0.5], [0.5, 2.0]], [[0.5, -0.2], [-0.2, 0.3]]],
    names=["a", "b"],
)
DIAGONAL = MultivariateGaussianMixture([0.4, 0.6], [[0.0, 1.0], [3.0, -2.0]], [[1.0, 2.0], [0.5, 0.3]])


SHARES, MEANS, ONES = [0.5, 0.5], np.zeros((2, 2)), np.ones((2, 2))


@st.composite
def mixtures(draw, largest_scale=8.0):
    """Up to five components, some of share 0, of scales from 1e-8 to 1e8."""
    K = draw(st.integers(1, 5))
    of_any_size = st.floats(-largest_scale, largest_scale).map(lambda power: 10.0**power)
    weights = np.array(draw(st.lists(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.0]), min_size=K, max_size=K)))
    assume(weights.sum() > 0.0)
    sign = st.sampled_from([-1.0, 0.0, 1.0])
    means = np.array([draw(sign) * draw(of_any_size) for _ in range(K)])
    deviations = np.array([draw(of_any_size) for _ in range(K)])
    return GaussianMixture(weights / weights.sum(), means, deviations**2)


probabilities = st.one_of(
    st.floats(1e-12, 1.0 - 1e-12), st.floats(1e-250, 1e-3), st.sampled_from([1e-300, 0.5, 1.0 - 2.0**-53])
)


class TestOneOutput:
    @given(mixture=mixtures(), q=probabilities)
    @settings(max_examples=50, deadline=None)
    def test_the_cdf_inverts_quantiles(self, mixture, q):
        y = mixture.quantile(q)
        # No double lies between these two and y: where the density is high, they are all that can be asked for.
        lowest, highest = mixture.cdf(y - 2.0 * math.ulp(y)), mixture.cdf(y + 2.0 * math.ulp(y))
        rounding = 4e-16 if q > 0.5 else 0.0
        assert lowest * (1.0 - 1e-11) - rounding <= q <= highest * (1.0 + 1e-11) + rounding

    @given(mixture=mixtures(), q=st.lists(probabilities, min_size=2, max_size=8))
    @settings(max_examples=50, deadline=None)
    def test_quantiles_rise_with_their_probability(self, mixture, q):
        found = mixture.quantile(np.sort(q))
        slack = 1e-12 * np.sqrt(mixture.variances.min()) + 1e-15 * np.abs(found[1:])
        assert (np.diff(found) >= -slack).all()

    @given(mixture=mixtures(3.0), points=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=8))
    def test_the_cdf_rises_within_0_and_1(self, mixture, points):
        found = mixture.cdf(np.sort(points))
        assert (np.diff(found) >= -1e-16).all()
        assert ((found >= 0.0) & (found <= 1.0)).all()

    def test_one_component_is_the_normal_distribution(self):
        one = GaussianMixture([1.0], [10.0], [4.0])
        assert one.mean() == 10.0
        assert one.variance() == 4.0
        assert one.pdf(10.0) == pytest.approx(1.0 / (2.0 * math.sqrt(2.0 * math.pi)), rel=1e-15)
        assert one.cdf(10.0) == 0.5
        assert one.quantile(0.975) == pytest.approx(10.0 + 2.0 * 1.959963984540054, rel=1e-14)
        assert one.interval(0.95) == pytest.approx((10.0 - 2.0 * 1.959963984540054, 10.0 + 2.0 * 1.959963984540054))

    def test_mean_and_variance_are_those_of_the_density(self):
        y = np.linspace(-15.0, 20.0, 200_001)
        density = TWO.pdf(y)
        step = y[1] - y[0]
        assert density.sum() * step == pytest.approx(1.0, abs=1e-9)
        mean = (y * density).sum() * step
        assert TWO.mean() == pytest.approx(mean, abs=1e-9)
        assert TWO.variance() == pytest.approx(((y - mean) ** 2 * density).sum() * step, abs=1e-8)

    def test_the_density_is_the_slope_of_the_cdf(self):
        y = np.linspace(-5.0, 8.0, 53)
        slope = (TWO.cdf(y + 1e-5) - TWO.cdf(y - 1e-5)) / 2e-5
        np.testing.assert_allclose(TWO.pdf(y), slope, rtol=1e-6, atol=1e-9)

    def test_components_far_apart_do_not_lose_the_variance_to_rounding(self):
        far = GaussianMixture([0.5, 0.5], [1e9, 1e9], [1e-6, 3e-6])
        assert far.variance() == pytest.approx(2e-6, rel=1e-9)

    @pytest.mark.parametrize("tail", [2.0**-30, 2.0**-45, 2.0**-52])
    def test_far_upper_quantiles_are_as_exact_as_lower_ones(self, tail):
        around_0 = GaussianMixture([0.25, 0.5, 0.25], [-3.0, 0.0, 3.0], [1.0, 4.0, 1.0])
        assert around_0.quantile(1.0 - tail) == -around_0.quantile(tail)

    def test_a_needle_on_a_hill_keeps_its_quantiles(self):
        mixture = GaussianMixture([0.5, 0.5], [0.0, 123.0], [1e16, 1e-16])
        # Half of the mass lies within 1e-8 of 123, with nearly a quarter on each side.
        assert mixture.quantile(0.4) == pytest.approx(123.0, abs=1e-7)
        assert mixture.cdf(mixture.quantile(0.4)) == pytest.approx(0.4, abs=1e-5)
        assert mixture.cdf(mixture.quantile(0.1)) == pytest.approx(0.1, abs=1e-14)

    def test_a_component_of_share_0_changes_nothing(self):
        more = GaussianMixture([0.3, 0.0, 0.7], [-1.0, 1e30, 2.0], [0.25, 1e-30, 4.0])
        q = np.array([1e-9, 0.1, 0.5, 0.999])
        np.testing.assert_array_equal(more.quantile(q), TWO.quantile(q))
        assert more.cdf(1.0) == TWO.cdf(1.0)
        assert more.mean() == TWO.mean()
        assert more.sample(np.random.default_rng(0), 1000).max() < 100.0

    def test_samples_have_its_moments_and_fill_its_intervals(self):
        drawn = TWO.sample(np.random.default_rng(1), 200_000)
        assert drawn.mean() == pytest.approx(TWO.mean(), abs=5 * math.sqrt(TWO.variance() / 200_000))
        assert drawn.var() == pytest.approx(TWO.variance(), rel=0.02)
        for level in (0.5, 0.9, 0.99):
            low, high = TWO.interval(level)
            below, above = (drawn < low).mean(), (drawn > high).mean()
            error = 5 * math.sqrt((1.0 - level) / 200_000)
            assert below == pytest.approx((1.0 - level) / 2.0, abs=error)
            assert above == pytest.approx((1.0 - level) / 2.0, abs=error)

    def test_numbers_give_numbers_and_arrays_arrays(self):
        rng = np.random.default_rng(0)
        for found in (TWO.pdf(1.0), TWO.cdf(1), TWO.quantile(0.5), TWO.sample(rng), TWO.mean(), TWO.variance()):
            assert type(found) is float
        grid = np.full((2, 3), 0.5)
        for found in (TWO.pdf(grid), TWO.cdf(grid), TWO.quantile(grid), TWO.sample(rng, (2, 3))):
            assert found.shape == (2, 3)
        assert TWO.quantile(grid)[1, 2] == TWO.quantile(0.5)
        assert TWO.cdf(grid)[0, 0] == TWO.cdf(0.5)
        assert TWO.quantile(np.empty(0)).shape == TWO.sample(rng, 0).shape == (0,)

    def test_it_cannot_be_changed_nor_through_the_arrays_it_was_given(self):
        shares = np.array([0.5, 0.5])
        mixture = GaussianMixture(shares, [0.0, 1.0], [1.0, 1.0])
        shares[0] = 7.0
        assert mixture.shares.tolist() == [0.5, 0.5]
        with pytest.raises(ValueError):
            mixture.means[0] = 1.0
        with pytest.raises(FrozenInstanceError):
            mixture.means = shares

    def test_quantiles_and_levels_lie_between_0_and_1(self):
        for q in (0.0, 1.0, -0.1, 1.1, math.nan, np.array([0.5, 1.0]), "a half", None):
            with pytest.raises(ConfigError):
                TWO.quantile(q)
        for level in (0.0, 1.0, -1.0, 90, math.nan):
            for mixture in (TWO, CORRELATED):
                with pytest.raises(ConfigError):
                    mixture.interval(level)


@pytest.mark.parametrize("mixture", [CORRELATED, DIAGONAL], ids=["full", "diagonal"])
class TestSeveralOutputs:
    def test_mean_and_covariance_by_total_variance(self, mixture):
        drawn = mixture.sample(np.random.default_rng(2), 400_000)
        assert drawn.shape == (400_000, 2)
        np.testing.assert_allclose(mixture.mean(), drawn.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(mixture.covariance(), np.cov(drawn.T), atol=0.05)
        assert mixture.variance().tolist() == np.diag(mixture.covariance()).tolist()

    def test_the_density_adds_up_to_1_and_to_its_marginals(self, mixture):
        a, b = np.linspace(-8.0, 9.0, 401), np.linspace(-10.0, 11.0, 501)
        density = mixture.pdf(np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1))
        assert density.shape == (401, 501)
        step_a, step_b = a[1] - a[0], b[1] - b[0]
        assert density.sum() * step_a * step_b == pytest.approx(1.0, abs=1e-6)
        for axis, grid, step in ((1, a, step_b), (0, b, step_a)):
            name = mixture.names[1 - axis]
            np.testing.assert_allclose(density.sum(axis=axis) * step, mixture.marginal(name).pdf(grid), atol=1e-6)

    def test_marginals_have_its_moments(self, mixture):
        for q, name in enumerate(mixture.names):
            marginal = mixture.marginal(name)
            assert marginal.mean() == pytest.approx(mixture.mean()[q])
            assert marginal.variance() == pytest.approx(mixture.variance()[q])
            assert mixture.interval(0.7)[name] == marginal.interval(0.7)

    def test_one_draw_and_one_point(self, mixture):
        assert mixture.sample(np.random.default_rng(0)).shape == (2,)
        assert mixture.sample(np.random.default_rng(0), (3, 4)).shape == (3, 4, 2)
        point = mixture.pdf([0.5, 0.5])
        assert type(point) is float
        assert mixture.pdf(np.full((1, 2), 0.5))[0] == point

    def test_points_of_another_length_are_refused(self, mixture):
        for y in (1.0, [1.0], np.ones((2, 3))):
            with pytest.raises(ConfigError):
                mixture.pdf(y)

    def test_an_unknown_output_is_refused(self, mixture):
        with pytest.raises(ConfigError):
            mixture.marginal("weight")

    def test_it_cannot_be_changed(self, mixture):
        with pytest.raises(ValueError):
            mixture.covariances[0] = 1.0


def test_a_diagonal_may_be_written_as_matrices():
    matrices = MultivariateGaussianMixture(
        DIAGONAL.shares, DIAGONAL.means, [np.diag(row) for row in DIAGONAL.covariances], names=DIAGONAL.names
    )
    y = np.random.default_rng(0).normal(size=(20, 2))
    np.testing.assert_allclose(matrices.pdf(y), DIAGONAL.pdf(y), rtol=1e-12)
    np.testing.assert_allclose(matrices.covariance(), DIAGONAL.covariance(), rtol=1e-14)
    drawn, same = (mixture.sample(np.random.default_rng(5), 10) for mixture in (matrices, DIAGONAL))
    np.testing.assert_allclose(drawn, same, rtol=1e-14)


def test_outputs_without_names_are_numbered():
    assert DIAGONAL.names == ("y0", "y1")
    assert DIAGONAL.interval().keys() == {"y0", "y1"}


WRONG = {
    GaussianMixture: [
        ([], [], []),
        (0.5, 0.0, 1.0),
        ([0.5, 0.6], [0, 1], [1, 1]),
        ([1.5, -0.5], [0, 1], [1, 1]),
        ([0.5, math.nan], [0, 1], [1, 1]),
        ([0.5, 0.5], [0, 1, 2], [1, 1]),
        ([0.5, 0.5], [0, math.inf], [1, 1]),
        ([0.5, 0.5], [0, 1], [1]),
        ([0.5, 0.5], [0, 1], [1, 0]),
    ],
    MultivariateGaussianMixture: [
        (SHARES, [0.0, 1.0], ONES),
        (SHARES, np.zeros((2, 0)), ONES),
        (SHARES, MEANS, np.ones((2, 3))),
        (SHARES, MEANS, np.zeros((2, 2))),
        (SHARES, MEANS, [[[1.0, 2.0], [2.0, 1.0]]] * 2),
        (SHARES, MEANS, [[[1.0, 0.5], [0.0, 1.0]]] * 2),
        (SHARES, MEANS, [[[1.0, math.nan], [math.nan, 1.0]]] * 2),
        (SHARES, MEANS, ONES, ["a"]),
        (SHARES, MEANS, ONES, ["a", "a"]),
    ],
    StudentTMixture: [
        *(([1.0], [0.0], [1.0], degrees) for degrees in (2.0, 0.0, math.nan, math.inf)),
        ([0.5, 0.5], [0.0, 1.0], [1.0, 0.0], 4.0),
        ([0.5, 0.5], [0.0, math.nan], [1.0, 1.0], 4.0),
    ],
    MultivariateStudentTMixture: [([1.0], [[0.0]], [[1.0]], 2.0)],
    LaplaceMixture: [
        ([1.0], [0.0], [1.0], 0.0),
        ([0.5, 0.5], [0.0, 1.0], [1.0, 0.0], 0.1),
    ],
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_mixture_is_rejected(kind):
    for arguments in WRONG[kind]:
        with pytest.raises(ConfigError):
            kind(*arguments)


@st.composite
def heavy_mixtures(draw):
    """The mixtures above with other laws: Student's t, or Laplace's with a tip."""
    plain = draw(mixtures(3.0))
    scales = np.sqrt(plain.variances)
    if draw(st.booleans()):
        return StudentTMixture(plain.shares, plain.means, scales, draw(st.sampled_from([2.1, 4.0, 50.0])))
    return LaplaceMixture(plain.shares, plain.means, scales, draw(st.sampled_from([1e-3, 0.1, 2.0])))


class TestHeavyTails:
    @given(mixture=heavy_mixtures(), q=st.one_of(st.floats(1e-12, 1.0 - 1e-12), st.floats(1e-100, 1e-3)))
    @settings(max_examples=50, deadline=None)
    def test_the_cdf_inverts_quantiles(self, mixture, q):
        y = mixture.quantile(q)
        lowest, highest = mixture.cdf(y - 2.0 * math.ulp(y)), mixture.cdf(y + 2.0 * math.ulp(y))
        rounding = 4e-16 if q > 0.5 else 0.0
        assert lowest * (1.0 - 1e-10) - rounding <= q <= highest * (1.0 + 1e-10) + rounding

    @pytest.mark.parametrize(
        "mixture",
        [
            StudentTMixture([0.3, 0.7], [-1.0, 2.0], [0.5, 2.0], 9.0),
            LaplaceMixture([0.3, 0.7], [-1.0, 2.0], [0.5, 2.0], 0.1),
        ],
        ids=["student", "laplace"],
    )
    def test_moments_samples_and_intervals_are_those_of_the_density(self, mixture):
        y = np.linspace(-400.0, 400.0, 800_001)
        density, step = mixture.pdf(y), y[1] - y[0]
        assert density.sum() * step == pytest.approx(1.0, abs=1e-6)
        assert mixture.mean() == pytest.approx((y * density).sum() * step, abs=1e-5)
        assert mixture.variance() == pytest.approx(((y - mixture.mean()) ** 2 * density).sum() * step, rel=1e-3)
        drawn = mixture.sample(np.random.default_rng(0), 100_000)
        assert drawn.mean() == pytest.approx(mixture.mean(), abs=0.05)
        low, high = mixture.interval(0.8)
        assert np.mean((low < drawn) & (drawn < high)) == pytest.approx(0.8, abs=0.005)
        assert isinstance(mixture.sample(np.random.default_rng(0)), float)

    def test_several_outputs_are_far_out_together(self):
        one = MultivariateStudentTMixture([1.0], [[1.0, -1.0]], [[1.0, 2.0]], 5.0, names=["a", "b"])
        drawn = one.sample(np.random.default_rng(0), 200_000)
        np.testing.assert_allclose(np.cov(drawn.T), one.covariance(), atol=0.15)
        np.testing.assert_allclose(one.variance(), [5.0 / 3.0, 20.0 / 3.0])
        apart = np.abs(drawn - one.mean()) / np.array([1.0, 2.0])
        assert np.corrcoef(apart.T)[0, 1] > 0.1
        low, high = one.interval(0.9)["b"]
        assert np.mean((low < drawn[:, 1]) & (drawn[:, 1] < high)) == pytest.approx(0.9, abs=0.005)
        expected = stats.multivariate_t([1.0, -1.0], np.diag([1.0, 4.0]), df=5.0)
        np.testing.assert_allclose(one.pdf(drawn[:10]), expected.pdf(drawn[:10]), rtol=1e-10)
        assert one.sample(np.random.default_rng(0)).shape == (2,)
