"""`MoERegressor` against the literal Algorithm 2."""

import numpy as np
import pytest

from benchmarks.oracle_agreement import HOSTILE, STEPS, Case, estimator, powers, run, start_of, stream
from tests.oracle.algorithm2 import Algorithm2

EVENTS = 500
SOUND = [steps for steps in STEPS if steps != HOSTILE]
WIDTHS = [3, 11, pytest.param(31, marks=pytest.mark.slow)]


@pytest.mark.sampled(one_in=11)
@pytest.mark.parametrize("steps", SOUND)
@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_iterates_of_the_plain_algorithm(K, p, bound, steps):
    case = Case(K, p, bound, steps)
    agreement = run(case, EVENTS, twins=3 if p > 11 else 1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.sampled(one_in=11)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_iterates_under_hostile_steps_with_a_prior(K, p, seed):
    case = Case(K, p, "paper" if seed % 2 else "tight", HOSTILE, prior=1.0, seed=seed)
    agreement = run(case, EVENTS, twins=3 if p > 11 else 1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.smallest_mass >= 1e-3 / K
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.sampled(one_in=11)
@pytest.mark.parametrize(("degree", "gate_degree"), [(2, 2), (2, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize(("steps", "prior"), [(SOUND[0], 0.0), (SOUND[1], 0.5), (HOSTILE, 1.0)])
def test_iterates_with_powers_of_the_inputs(steps, prior, degree, gate_degree):
    case = Case(3, 1 + 2 * degree, "tight", steps, prior=prior, degree=degree, gate_degree=gate_degree)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("prior", [0.0, 1.0])
@pytest.mark.parametrize(("bound", "other"), [("tight", "paper"), ("paper", "tight")])
def test_another_curvature_is_noticed(bound, other, prior):
    case = Case(4, 3, bound, HOSTILE if prior else SOUND[0], prior=prior)
    assert run(case, 100, twins=1, kernel_bound=other).difference > 1e-4


def test_another_prior_is_noticed():
    case = Case(3, 3, "tight", HOSTILE, prior=1.0)
    events = stream(case, 100)
    model = estimator(case, start_of(case, events), case.bound)
    oracle = Algorithm2(model.parameters(), bound="tight", prior_strength=1.001)
    gammas = STEPS[HOSTILE].steps(1, 100)
    model.learn_array(events.X, events.y, feature_names=model.feature_names)
    for row, target, gamma in zip(powers(events.X, 1), events.y[:, None], gammas, strict=True):
        oracle.learn(row, row, target, gamma)
    assert np.abs(model.parameters()["experts"] - oracle.theta["experts"]).max() > 1e-6
