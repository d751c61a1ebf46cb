"""What heavy tails add to the Gaussian step: the weights of a single event, in every place where one enters."""

import numpy as np
import pytest

from streammoe.distributions import MultivariateStudentTMixture
from streammoe.engine import mm
from streammoe.noise import NORMAL
from tests.unit.cases import CASES, HEAVY, Case, options, random_state

P = 4


@pytest.mark.parametrize("case", [case for case in CASES if case.family.is_metric], ids=str)
def test_the_loss_of_an_expert_is_the_entropy_of_its_noise(case):
    rng, Q = np.random.default_rng(0), case.n_outputs
    state = random_state(case, 1, P)
    if case.name in HEAVY and Q > 1:
        noise = MultivariateStudentTMixture([1.0], np.zeros((1, Q)), np.full((1, Q), 2.0), 4.0).sample(rng, 50_000)
    else:
        noise = 2.0 * (case.family.noise if case.name in HEAVY else NORMAL).sample(rng, (50_000, Q))
    for variances in (state.variances, state.average_variances):
        variances[:] = 4.0 * np.eye(Q) if variances.ndim == 3 else 4.0
    R = np.zeros((len(noise), P))
    losses = mm.score(case.family, state, R, R, noise, n_outputs=Q)[0].losses
    assert case.family.expert_losses(state)[0] == pytest.approx(losses.mean(), abs=0.03)


@pytest.mark.parametrize("expert", HEAVY)
def test_divergences_bound_those_of_the_densities(expert):
    case = Case(expert, 1)
    law = case.family.noise
    z = np.linspace(-400.0, 400.0, 400_001)
    density, step = law.pdf(z), z[1] - z[0]
    weights = 5.0 / (4.0 + z * z) if expert == "student_t" else 1.0 / np.maximum(np.abs(z), 0.1)
    for apart in (0.01, 0.3, 2.0, 20.0):
        state = random_state(case, 2, 1)
        state.average_experts[:, 0, 0] = 0.0, apart
        state.expert_grams[:] = 0.5 * np.sum(density * weights) * step
        truth = np.sum(density * np.log(density / np.maximum(law.pdf(z - apart), 1e-300))) * step
        found = case.family.divergences(state, options(case, 2))[0, 1]
        assert truth * (1.0 - 1e-6) <= found
        assert apart > 0.3 or found < 4.0 * truth
