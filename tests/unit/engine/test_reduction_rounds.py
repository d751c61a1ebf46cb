"""Rounds of normal experts, all at once by a kernel, against those of one expert after the other."""

from __future__ import annotations

import numpy as np
import pytest

from streammoe.engine.reduction import Experts, Local, Normal, Problem

S, M, K, P = 60, 3, 2, 3


def problem_of(n_outputs, is_full, seed=0):
    rng = np.random.default_rng(seed)
    R = np.column_stack([np.ones(S), rng.normal(size=(S, P - 1))])
    gates = rng.dirichlet(np.ones(K), size=(S, M)).reshape(S, M * K)
    parts = rng.dirichlet(np.ones(M), size=S)
    means = rng.normal(size=(S, M * K, n_outputs))
    roots = np.eye(n_outputs) + 0.3 * is_full * np.tril(rng.normal(size=(M * K, n_outputs, n_outputs)))
    variances = roots @ roots.swapaxes(1, 2)
    if not is_full:
        variances = variances * np.eye(n_outputs)
    local = Local(np.log(gates), parts, means, variances, np.repeat(np.arange(M), K))
    return Normal(local, R, is_full=is_full)


@pytest.mark.parametrize(("n_outputs", "is_full"), [(1, False), (2, False), (2, True), (3, True)])
class TestNormalExpertsInOnePass:
    def test_go_to_where_they_go_one_reduced_expert_after_the_other(self, n_outputs, is_full):
        problem = problem_of(n_outputs, is_full)
        experts = problem.linear().part(np.array([0, 3, 4]))
        nearest, costs = problem.divergences(experts)
        wanted, wanted_costs = Problem.divergences(problem, experts)
        np.testing.assert_array_equal(nearest, wanted)
        np.testing.assert_allclose(costs, wanted_costs, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("is_whole", [False, True])
    def test_move_as_they_do_one_after_the_other_and_leave_an_empty_one(self, n_outputs, is_full, is_whole):
        problem = problem_of(n_outputs, is_full)
        given = problem.linear()
        far = Experts(given.coefficients[:1] + 1e3, given.variances[:1])
        experts = Experts(*(np.concatenate(pair) for pair in zip(given.part(np.array([0, 3])), far, strict=True)))
        nearest = np.array([0, 1, 0, 1, 1, 0]) if is_whole else problem.divergences(experts)[0]
        moved, masses = problem.moved(nearest, experts)
        wanted, wanted_masses = Problem.moved(problem, nearest, experts)
        np.testing.assert_allclose(masses, wanted_masses, rtol=1e-12)
        assert masses[2] == 0.0
        np.testing.assert_array_equal(moved.coefficients[2], experts.coefficients[2])
        for found, expected in zip(moved, wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
