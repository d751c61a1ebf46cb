"""Fits to more events: rounds of EM, which test_batch_methods holds to the formulas, and what comes of them."""

import numpy as np
import pytest

from streammoe.engine.members.contract import Rows
from streammoe.engine.members.refitted import Refitted
from streammoe.engine.mixture import Scores, no_trace
from tests.unit.cases import Case, draw, literal, log_gate, random_theta

P, K = 3, 3


def test_the_refitted_member_says_what_its_parameters_say_and_counts_what_it_gains():
    case = Case("gaussian", 3)
    R, Y = draw(case, 60, P, K)
    theta, weights = random_theta(case, K, P), np.random.default_rng(1).uniform(0.5, 2.0, 60)
    member = Refitted(case.family, theta)
    average = np.random.default_rng(2).uniform(0.0, 30.0, 60)
    said = member.learn(
        Rows(R, R, Y, weights, R), Scores(average, Y, no_trace()), n_outputs=case.n_outputs, traced=False
    )
    algorithm = literal(case, theta)
    losses = [-np.logaddexp.reduce(algorithm.log_joint(r, r, y)) for r, y in zip(R, Y, strict=True)]
    np.testing.assert_allclose(said.losses, losses, rtol=1e-9)
    means = np.einsum("nk,kqj,nj->nq", np.exp(log_gate(theta.gate, R)), theta.experts, R)
    np.testing.assert_allclose(said.predictions, means, rtol=1e-9)
    gain = sum(np.clip(weights * (average - losses), -10.0, 10.0))
    assert member.arrays()["refitted_gain"][0] == pytest.approx(gain)


def test_the_refitted_member_stays_while_no_other_is_trusted():
    """What it lost on the average during a fault in the data must not dismiss the only one that predicts after it."""
    member = Refitted(Case("gaussian", 3).family, random_theta(Case("gaussian", 3), K, P), gain=-1e4)
    assert [member.stays(0.995, n) for n in range(3)] == [True] * 3
    assert [member.stays(0.95, n) for n in range(2)] == [True, False]
