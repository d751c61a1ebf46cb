"""States with more features; classes that join are tested with the classifier."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.engine import mixture
from streammoe.engine.state import widen
from tests.unit.cases import Case, draw, options, random_state, same_bits

STEADY = schedules.power(0.6, gamma0=0.5, offset=20)
K, P = 3, 4
GATE_AT, EXPERT_AT = np.array([0, 1, 2, 4]), np.array([0, 1, 3, 4])
SOME = [Case("gaussian_full", 3), Case("student_t", 3), Case("categorical", 3)]
cases = pytest.mark.parametrize("case", SOME, ids=str)


def learn(case, state, R, Y, *, W=None):
    residual = mixture.new_residual(case.family, state, case.n_outputs)
    given = options(case, K, 0.3, schedule=STEADY), STEADY, R if W is None else W, R, Y
    return mixture.learn(case.family, state, residual, *given, n_outputs=case.n_outputs)


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
