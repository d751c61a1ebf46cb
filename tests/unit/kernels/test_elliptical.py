"""What heavy tails add to the Gaussian step: the weights of a single event, in every place where one enters."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.distributions import MultivariateStudentTMixture
from streammoe.engine import mm
from streammoe.kernels.state import MMState
from streammoe.noise import NORMAL
from tests.unit.cases import CASES, HEAVY, Case, draw, options, responsibilities, trust

heavy = pytest.mark.parametrize("case", [case for case in CASES if case.name in HEAVY], ids=str)
K, P = 3, 4


def after_one_event(case, weight=1.7):
    """Parameters before, the state and its residual after, and the event."""
    state = mm.random_start(
        case.family, n_experts=K, p_w=P, p_v=P, n_outputs=case.n_outputs, prior_strength=0.5, seed=0
    )
    state.gate[:] = 0.3
    before = MMState(*(array.copy() for array in state))
    R, Y = draw(case, 1, P, 2, seed=4)
    residual = mm.new_residual(case.family, state, case.n_outputs)
    given = state, residual, options(case, K, 0.5), schedules.constant(0.2), R, R, Y
    mm.learn(case.family, *given, n_outputs=case.n_outputs, weights=np.array([weight]))
    return before, state, residual, R, Y


@heavy
def test_the_residual_is_the_event_less_the_statistics(case):
    before, _, residual, R, Y = after_one_event(case)
    r, y = R[0], Y[0]
    tau = 1.7 * responsibilities(case, before, R, Y)[0][0]
    trusted = tau * trust(case, before, R, Y)[0]
    at = P * P + (K - 1) * P
    for k in range(K):
        gram, upsilon = before.expert_grams[k], before.experts[k]
        squares = before.masses[k] * before.variances[k] + np.diag(upsilon @ gram @ upsilon.T)
        expected = [
            (trusted[k] * np.outer(r, r) - gram).ravel(),
            (trusted[k] * np.outer(y, r) - upsilon @ gram).ravel(),
            trusted[k] * y**2 - squares,
            [tau[k] - before.masses[k]],
        ]
        size = case.family.residual_size(case.n_outputs, P)
        np.testing.assert_allclose(residual[at : at + size], np.concatenate(expected), rtol=1e-10)
        at += size


@pytest.mark.parametrize("case", [case for case in CASES if case.family.is_metric], ids=str)
def test_the_loss_of_an_expert_is_the_entropy_of_its_noise(case):
    rng = np.random.default_rng(0)
    Q = case.n_outputs
    given = {"n_experts": 1, "p_w": P, "p_v": P, "n_outputs": Q, "prior_strength": 0.5, "seed": 0}
    state = mm.random_start(case.family, **given)
    squares = np.full(Q, 4.0)
    if case.name in HEAVY and Q > 1:
        noise = MultivariateStudentTMixture([1.0], np.zeros((1, Q)), np.full((1, Q), 2.0), 4.0).sample(rng, 100_000)
    else:
        noise = 2.0 * (case.family.noise if case.name in HEAVY else NORMAL).sample(rng, (100_000, Q))
    for variances in (state.variances, state.average_variances):
        variances[:] = np.diag(squares) if variances.ndim == 3 else squares
    R = np.zeros((len(noise), P))
    losses = mm.score(case.family, state, R, R, noise, n_outputs=Q)[0].losses
    assert case.family.expert_losses(state)[0] == pytest.approx(losses.mean(), abs=0.03)


@pytest.mark.parametrize("expert", ["student_t", "laplace"])
def test_divergences_bound_those_of_the_densities(expert):
    case = Case(expert, 1)
    law = case.family.noise
    z = np.linspace(-400.0, 400.0, 800_001)
    for apart in (0.01, 0.3, 2.0, 20.0):
        state = mm.random_start(case.family, n_experts=2, p_w=1, p_v=1, n_outputs=1, prior_strength=0.5, seed=0)
        state.average_experts[:, 0, 0] = 0.0, apart
        density = law.pdf(z)
        mean_trust = np.sum(
            density * (5.0 / (4.0 + z * z) if expert == "student_t" else 1.0 / np.maximum(np.abs(z), 0.1))
        )
        state.expert_grams[:] = 0.5 * mean_trust * (z[1] - z[0])
        truth = np.sum(density * np.log(density / np.maximum(law.pdf(z - apart), 1e-300))) * (z[1] - z[0])
        found = case.family.divergences(state, options(case, 2))[0, 1]
        assert truth * (1.0 - 1e-6) <= found
        assert apart > 0.3 or found < 4.0 * truth
