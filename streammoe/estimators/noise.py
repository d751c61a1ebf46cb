"""The families of experts for the noise of a regressor."""

from __future__ import annotations

from functools import cache

from streammoe.experts import Family, families
from streammoe.experts.student_t import StudentT
from streammoe.options import Expert, Gaussian, Laplace

COVARIANCES = {"diagonal": "gaussian", "full": "gaussian_full"}
"""The family of Gaussian experts for each kind of covariance."""


@cache
def family_of(expert: Expert) -> Family:
    """Return the family of experts with this noise."""
    if isinstance(expert, Gaussian):
        return families()[COVARIANCES[expert.covariance]]
    return families()["laplace"] if isinstance(expert, Laplace) else StudentT(expert.df)
