"""What heavy tails add to the Gaussian step: the weights of a single event, in every place where one enters."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.distributions import MultivariateStudentTMixture
from streammoe.engine import mm
from streammoe.engine.em import Buffer
from streammoe.engine.warmup import fit
from streammoe.experts import Parameters
from streammoe.kernels.state import MMState, Prior
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
def test_the_mass_counts_an_event_in_full_and_the_gram_matrix_by_its_weight(case):
    before, state, _, R, Y = after_one_event(case)
    tau, u = responsibilities(case, before, R, Y)[0][0], trust(case, before, R, Y)[0]
    assert np.abs(u - 1.0).max() > 0.05
    np.testing.assert_allclose(state.masses, 0.8 * before.masses + 0.2 * 1.7 * tau, rtol=1e-12)
    for k in range(K):
        expected = 0.8 * before.expert_grams[k] + 0.2 * 1.7 * tau[k] * u[k] * np.outer(R[0], R[0])
        np.testing.assert_allclose(state.decay[0] * state.expert_grams[k], expected, rtol=1e-12)


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


@pytest.mark.parametrize("case", [Case("student_t", 1), Case("laplace", 1)], ids=str)
def test_one_expert_is_fitted_to_the_end(case):
    rng = np.random.default_rng(0)
    R, Y = draw(case, 300, P, 1)
    Y = Y + np.where(rng.random((300, 1)) < 0.3, 1e3 * rng.exponential(size=(300, 1)), 0.0)
    chosen = options(case, 1)
    state = fit(
        case.family,
        Buffer(R, R, Y, np.ones(300)),
        n_experts=1,
        n_outputs=1,
        restarts=1,
        seed=0,
        options=chosen,
    )
    one = mm.score(case.family, state, R, R, Y, n_outputs=1)[0].losses.mean()
    again = fit_on(case, state, R, Y, chosen)
    assert again > one - 1e-5


def fit_on(case, state, R, Y, chosen):
    """The mean loss after a hundred more rounds."""

    theta = Parameters(state.gate.copy(), state.experts.copy(), state.variances.copy())
    prior = Prior(
        chosen.prior_strength,
        state.prior_gate_gram,
        state.prior_expert_gram,
        state.prior_experts,
        state.prior_variances,
        chosen.variance_floor,
    )
    case.family.fit_experts(theta, prior, chosen, np.ones((len(R), 1)), R, Y, 100)
    moved = state._replace(average_experts=theta.experts, average_variances=theta.variances)
    return mm.score(case.family, moved, R, R, Y, n_outputs=1)[0].losses.mean()


@heavy
def test_the_loss_of_an_expert_is_the_entropy_of_its_noise(case):
    squares = np.full((1, case.n_outputs), 4.0)
    state = mm.random_start(
        case.family, n_experts=1, p_w=P, p_v=P, n_outputs=case.n_outputs, prior_strength=0.5, seed=0
    )
    state.variances[:] = squares
    rng = np.random.default_rng(0)
    noise = case.family.noise.sample(rng, (200_000, 1)) * 2.0
    if case.n_outputs > 1:
        scales = np.full((1, case.n_outputs), 2.0)
        noise = MultivariateStudentTMixture([1.0], 0.0 * scales, scales, 4.0).sample(rng, 200_000)
    state.average_variances[:] = squares
    R = np.zeros((len(noise), P))
    losses = mm.score(case.family, state, R, R, noise, n_outputs=case.n_outputs)[0].losses
    assert case.family.expert_losses(state)[0] == pytest.approx(losses.mean(), abs=0.02)


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
