"""States with more features, shares of a residual, and outputs that are hard to hold."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mixture
from streammoe.engine.bound_mixture import learn_features
from streammoe.engine.mixture import Candidate
from streammoe.engine.state import STATE, widen
from streammoe.kernels.soundness import is_sound
from streammoe.kernels.state import MMState
from tests.unit.cases import Case, draw, options, random_state, same_bits

STEADY = schedules.Power(0.6, gamma0=0.5, offset=20)
K, P = 3, 4
GATE_AT, EXPERT_AT = np.array([0, 1, 2, 4]), np.array([0, 1, 3, 4])
SOME = [Case("gaussian_full", 3), Case("student_t", 3), Case("categorical", 3)]
cases = pytest.mark.parametrize("case", SOME, ids=str)


def learn(case, state, R, Y, *, schedule=STEADY, residual=None):
    if residual is None:
        residual = mixture.new_residual(state)
    chosen = options(case, len(state.experts), 0.3, schedule=schedule)
    one, weights = Candidate(state, residual, chosen), np.ones(len(R))
    return learn_features(case.family, one, schedule, R, R, Y, weights, n_outputs=case.n_outputs)


def learned(case):
    """A state in the middle of a refresh window, where stored and true Gram matrices differ."""
    state = random_state(case, K, P, 0.3)
    learn(case, state, *draw(case, 70, P, 2))
    assert state.decay[0] < 1.0
    return state


def averages_begin(state):
    raw = [state.gate, state.experts, state.variances]
    served = [state.average_gate, state.average_experts, state.average_variances]
    return state.n_average[0] == 1 and same_bits(served, raw) and not any(map(np.shares_memory, served, raw))


@cases
def test_old_entries_keep_their_places_and_new_ones_begin_at_the_prior(case):
    state = learned(case)
    wide = widen(state, GATE_AT, 5, EXPERT_AT, 6)
    assert (wide.gate[:, GATE_AT] == state.gate).all()
    assert (wide.gate[:, 3] == 0).all()
    assert (wide.experts[..., EXPERT_AT] == state.experts).all()
    assert (wide.experts[..., [2, 5]] == 0).all()
    # Averages held zeros of the new coordinates, which would be served for as long as they had been gathered.
    assert averages_begin(wide)
    weight = max(float(state.prior_weight[0]), 1.0 / (1.0 + state.n[0]))
    assert wide.decay[0] * wide.gate_gram[3, 3] == pytest.approx(weight)
    assert wide.decay[0] * wide.expert_grams[1, 2, 2] == pytest.approx(weight / K)


def test_every_array_that_steps_change_is_declared_and_checked():
    state = random_state(Case("gaussian", 1), K, P)
    assert tuple(STATE) == MMState._fields
    assert is_sound(state)
    # A prior is what it was; how much it weighs is not.
    still = {name for name in STATE if name.startswith("prior_")} - {"prior_weight"}
    changed = [name for name, declared in STATE.items() if not declared.is_count and name not in still]
    for name in changed:
        array = getattr(state, name).copy()
        array.flat[-1] = np.nan
        assert not is_sound(state._replace(**{name: array})), name


@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 3)], ids=str)
def test_the_residual_is_a_share(case):
    R, Y = draw(case, 3000, P, 2)
    state = random_state(case, 2, P)
    residual = mixture.new_residual(state)
    assert np.isnan(mixture.convergence_residual(residual))
    learn(case, state, R[:64], Y[:64], residual=residual)
    assert mixture.convergence_residual(residual) == pytest.approx(1.0)
    learn(case, state, R[64:], Y[64:], residual=residual)
    assert 0.0 < mixture.convergence_residual(residual) < 0.8


def test_collinear_outputs_stay_finite_under_a_full_covariance():
    case = Case("gaussian_full", 3)
    R, Y = draw(Case("gaussian", 1), 1500, P, 2)
    Y = np.column_stack([Y, -2.0 * Y, np.zeros(len(Y))])
    for schedule in (STEADY, schedules.Constant(0.2)):
        state = random_state(case, 2, P)
        losses = learn(case, state, R, Y, schedule=schedule).losses
        assert all(np.isfinite(array).all() for array in state)
        assert np.isfinite(losses).all()
        assert (np.einsum("kqq->kq", state.variances) > 0.0).all()
        np.testing.assert_array_equal(state.variances, state.variances.transpose(0, 2, 1))
