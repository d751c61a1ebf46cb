import numba
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from streammoe.kernels.gaussian_full import log_density


@numba.njit
def density(covariance, error, factor):
    return log_density(covariance, error, factor)


@pytest.mark.parametrize("Q", [1, 2, 3, 8])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_is_the_normal_density_without_its_constant(Q, scale):
    rng = np.random.default_rng(Q)
    roots = rng.normal(size=(Q, Q))
    covariance = scale**2 * (roots @ roots.T + 0.1 * np.eye(Q))
    for _ in range(5):
        error = scale * rng.normal(size=Q)
        expected = multivariate_normal(cov=covariance / scale**2).logpdf(error / scale) - Q * np.log(scale)
        found = density(covariance, error.copy(), np.empty((Q, Q)))
        assert found == pytest.approx(expected + 0.5 * Q * np.log(2.0 * np.pi), rel=1e-9)


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (1e-12, 1.0, 1e12)])
def test_a_singular_covariance_is_finite_and_prefers_what_it_knows(scales):
    """Three outputs that are multiples of one: errors along it are likely, errors across it are not."""
    along = np.array(scales)
    covariance = np.outer(along, along)
    here = density(covariance, along.copy(), np.empty((3, 3)))
    across = density(covariance, along * np.array([1.0, -1.0, 1.0]), np.empty((3, 3)))
    assert np.isfinite([here, across]).all()
    assert here > across + 1e6
