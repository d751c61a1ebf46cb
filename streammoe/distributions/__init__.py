"""Predictive distributions of mixtures for one event, with their moments, density, quantiles and samples.

They have no state and learn nothing. The K components are the experts at one input: their shares are the gate's
probabilities, their means Υ_k φ(x), their scales those of the noise. All numbers are in the target's own units.
"""

from streammoe.distributions.multivariate import (
    MultivariateGaussianMixture,
    MultivariateMixture,
    MultivariateStudentTMixture,
)
from streammoe.distributions.univariate import GaussianMixture, LaplaceMixture, Mixture, StudentTMixture, mixture_of

__all__ = [
    "GaussianMixture",
    "LaplaceMixture",
    "Mixture",
    "MultivariateGaussianMixture",
    "MultivariateMixture",
    "MultivariateStudentTMixture",
    "StudentTMixture",
    "mixture_of",
]
