"""What families say of their own shapes."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.experts import families
from tests.unit.cases import CASES, HEAVY, Case, draw, options


def test_every_module_with_a_family_is_found_under_its_own_name():
    assert {name: family.name for name, family in families().items()} == {
        "categorical": "categorical",
        "gaussian": "gaussian",
        "gaussian_full": "gaussian_full",
        "laplace": "laplace",
        "student_t": "student_t",
    }


@pytest.mark.parametrize(
    "case", [Case("gaussian", 3), Case("gaussian_full", 3), Case("laplace", 1), Case("categorical", 3)], ids=str
)
class TestShapes:
    def test_of_a_prior_that_has_seen_nothing(self, case):
        prior = case.family.unit_prior(0.5, 4, 7, case.n_outputs)
        assert (prior.strength, prior.gate_gram.tolist(), prior.expert_gram.tolist()) == (0.5, [1.0] * 4, [1.0] * 7)
        assert prior.experts.shape == (case.n_rows, 7)
        assert not prior.experts.any()
        assert prior.variances.tolist() == [1.0] * case.family.n_variances(case.n_outputs)

    def test_of_variances_for_each_expert(self, case):
        given = np.arange(1.0, 1.0 + case.family.n_variances(case.n_outputs))
        found = case.family.variances_of(given, 2)
        assert found.shape[:2] == (2, len(given))
        for each in found:
            assert (np.diag(each) if each.ndim == 2 else each).tolist() == given.tolist()
        assert found.base is None or not np.shares_memory(found, given)

    def test_of_variances_for_a_first_fit(self, case):
        _, Y = draw(case, 5, 3, 2)
        for rows in (Y, Y[:1]):
            found = case.family.first_variances(rows)
            expected = np.ones(case.family.n_variances(case.n_outputs))
            if case.name in HEAVY:  # the scale of the targets
                expected = np.mean(rows**2, axis=0)
            np.testing.assert_allclose(found, expected)
        assert (case.family.first_variances(0.0 * Y) == 1.0).all()

    def test_the_residual_holds_what_the_kernel_writes_and_no_more(self, case):
        """Entries that stay 0 after an event without zeros would be entries that nobody writes."""
        state = mm.random_start(
            case.family, n_experts=3, p_w=4, p_v=4, n_outputs=case.n_outputs, prior_strength=0.5, seed=0
        )
        state.gate[:] = 0.3
        residual = mm.new_residual(case.family, state, case.n_outputs)
        R, Y = draw(case, 1, 4, 2)
        chosen = options(case, 3, 0.5)
        weights = np.array([1.7])  # with 1 the intercept's entry would be its mean already
        given = state, residual, chosen, schedules.power(), R, R, Y
        mm.learn(case.family, *given, n_outputs=case.n_outputs, weights=weights)
        assert np.count_nonzero(residual) == len(residual)
        assert residual[-1] == 1.0
        assert residual[-2] == pytest.approx(np.sqrt(np.sum(residual[:-2] ** 2)))


def test_a_classifier_that_has_met_no_class_or_one_has_no_rows():
    family = families()["categorical"]
    assert [family.n_rows(M) for M in (0, 1, 2, 5)] == [0, 0, 1, 4]


def test_the_start_has_a_weak_prior_but_classes_need_an_event():
    for case in CASES:
        weak = case.family.start_prior(case.family.unit_prior(0.0, 2, 2, case.n_outputs))
        assert weak.strength == (1e-3 if case.family.is_metric else 1.0), case
