"""Fits to more events: rounds of EM, which test_batch_methods holds to the formulas, and what comes of them."""

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.engine import mixture
from streammoe.engine.members.refitted import Refitted
from streammoe.engine.portfolio import N_PERMANENT
from streammoe.options import WarmUp
from tests.unit.cases import Case, random_theta

P, K = 3, 3


def test_the_refitted_member_counts_what_it_gains_on_the_average():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(260, P))
    y = np.abs(X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=260)
    y[230] = 40.0  # where the gain of one event is limited
    model = MoERegressor(2, warmup=WarmUp(100, restarts=1), hold=False, refits=False)
    model.learn_array(X[:200], y[:200])
    learner = model.learner
    portfolio, encoder, family = learner.phase.portfolio, learner.encoder, learner.context.family
    theta = mixture.served_parameters(learner.state).copied()
    theta.experts[...] += 0.3 * rng.normal(size=theta.experts.shape)
    portfolio.take_refitted(family, theta)
    learner.undo.forget()
    gains = []
    for i in range(200, 260):
        W, R = encoder.design(X[i : i + 1])
        Z = (y[i : i + 1, None] - encoder.scaler.target_center) / encoder.scaler.target_scale
        average = mixture.served_parameters(learner.state)
        own, other = (mixture.score(family, each, W, R, Z, n_outputs=1)[0].losses[0] for each in (theta, average))
        gains.append(other - own)
        model.learn_array(X[i : i + 1], y[i : i + 1])
    assert max(np.abs(gains)) > 10.0
    member = portfolio.members[N_PERMANENT]
    assert member.arrays()["refitted_gain"][0] == pytest.approx(np.clip(gains, -10.0, 10.0).sum())


def test_the_refitted_member_stays_while_no_other_is_trusted():
    """What it lost on the average during a fault in the data must not dismiss the only one that predicts after it."""
    member = Refitted(Case("gaussian", 3).family, random_theta(Case("gaussian", 3), K, P), gain=-1e4)
    assert [member.stays(0.995, n) for n in range(3)] == [True] * 3
    assert [member.stays(0.95, n) for n in range(2)] == [True, False]
