"""Which family of experts the arguments of a regressor name."""

from __future__ import annotations

from functools import cache

from streammoe.experts import Family, families
from streammoe.experts.student_t import StudentT

COVARIANCES = {"diagonal": "gaussian", "full": "gaussian_full"}
"""The family of Gaussian experts for each kind of covariance."""


@cache
def family_of(expert: str, covariance: str, degrees_of_freedom: float) -> Family:
    """The family that these arguments name."""
    if expert == "student_t":
        return StudentT(degrees_of_freedom)
    return families()[COVARIANCES[covariance] if expert == "gaussian" else expert]
