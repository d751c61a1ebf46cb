"""Intervals of many events at once, next to SciPy's distribution functions."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from streammoe.distributions import Gaussian, StudentT, noises
from streammoe.distributions.mixtures import Mixture
from streammoe.engine.intervals import crps, mixture_intervals
from streammoe.kernels.calibration import PARTS
from streammoe.kernels.state import Trace

NOISES = [*(noise() for noise in noises().values()), Gaussian(tail=2.0), Gaussian(tail=3.3), Gaussian(tail=math.inf)]
NOISES += [StudentT(df=2.1), StudentT(df=30.0), StudentT(df=1e6)]
each = pytest.mark.parametrize("noise", NOISES, ids=str)
AS_IT_IS = np.empty((0, 0, 0))
"""Ranks of distributions that are not calibrated."""
LEVELS = [0.0, 0.5, 0.9, 0.99, 0.999999]


def mixtures(n, K):
    """Return mixtures of which some are hostile: (n, K) shares and (n, K, 1) means and variances."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(K, 0.3), n)
    means = rng.normal(size=(n, K)) * 10.0 ** rng.uniform(-3.0, 3.0, (n, 1))
    variances = 10.0 ** rng.uniform(-2.0, 2.0, (n, K)) * 10.0 ** rng.choice([-12.0, 0.0, 12.0], (n, 1))
    shares[::5, 0], shares[1::5, 0], shares[2::5, 1:] = 0.0, 1e-300, 0.0
    means[::7] = means[::7, :1]
    variances[::7] = variances[::7, :1]
    means[3::7] *= 1e6
    variances[4::7, 0] *= 1e16
    variances[5::7, 0] *= 1e-16
    return shares / shares.sum(axis=1, keepdims=True), means[:, :, None], variances[:, :, None]


@each
def test_ends_have_the_probability_of_a_tail_outside_of_them(noise):
    for level in LEVELS:
        shares, means, variances = mixtures(700, 6)
        found = mixture_intervals(shares, means, variances, AS_IT_IS, AS_IT_IS, level, noise)
        deviations = np.sqrt(variances[:, :, 0])
        tail = 0.5 * (1.0 - level)
        for side, sign in enumerate([1.0, -1.0]):
            ends = sign * found[:, 0, side]
            reach = 2e-9 * np.where(shares > 0.0, deviations, math.inf).min(axis=1) + 1e-15 * np.abs(ends)
            below, above = (
                np.sum(shares * noise.cdf(((ends + to * reach)[:, None] - sign * means[:, :, 0]) / deviations), axis=1)
                for to in (-1.0, 1.0)
            )
            assert (below <= tail * (1.0 + 1e-9)).all()
            assert (above >= tail * (1.0 - 1e-9)).all()


@each
def test_an_interval_does_not_depend_on_other_rows_or_on_components_without_a_share(noise):
    rng = np.random.default_rng(0)
    n, K = 200, 9
    shares = rng.dirichlet(np.ones(K), n)
    means, squares = rng.normal(size=(n, K, 2)), rng.uniform(0.1, 3.0, (n, K, 2))
    found = mixture_intervals(shares, means, squares, AS_IT_IS, AS_IT_IS, 0.9, noise)
    at = [0, 3, 3, 7, 9]
    padded = [
        np.insert(shares, at, 0.0, axis=1),
        np.insert(means, at, math.nan, axis=1),
        np.insert(squares, at, 0.0, axis=1),
    ]
    np.testing.assert_array_equal(mixture_intervals(*padded, AS_IT_IS, AS_IT_IS, 0.9, noise), found)
    alone = [
        mixture_intervals(shares[[i]], means[[i]], squares[[i]], AS_IT_IS, AS_IT_IS, 0.9, noise)[0] for i in range(n)
    ]
    np.testing.assert_array_equal(alone, found)


@each
def test_ends_of_calibrated_distributions_are_their_quantiles(noise):
    shares, means, variances = mixtures(50, 3)
    ranks = np.random.default_rng(1).gamma(0.5, size=(50, 1, 40)) + 1e-3
    ranks[3], ranks[4] = 0.0, 7.0
    for level in LEVELS[1:4]:
        found = mixture_intervals(shares, means, variances, ranks, AS_IT_IS, level, noise)[:, 0]
        for i in range(50):
            counts = np.ones(1) if i == 3 else ranks[i, 0]
            one = Mixture(shares[i], means[i, :, 0], variances[i, :, 0], noise, counts)
            narrowest = math.sqrt(variances[i, shares[i] > 0.0, 0].min())
            np.testing.assert_allclose(found[i], one.interval(level), rtol=1e-9, atol=1e-8 * narrowest)


def test_what_is_no_number_or_a_mixture_of_nothing_has_no_interval_and_overflow_ends_the_search():
    for at in range(3):
        parts = mixtures(10, 3)
        parts[at][4, 1] = math.nan
        parts[0][5] = 0.0
        found = mixture_intervals(*parts, AS_IT_IS, AS_IT_IS, 0.9, Gaussian())
        assert np.isnan(found).all(axis=(1, 2)).tolist() == [i in (4, 5) for i in range(10)]
    means = np.array([[[-1e308], [1e308]], [[0.0], [math.inf]], [[0.0], [1.0]]])
    variances = np.array([[[1e300], [1e300]], [[1.0], [1.0]], [[5e-324], [5e-324]]])
    found = mixture_intervals(np.full((3, 2), 0.5), means, variances, AS_IT_IS, AS_IT_IS, 0.9, Gaussian())
    np.testing.assert_allclose(found[2, 0], [0.0, 1.0], atol=1e-100)


@each
def test_the_ranked_probability_score_is_its_integral(noise):
    rng, n = np.random.default_rng(2), 5
    shares, means = rng.dirichlet(np.ones(3), n), rng.normal(size=(n, 3, 1))
    variances, ranks = rng.uniform(0.3, 3.0, (n, 3, 1)), rng.gamma(3.0, size=(n, 1, PARTS))
    ranks /= ranks.sum(axis=2, keepdims=True)
    for parts in (ranks, ranks[..., :0]):
        mixtures = [
            Mixture(shares[i], means[i, :, 0], variances[i, :, 0], noise, *parts[i, 0, None][: parts.shape[2]])
            for i in range(n)
        ]
        y = np.array([[one.quantile(at)] for one, at in zip(mixtures, [0.001, 0.2, 0.5, 0.8, 0.999], strict=True)])
        found = crps(Trace(shares, means, variances, parts, np.ones((n, 1, 2, 4))), y, noise)[:, 0]
        for i, one in enumerate(mixtures):
            t = np.linspace(*one.quantile(np.array([1e-5, 1.0 - 1e-5])), 200_001)
            integral = np.trapezoid((one.cdf(t) - (t >= y[i, 0])) ** 2, t)
            assert found[i] == pytest.approx(integral, rel=6e-3)


def test_the_score_of_one_normal_distribution_is_that_of_its_closed_form():
    y = np.linspace(-3.0, 3.0, 101)[:, None]
    one, none = np.ones((101, 1, 1)), np.empty((101, 1, 0))
    found = crps(Trace(one[:, 0], 1.0 + 0.0 * one, 4.0 * one, none, none[..., None]), y, Gaussian(tail=math.inf))
    z = (y - 1.0) / 2.0
    expected = 2.0 * (z * (2.0 * norm.cdf(z) - 1.0) + 2.0 * norm.pdf(z) - 1.0 / math.sqrt(math.pi))
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert found.mean() == pytest.approx(expected.mean(), rel=2e-4)
