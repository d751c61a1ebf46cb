"""The estimators' kernels compute, at O(K p²) an event, the iterates of the literal algorithms."""

from itertools import product

import numpy as np
import pytest

from streammoe.distributions import StudentT as Tails
from streammoe.experts import families
from tests.oracle.agreement import FAMILIES, HOSTILE, STEPS, Case, estimator, run
from tests.oracle.literal import StudentT
from tests.pairs import pairwise, pairwise_cases

SOUND, SLOW = (steps for steps in STEPS if steps != HOSTILE)
OPTIONS = {
    "family": list(FAMILIES),
    "bound": ["sharp", "adaptive", "tight", "paper"],
    "steps": [(SOUND, 0.0), (HOSTILE, 1.0), (SLOW, 0.5)],
    "K": [1, 2, 4],
    "inputs": [2, 7],
    "degrees": [(1, 1), (2, 1), (1, 2)],
    "weighted": [False, True],
    "per_coefficient": [0.0, 2.0],
    "top_k": [None, 1, 2],
}
WIDE = {name: values for name, values in OPTIONS.items() if name != "family"}
WIDE |= {"K": [2, 8], "inputs": [15, 32], "degrees": [(1, 1), (2, 2)]}


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
def test_iterates_in_every_combination_and_of_wide_rows(family):
    some = OPTIONS | {"family": [family], "inputs": [7], "per_coefficient": [0.0]}  # too few events for a limit to act
    some |= {"top_k": [None]}
    every = [dict(zip(some, values, strict=True)) for values in product(*some.values())]
    for options in [*every, *pairwise(**WIDE, family=[family])]:
        case = case_of(**options)
        agreement = run(case)
        assert agreement.holds(case), (case, agreement)


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("gaussian 3", {"bound": "tight"}),
        ("5 classes", {"bound": "tight"}),
        ("3 classes", {"prior_strength": 1.001}),
        ("full 3", {"schedule": STEPS[SOUND]}),
        ("student_t", {"top_k": 3}),
        ("student_t", {"expert": Tails(4.1)}),
    ],
)
def test_a_fault_is_noticed(family, fault):
    case = Case(4, 3, "adaptive", HOSTILE, prior=1.0, **FAMILIES[family])
    agreement = run(case, 30, make=lambda case, start: estimator(case, start, **fault))
    assert np.isfinite(agreement.self_difference)
    assert not agreement.holds(case)


@pytest.mark.parametrize("degrees", [2.5, 30.0])
def test_degrees_of_freedom_are_those_of_the_literal_algorithm(degrees, monkeypatch):
    monkeypatch.setattr(StudentT, "degrees", degrees)
    case = Case(3, 3, "tight", HOSTILE, prior=1.0, expert="student_t")
    assert run(case, make=lambda case, start: estimator(case, start, expert=Tails(degrees))).holds(case)
