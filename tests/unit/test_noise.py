"""Noise of experts: densities, quantiles, samples and entropies against each other, SciPy and the kernels."""

import math
import re
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from streammoe.distributions import Gaussian, StudentT, noises

ROOT = Path(__file__).parents[2]
LEARNING = """
import sys, numpy as np, streammoe.distributions, streammoe.kernels
for package in (streammoe.distributions, streammoe.kernels):
    package.__path__.append(f"{sys.argv[1]}/{package.__name__}")
from streammoe import MoERegressor, load
rng = np.random.default_rng(0)
X = rng.uniform(-1.0, 1.0, (1_000, 2))
truth = np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], 1.0 - X[:, 1])
model = MoERegressor(2, expert="logistic", warmup=200)
assert np.isfinite(model.learn_array(X, truth + 0.1 * rng.logistic(size=len(X)))).all()
assert np.sqrt(np.mean((model.predict_array(X) - truth) ** 2)) < 0.25
forecast = model.predict_distribution_one({"x0": 0.5, "x1": 0.5})
assert abs(forecast.mean() - model.predict_one({"x0": 0.5, "x1": 0.5})) < 0.1
assert 0.05 < np.subtract(*forecast.interval(0.5)[::-1]) < 1.0
model.save(f"{sys.argv[1]}/model")
assert load(f"{sys.argv[1]}/model").noise == model.noise
"""
"""A program that learns with the noise of CONTRIBUTING.md, in a folder that it gets as an argument."""


EVERY = [noise() for noise in noises().values()]
TAILS_OF = [Gaussian(tail=tail) for tail in (2.0, 4.0, math.inf)]
each = pytest.mark.parametrize("noise", [*EVERY, *TAILS_OF, StudentT(2.1)], ids=str)
TAILS = np.array([1e-200, 1e-30, 1e-9, 0.01, 0.2, 0.25, 0.4, 0.49999999, 0.5])
PARTS = list(pairwise([0.0, 0.1, 1.5, 2.0, 4.0, 6.0, 40.0]))


def integral(function):
    """Integrate a function over [-40, 40] that is the same on both sides."""
    return 2.0 * sum(quad(function, *part)[0] for part in PARTS)


@each
def test_the_density_has_area_1_its_variance_and_is_the_slope_of_the_distribution_function(noise):
    pdf, beyond = (lambda z: float(noise.pdf(np.array(z)))), noise.cdf(np.array(-40.0))
    assert integral(pdf) + 2.0 * beyond == pytest.approx(1.0, abs=1e-9)
    if beyond < 1e-12:  # else the tails hold too much of it
        assert integral(lambda z: z * z * pdf(z)) == pytest.approx(noise.variance, rel=1e-8)
        entropy = integral(lambda z: -pdf(z) * math.log(pdf(z) or 1.0))
        assert entropy == pytest.approx(noise.entropy(1), rel=1e-8)
    z = np.array([-30.0, -5.0, -1.6, -0.3, -0.05, 0.02, 0.2, 2.0, 9.0])
    step = 1e-5 * np.maximum(np.abs(z), 0.1)
    slope = (noise.cdf(-np.abs(z) + step) - noise.cdf(-np.abs(z) - step)) / (2.0 * step)
    np.testing.assert_allclose(noise.pdf(z), slope, rtol=1e-6, atol=1e-200)


@each
def test_quantiles_invert_it_far_out_too_and_samples_follow_it(noise):
    z = noise.quantile(TAILS)
    np.testing.assert_allclose(noise.cdf(z), TAILS, rtol=1e-11)
    np.testing.assert_allclose(noise.quantile(1.0 - TAILS[3:]), -z[3:], rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(noise.cdf(-z), 1.0 - TAILS, rtol=1e-15)
    drawn = noise.sample(np.random.default_rng(0), 20_000)
    assert stats.kstest(drawn, noise.cdf).pvalue > 1e-3
    assert noise.sample(np.random.default_rng(0), (2, 3)).shape == (2, 3)


def test_they_are_those_of_scipy():
    z = np.array([-1e3, -5.0, -1.0, -1e-3, 0.0, 0.3, 40.0])
    for degrees in (2.1, 4.0, 300.0):
        noise, reference = StudentT(degrees), stats.t(degrees)
        np.testing.assert_allclose(noise.pdf(z), reference.pdf(z), rtol=1e-10)
        np.testing.assert_allclose(noise.cdf(z), reference.cdf(z), rtol=1e-8)
        assert noise.variance == pytest.approx(reference.var())
        assert noise.entropy(1) == pytest.approx(reference.entropy())
        assert noise.entropy(3) == pytest.approx(stats.multivariate_t(np.zeros(3), df=degrees).entropy())


@pytest.mark.parametrize("noise", [*EVERY, *TAILS_OF, StudentT(3.0)], ids=str)
def test_the_kernels_have_the_same_density_and_weights_that_are_twice_the_slope(noise):
    kernels, shape = import_module(f"streammoe.kernels.{noise.name}"), noise.shape(1)
    for z in (0.0, 0.03, 0.1, 0.7, 30.0):
        loss = kernels.energy(shape, z * z, 1) + kernels.log_constant(shape, 1)
        assert loss == pytest.approx(-math.log(noise.pdf(np.array(z))), rel=1e-12)
    for square in (1e-6, 0.004, 0.5, 30.0, 1e8):
        step = 1e-5 * square
        for Q in (1, 3):
            slope = (kernels.energy(shape, square + step, Q) - kernels.energy(shape, square - step, Q)) / (2.0 * step)
            assert kernels.irls_weight(shape, square, Q) == pytest.approx(2.0 * slope, rel=1e-4)


@pytest.mark.exhaustive  # it compiles kernels of its own
def test_the_noise_of_the_guide_is_two_files(tmp_path):
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    for package, text in zip(("distributions", "kernels"), blocks[:2], strict=True):
        folder = tmp_path / f"streammoe.{package}"
        folder.mkdir()
        (folder / "logistic.py").write_text(f"from __future__ import annotations\n{text}", encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", LEARNING, tmp_path], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
