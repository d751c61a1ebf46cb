"""Which family of experts the arguments of a regressor name."""

from __future__ import annotations

from functools import cache
from typing import Any

from streammoe.estimators.arguments import is_amount, is_one_of
from streammoe.experts import Family, families
from streammoe.experts.student_t import LEAST_DEGREES, MOST_DEGREES, StudentT

COVARIANCES = {"diagonal": "gaussian", "full": "gaussian_full"}
"""The family of Gaussian experts for each kind of covariance."""
EXPERTS = ("gaussian", "student_t", "laplace")
"""What the noise of an expert may be."""


@cache
def family_of(expert: str, covariance: str, degrees_of_freedom: float) -> Family:
    """The family that keeps these arguments, which keep the rules below."""
    if expert == "student_t":
        return StudentT(degrees_of_freedom)
    return families()[COVARIANCES[covariance] if expert == "gaussian" else expert]


def noise_rules(expert: Any, covariance: Any, degrees_of_freedom: Any, *, several: bool) -> list[tuple[bool, str]]:
    """Rules for the arguments, as `Arguments` wants them; `several`: whether there may be more outputs than one."""
    may_be = [name for name in EXPERTS if not several or families()[name].most_outputs is None]
    known = ", ".join(map(repr, may_be))
    is_known = is_one_of(expert, may_be)
    is_full = is_one_of(covariance, ("full",))
    hint = f"{expert!r} knows one output only; make a model for each output, or " if is_one_of(expert, EXPERTS) else ""
    sound = is_amount(degrees_of_freedom) and LEAST_DEGREES < degrees_of_freedom <= MOST_DEGREES
    least = f"above {LEAST_DEGREES:g}, or predictions have no variance, and at most {MOST_DEGREES:g}"
    return [
        (is_known, f"expert: got {expert!r}; {hint}choose one of {known}"),
        (sound, f"degrees_of_freedom: got {degrees_of_freedom!r}; it must be {least}"),
        (
            not several or is_one_of(covariance, COVARIANCES),
            f"covariance: got {covariance!r}; choose one of {', '.join(map(repr, COVARIANCES))}",
        ),
        (
            not (several and is_full and is_known and expert != "gaussian"),
            f"covariance: got 'full' with expert = {expert!r}; only 'gaussian' experts learn how errors go together",
        ),
        (
            several or is_one_of(covariance, ("diagonal",)),
            f"covariance: got {covariance!r}; one output knows only 'diagonal'",
        ),
    ]
