"""What heavy tails add to the Gaussian step: the weights of a single event, in every place where one enters."""

import numpy as np
import pytest

from streammoe.distributions import Gaussian
from streammoe.engine import mixture
from tests.unit.cases import CASES, HEAVY, random_state

P = 4


@pytest.mark.parametrize("case", [case for case in CASES if case.family.is_metric], ids=str)
def test_the_loss_of_an_expert_is_the_entropy_of_its_noise(case):
    rng, Q = np.random.default_rng(0), case.n_outputs
    state = random_state(case, 1, P)
    if case.name in HEAVY and Q > 1:
        noise = 2.0 * case.family.noise.joint_sample(rng, (50_000,), Q)
    else:
        noise = 2.0 * (case.family.noise if case.name in HEAVY else Gaussian()).sample(rng, (50_000, Q))
    for variances in (state.variances, state.average_variances):
        variances[:] = 4.0 * np.eye(Q) if variances.ndim == 3 else 4.0
    R = np.zeros((len(noise), P))
    losses = mixture.score(case.family, mixture.served_parameters(state), R, R, noise, n_outputs=Q)[0].losses
    assert case.family.expert_losses(state)[0] == pytest.approx(losses.mean(), abs=0.03)
