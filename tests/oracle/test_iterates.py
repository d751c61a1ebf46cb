"""The estimators' kernels compute, at O(K p²) an event, the iterates of the literal algorithms."""

import pytest

from streammoe.distributions import StudentT as Tails
from streammoe.experts import families
from tests.oracle.agreement import FAMILIES, HOSTILE, STEPS, Case, estimator, run
from tests.oracle.literal import StudentT
from tests.pairs import pairwise_cases

SOUND, SLOW = (steps for steps in STEPS if steps != HOSTILE)
OPTIONS = {
    "family": list(FAMILIES),
    "bound": ["sharp", "adaptive", "tight", "paper"],
    "steps": [(SOUND, 0.0), (HOSTILE, 1.0), (SLOW, 0.5)],
    "K": [1, 2, 4],
    "inputs": [2, 7, 24],
    "degrees": [(1, 1), (2, 1), (1, 2)],
    "weighted": [False, True],
    "per_coefficient": [0.0, 2.0],
    "top_k": [None, 1, 2],
}


def case_of(*, family, bound, steps, K, inputs, degrees, weighted, per_coefficient, top_k):
    degree, gate_degree = degrees
    return Case(
        K,
        1 + inputs * degree,
        bound,
        *steps,
        degree,
        gate_degree,
        weighted=weighted,
        per_coefficient=per_coefficient,
        top_k=top_k if K > 1 else None,
        **FAMILIES[family],
    )


def test_every_family_has_a_literal_algorithm():
    assert {Case(1, 1, "tight", HOSTILE, **given).family for given in FAMILIES.values()} == families().keys()


@pytest.mark.slow
@pytest.mark.parametrize("options", pairwise_cases(**OPTIONS))
def test_iterates_are_those_of_the_literal_algorithm(options):
    case = case_of(**options)
    agreement = run(case, 150)
    assert agreement.holds(case), agreement


@pytest.mark.parametrize("degrees", [2.5, 30.0])
def test_degrees_of_freedom_are_those_of_the_literal_algorithm(degrees, monkeypatch):
    monkeypatch.setattr(StudentT, "degrees", degrees)
    case = Case(3, 3, "tight", HOSTILE, prior=1.0, expert="student_t")
    assert run(case, make=lambda case, start: estimator(case, start, expert=Tails(degrees))).holds(case)
