"""What families say of themselves."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.experts import families
from tests.unit.cases import CASES, Case, draw, options


def test_every_module_with_a_family_is_found_under_its_own_name():
    names = ["categorical", "gaussian", "gaussian_full", "laplace", "student_t"]
    assert {name: family.name for name, family in families().items()} == dict(zip(names, names, strict=True))
    assert [families()["categorical"].n_rows(M) for M in (0, 1, 2, 5)] == [0, 0, 1, 4]


@pytest.mark.parametrize(
    "case", [Case("gaussian", 3), Case("gaussian_full", 3), Case("laplace", 1), Case("categorical", 3)], ids=str
)
def test_the_residual_holds_what_the_kernel_writes_and_no_more(case):
    """Entries that stay 0 after an event without zeros would be entries that nobody writes."""
    family, n_outputs = case.family, case.n_outputs
    state = mm.random_start(family, n_experts=3, p_w=4, p_v=4, n_outputs=n_outputs, prior_strength=0.5, seed=0)
    state.gate[:] = 0.3
    residual = mm.new_residual(family, state, n_outputs)
    R, Y = draw(case, 1, 4, 2)
    weights = np.array([1.7])  # with 1 the intercept's entry would be its mean already
    given = state, residual, options(case, 3, 0.5), schedules.power(), R, R, Y
    mm.learn(family, *given, n_outputs=n_outputs, weights=weights)
    assert np.count_nonzero(residual) == len(residual)
    assert residual[-1] == 1.0
    assert residual[-2] == pytest.approx(np.sqrt(np.sum(residual[:-2] ** 2)))


def test_the_start_has_a_weak_prior_but_classes_need_an_event():
    for case in CASES:
        weak = case.family.start_prior(case.family.unit_prior(0.0, 2, 2, case.n_outputs))
        assert weak.strength == (1e-3 if case.family.is_metric else 1.0), case
