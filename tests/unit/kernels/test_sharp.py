"""The guard of curvatures below the bound: no step raises the loss that the gate has on its own events."""

import numpy as np
import pytest
from scipy.special import log_softmax

from streammoe.engine.em import Buffer, statistics_at
from streammoe.engine.jobs import run_job
from streammoe.engine.search import with_own_prior
from streammoe.kernels.shared import step_gate
from tests.unit.cases import Case, options, random_state, random_theta

P = 3


def drawn(rng):
    """A state with a steep gate and an uneven Gram matrix, a few events, their shares and responsibilities."""
    K, B = rng.integers(2, 6), rng.integers(1, 9)
    state = random_state(Case("gaussian", 1), K, P, seed=int(rng.integers(1000)))
    state.gate[:] = rng.normal(size=state.gate.shape) * 10 ** rng.uniform(-1, 1)
    root = rng.normal(size=(P, P)) * 10 ** rng.uniform(-2, 1, size=P)
    state.gate_gram[:] = root @ root.T + 1e-6 * np.eye(P)
    state.gate_inverse[:] = np.linalg.inv(state.gate_gram)
    W = rng.normal(size=(B, P)) * 10 ** rng.uniform(-1, 1.5)
    tau = rng.dirichlet(np.full(K, 0.3), size=B)
    amounts = rng.uniform(0.5, 1.5, size=B) * 10 ** rng.uniform(-3, 6)
    return state, W, tau, amounts


def gate_losses(state, W, tau):
    """(B,) −Σ τ log g."""
    return -np.sum(tau * log_softmax(np.column_stack([W @ state.gate.T, np.zeros(len(W))]), axis=1), axis=1)


def shares_of(state, W):
    return np.exp(log_softmax(np.column_stack([W @ state.gate.T, np.zeros(len(W))]), axis=1))


def test_no_event_is_explained_worse_by_its_own_step():
    rng, moved = np.random.default_rng(0), 0
    for _ in range(400):
        state, W, tau, amounts = drawn(rng)
        given = options(Case("gaussian", 1), tau.shape[1], bound="sharp")
        before = gate_losses(state, W[:1], tau[:1])[0]
        step_gate(state, given, amounts[0], shares_of(state, W[:1])[0], tau[0], np.empty(8), W[0], np.empty(P))
        after = gate_losses(state, W[:1], tau[:1])[0]
        assert after <= before + 1e-9 * max(before, 1.0)
        moved += after < before - 1e-3
    assert moved > 100


@pytest.mark.parametrize(("seed", "scale"), [(2, 3.0), (3, 3.0), (14, 10.0)])
def test_a_step_of_a_whole_gate_that_would_overshoot_is_shortened_until_it_gains(seed, scale):
    case, rng = Case("gaussian", 1), np.random.default_rng(seed)
    W = np.column_stack([np.ones(25), scale * rng.normal(size=(25, 1))])
    buffer = Buffer(W, W, 3.0 * rng.normal(size=(25, 1)), np.ones(25))
    em = run_job(with_own_prior(case.family, buffer, 1, options(case, 3, 0.01, "sharp")))
    theta = random_theta(case, 3, 2, seed)
    theta = theta._replace(gate=scale * theta.gate)
    _, tau = em.e_step(theta)

    def explained(gate):
        return float((tau * log_softmax(np.column_stack([W @ gate.T, np.zeros(25)]), axis=1)).sum())

    before = theta.gate.copy()
    assert explained(statistics_at(em, theta).gate) > explained(before)
