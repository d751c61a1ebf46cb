"""Families of experts: those of the modules here that define a `FAMILY`, and one for each noise with heavy tails."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from streammoe.distributions import ExpertNoise, noises
from streammoe.experts.contract import Family, Parameters
from streammoe.experts.elliptical import Elliptical

__all__ = ["Family", "Parameters", "families", "family_of"]


@cache
def families() -> Mapping[str, Family]:
    """Return every family by its name; those of noise with options have their defaults.

    >>> families()["student_t"].noise
    StudentT(df=4.0)
    """
    of_noise = [family_of(noise()) for noise in noises().values()]
    return {**_families_in_modules(), **{family.name: family for family in of_noise}}


@cache
def family_of(noise: ExpertNoise) -> Family:
    """Return the family of experts with this noise: a module's own, or one made for its heavy tails."""
    own = _families_in_modules().get(noise.family)
    if own is None:
        return Elliptical(noise)
    return own if own.noise == noise else type(own)(noise)  # type: ignore[call-arg]  # those with a noise take it


@cache
def _families_in_modules() -> Mapping[str, Family]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {module.FAMILY.name: module.FAMILY for module in modules if hasattr(module, "FAMILY")}
