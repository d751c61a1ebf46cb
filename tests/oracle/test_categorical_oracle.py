"""`MoEClassifier` against the literal Algorithm 3."""

import numpy as np
import pytest

from benchmarks.oracle_agreement import HOSTILE, STEPS, Case, estimator, powers, run, start_of, stream
from tests.oracle.algorithm3 import Algorithm3

EVENTS = 200
SOUND = [steps for steps in STEPS if steps != HOSTILE]
BOUNDS = ["adaptive", "tight", "paper"]
WIDTHS = [3, 11]


@pytest.mark.sampled(one_in=11)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("K", [1, 2, 4])
def test_iterates_of_the_plain_algorithm(K, p, classes, bound, weighted):
    case = Case(K, p, bound, SOUND[weighted], classes=classes, weighted=weighted)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.sampled(one_in=11)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("p", WIDTHS)
@pytest.mark.parametrize("K", [1, 2, 4])
def test_iterates_under_hostile_steps_with_a_prior(K, p, classes, seed):
    case = Case(K, p, BOUNDS[seed], HOSTILE, prior=1.0, seed=seed, classes=classes, weighted=seed > 0)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.smallest_mass >= 1e-3 / K
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("prior", [0.0, 1.0])
def test_many_experts_and_features(prior, bound):
    case = Case(8, 31, bound, HOSTILE if prior else SOUND[0], prior=prior, classes=3)
    agreement = run(case, EVENTS, twins=3)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize(("degree", "gate_degree"), [(2, 2), (2, 1), (1, 2)])
def test_powers_of_the_inputs(degree, gate_degree):
    case = Case(3, 1 + 2 * degree, "adaptive", SOUND[0], degree=degree, gate_degree=gate_degree, classes=3)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("prior", [0.0, 1.0])
@pytest.mark.parametrize(("bound", "other"), [("adaptive", "tight"), ("tight", "paper"), ("paper", "adaptive")])
def test_another_curvature_is_noticed(bound, other, prior):
    case = Case(4, 3, bound, HOSTILE if prior else SOUND[0], prior=prior, classes=3)
    assert run(case, 100, twins=1, kernel_bound=other).difference > 1e-4


def test_another_prior_is_noticed():
    case = Case(3, 3, "adaptive", HOSTILE, prior=1.0, classes=3)
    events = stream(case, 100)
    model = estimator(case, start_of(case, events), case.bound)
    oracle = Algorithm3(model.parameters(), bound="adaptive", prior_strength=1.001)
    gammas = STEPS[HOSTILE].steps(1, 100)
    model.learn_array(events.X, events.y, feature_names=model.feature_names)
    for row, label, gamma in zip(powers(events.X, 1), events.y, gammas, strict=True):
        oracle.learn(row, row, label, gamma)
    assert np.abs(model.parameters()["experts"] - oracle.theta["experts"]).max() > 1e-6
