"""Steps and scores: what the iterates of tests/oracle do not show, and numbers that are hard to hold."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mixture
from streammoe.engine.state import is_finite
from tests.unit.cases import Case, draw, options, random_state

STEPS = schedules.power(0.6)
P = 4


def learn(case, state, R, Y, *, schedule=STEPS, residual=None, **more):
    if residual is None:
        residual = mixture.new_residual(case.family, state, case.n_outputs)
    chosen = options(case, len(state.experts), 0.5, schedule=schedule)
    return mixture.learn(case.family, state, residual, chosen, schedule, R, R, Y, n_outputs=case.n_outputs, **more)


@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 3)], ids=str)
def test_the_residual_is_a_share(case):
    R, Y = draw(case, 3000, P, 2)
    state = random_state(case, 2, P)
    residual = mixture.new_residual(case.family, state, case.n_outputs)
    assert np.isnan(mixture.convergence_residual(residual))
    learn(case, state, R[:64], Y[:64], residual=residual)
    assert mixture.convergence_residual(residual) == pytest.approx(1.0)
    learn(case, state, R[64:], Y[64:], residual=residual)
    assert 0.0 < mixture.convergence_residual(residual) < 0.8


def test_collinear_outputs_stay_finite_under_a_full_covariance():
    case = Case("gaussian_full", 3)
    R, Y = draw(Case("gaussian", 1), 1500, P, 2)
    Y = np.column_stack([Y, -2.0 * Y, np.zeros(len(Y))])
    for schedule in (STEPS, schedules.constant(0.2)):
        state = random_state(case, 2, P)
        losses = learn(case, state, R, Y, schedule=schedule).losses
        assert is_finite(state)
        assert np.isfinite(losses).all()
        assert (np.einsum("kqq->kq", state.variances) > 0.0).all()
        np.testing.assert_array_equal(state.variances, state.variances.transpose(0, 2, 1))
