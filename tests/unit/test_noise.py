"""Distributions of noise: densities, quantiles and samples against each other, SciPy and the kernels."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from streammoe.kernels import gaussian, laplace, student_t
from streammoe.noise import NORMAL, RoundedLaplace, StudentT

laws = pytest.mark.parametrize("law", [NORMAL, StudentT(2.1), RoundedLaplace(0.1), RoundedLaplace(1.5)], ids=str)
TAILS = np.array([1e-200, 1e-30, 1e-9, 0.01, 0.2, 0.25, 0.4, 0.49999999, 0.5])


@laws
def test_the_density_has_area_1_its_variance_and_is_the_slope_of_the_distribution_function(law):
    parts = list(pairwise([0.0, 0.1, 1.5, 5.0, 40.0]))
    area = 2.0 * sum(quad(law.pdf_at, *part)[0] for part in parts)
    assert area + 2.0 * law.cdf_at(-40.0) == pytest.approx(1.0, abs=1e-9)
    if not isinstance(law, StudentT):  # there the tails hold too much of it
        variance = 2.0 * sum(quad(lambda z: z * z * law.pdf_at(z), *part)[0] for part in parts)
        assert variance == pytest.approx(law.variance, rel=1e-8)
    z = np.array([-30.0, -5.0, -1.6, -0.3, -0.05, 0.02, 0.2, 2.0, 9.0])
    step = 1e-5 * np.maximum(np.abs(z), 0.1)
    slope = (law.cdf(-np.abs(z) + step) - law.cdf(-np.abs(z) - step)) / (2.0 * step)
    np.testing.assert_allclose(law.pdf(z), slope, rtol=1e-6, atol=1e-200)


@laws
def test_quantiles_invert_it_far_out_too_and_samples_follow_it(law):
    z = law.quantile(TAILS)
    np.testing.assert_allclose(law.cdf(z), TAILS, rtol=1e-11)
    np.testing.assert_allclose(law.quantile(1.0 - TAILS[3:]), -z[3:], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(law.cdf(-z), 1.0 - TAILS, rtol=1e-15)
    drawn = law.sample(np.random.default_rng(0), 20_000)
    assert stats.kstest(drawn, law.cdf).pvalue > 1e-3
    assert law.sample(np.random.default_rng(0), (2, 3)).shape == (2, 3)


def test_they_are_those_of_scipy():
    z = np.array([-1e3, -5.0, -1.0, -1e-3, 0.0, 0.3, 40.0])
    for degrees in (2.1, 4.0, 300.0):
        law, reference = StudentT(degrees), stats.t(degrees)
        np.testing.assert_allclose(law.pdf(z), reference.pdf(z), rtol=1e-10)
        np.testing.assert_allclose(law.cdf(z), reference.cdf(z), rtol=1e-8)
        assert law.variance == pytest.approx(reference.var())
    z = np.array([-9.0, -1.0, -0.01, 0.0, 0.5, 3.0])
    np.testing.assert_allclose(RoundedLaplace(1e-9).cdf(z), stats.laplace.cdf(z), rtol=1e-8)


def test_the_kernels_have_the_same_densities_and_weights_that_are_twice_the_slope():
    for z in (0.0, 0.03, 0.1, 0.7, 50.0):
        loss = laplace.energy((), z * z, 1) + laplace.log_constant((), 1)
        assert loss == pytest.approx(-math.log(RoundedLaplace(laplace.TIP).pdf_at(z)), rel=1e-12)
        loss = student_t.energy((3.0,), z * z, 1) + student_t.log_constant((3.0,), 1)
        assert loss == pytest.approx(-math.log(StudentT(3.0).pdf_at(z)), rel=1e-12)
    for square in (1e-6, 0.004, 0.5, 30.0, 1e8):
        step = 1e-5 * square
        for kernel, shape, Q in ((gaussian, (), 2), (laplace, (), 1), (student_t, (4.0,), 3)):
            slope = (kernel.energy(shape, square + step, Q) - kernel.energy(shape, square - step, Q)) / (2.0 * step)
            assert kernel.irls_weight(shape, square, Q) == pytest.approx(2.0 * slope, rel=1e-4)
