"""Noise of experts, and the predictive distributions of mixtures for one event.

Each noise is a file here, found by its name `NOISE`. Distributions have moments, density, quantiles and samples; they
have no state and learn nothing. The K components are the experts at one input: their shares are the gate's
probabilities, their means Υ_k φ(x), their scales those of the noise. All numbers are in the target's own units.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from streammoe.distributions.contract import ExpertNoise
from streammoe.distributions.gaussian import Gaussian
from streammoe.distributions.laplace import Laplace
from streammoe.distributions.mixtures import Mixture, MultivariateMixture
from streammoe.distributions.student_t import StudentT

__all__ = ["ExpertNoise", "Gaussian", "Laplace", "Mixture", "MultivariateMixture", "StudentT", "noises"]


@cache
def noises() -> Mapping[str, type[ExpertNoise]]:
    """Return every noise by its name, first those without a limit on outputs.

    >>> noises()["student_t"](df=5.0)
    StudentT(df=5.0)
    """
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [module.NOISE for module in modules if hasattr(module, "NOISE")]
    found.sort(key=lambda noise: (noise.most_outputs is not None, noise.name))
    return {noise.name: noise for noise in found}
