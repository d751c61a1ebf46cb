"""A predicted distribution as River's `proba` has them; imported when one is asked for, since it loads SciPy."""

from __future__ import annotations

from typing import Any, Never

import numpy as np
from river.proba.base import ContinuousDistribution

from streammoe.distributions import Mixture
from streammoe.errors import ConfigError


class RiverMixture(ContinuousDistribution):
    """A `Mixture` by the names that River's distributions have; its `mixture` has quantiles and intervals, too.

    >>> from streammoe.distributions import Gaussian
    >>> two = RiverMixture(Mixture(np.array([0.9, 0.1]), np.array([0.0, 8.0]), np.ones(2), Gaussian()), n_samples=100)
    >>> two, round(two.mode, 3), round(two.cdf(4.0), 3)
    (Mixture(μ=0.800, σ=2.600), 0.0, 0.9)
    """

    n_samples: Any = 0
    """Number of events that the model had learned."""

    def __init__(self, mixture: Mixture, n_samples: int = 0, seed: int | None = None) -> None:
        super().__init__(seed)
        self.mixture, self.n_samples = mixture, n_samples
        self.mu, self.sigma = mixture.mean(), float(np.sqrt(mixture.variance()))

    @property
    def mode(self) -> float:
        """Where the density is largest, to a twentieth of the scale of a component."""
        means, scales = self.mixture.means, np.sqrt(self.mixture.squares)
        points = (means[:, None] + scales[:, None] * np.linspace(-3.0, 3.0, 121)).ravel()
        return float(points[np.argmax(self.mixture.pdf(points))])

    def __call__(self, x: float) -> float:
        return self.mixture.pdf(x)

    def cdf(self, x: float) -> float:
        return self.mixture.cdf(x)

    def sample(self) -> float:
        return self.mixture.sample(np.random.default_rng(self._rng.getrandbits(64)))

    def update(self, x: float) -> Never:
        raise ConfigError("a predicted distribution does not change; call learn_one of its model, and predict again")

    revert = update

    def __repr__(self) -> str:
        return f"Mixture(μ={self.mu:.3f}, σ={self.sigma:.3f})"
