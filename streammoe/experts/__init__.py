"""Families of experts: linear ones of each noise, and categorical ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from streammoe.distributions import ExpertNoise, Gaussian, noises
from streammoe.experts.categorical import Categorical
from streammoe.experts.contract import Family, Parameters
from streammoe.experts.linear import Linear

__all__ = ["Family", "Parameters", "families", "family_of"]


@cache
def families() -> Mapping[str, Family]:
    """Return every family by its name; those of noise with options have their defaults.

    >>> families()["student_t"].noise
    StudentT(df=4.0)
    """
    linear = [family_of(noise) for noise in (*(noise() for noise in noises().values()), Gaussian("full"))]
    return {family.name: family for family in (Categorical(), *linear)}


@cache
def family_of(noise: ExpertNoise) -> Family:
    """Return the family of linear experts with this noise."""
    return Linear(noise)
