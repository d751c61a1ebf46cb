"""Steps and scores: what the iterates of tests/oracle do not show, and numbers that are hard to hold."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mm
from streammoe.engine.state import is_finite
from tests.unit.cases import Case, draw, options, random_state

STEPS = schedules.power(0.6)
P = 4


def learn(case, state, R, Y, *, schedule=STEPS, residual=None, **more):
    if residual is None:
        residual = mm.new_residual(case.family, state, case.n_outputs)
    chosen = options(case, len(state.experts), 0.5, schedule=schedule)
    return mm.learn(case.family, state, residual, chosen, schedule, R, R, Y, n_outputs=case.n_outputs, **more)


@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 3)], ids=str)
def test_the_residual_is_a_share(case):
    R, Y = draw(case, 3000, P, 2)
    state = random_state(case, 2, P)
    residual = mm.new_residual(case.family, state, case.n_outputs)
    assert np.isnan(mm.convergence_residual(residual))
    learn(case, state, R[:64], Y[:64], residual=residual)
    assert mm.convergence_residual(residual) == pytest.approx(1.0)
    learn(case, state, R[64:], Y[64:], residual=residual)
    assert 0.0 < mm.convergence_residual(residual) < 0.8


# --- numbers that are hard to hold ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian", "gaussian_full"])
def test_densities_of_forty_outputs_do_not_overflow(name):
    """A product of forty variances of 1e-18 or 1e18 is no double."""
    case = Case(name, 40)
    R, Y = draw(Case("gaussian", 40), 80, P, 2)

    def losses(unit):
        state = random_state(case, 2, P)
        for array in (state.experts, state.average_experts):
            array[:] = 0.0
        for array in (state.variances, state.average_variances):
            array[:] = case.family.variances_of(unit**2, 2)
        state = state._replace(prior_variances=unit**2)
        found = learn(case, state, R, Y * unit).losses - np.log(unit).sum()
        assert is_finite(state)
        return found

    expected = losses(np.ones(40))
    for sizes in [(1e-9, 1e-9), (1e9, 1e9), (1e-9, 1e9)]:
        np.testing.assert_allclose(losses(np.tile(sizes, 20)), expected, rtol=1e-6, atol=1e-6)


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


# --- parts ----------------------------------------------------------------------------------------------------------


def test_runs_that_knew_fewer_classes_are_joined_with_zeros():
    few = mm.Scores(np.zeros(2), np.ones((2, 1)), mm.Trace(np.ones((2, 1)), np.ones((2, 1, 1)), np.empty((2, 1, 0))))
    more = mm.Scores(
        np.ones(1), np.full((1, 3), 0.5), mm.Trace(np.ones((1, 2)), np.ones((1, 2, 3)), np.empty((1, 2, 0)))
    )
    whole = mm.joined([few, more])
    assert whole.losses.tolist() == [0.0, 0.0, 1.0]
    assert whole.predictions.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.5, 0.5, 0.5]]
    assert whole.trace.shares.tolist() == [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    assert whole.trace.means.shape == (3, 2, 3)
    assert whole.trace.variances.shape == (3, 2, 0)
