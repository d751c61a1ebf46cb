"""What `MoERegressor` and `MoEMultiTargetRegressor` add to the plain case: outputs, covariances, weights, a bound."""

import numpy as np
import pytest

from benchmarks.oracle_agreement import HOSTILE, STEPS, Case, estimator, names, run, start_of, stream
from streammoe import MoEMultiTargetRegressor

EVENTS = 200
SOUND = [steps for steps in STEPS if steps != HOSTILE]
FAMILIES = [{"outputs": 3}, {"outputs": 3, "covariance": "full"}]
BOUNDS = ["tight", "paper", "adaptive"]
families = pytest.mark.parametrize("family", FAMILIES, ids=["diagonal", "full"])


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("steps", SOUND)
@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.sampled(one_in=11)
def test_iterates_of_one_output_under_the_adaptive_bound(K, steps, weighted):
    case = Case(K, 11, "adaptive", steps, weighted=weighted)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.sampled(one_in=11)
def test_iterates_of_one_output_under_hostile_steps_with_a_prior(K, seed):
    case = Case(K, 11, BOUNDS[-(seed % 3)], HOSTILE, prior=1.0, seed=seed, weighted=True)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.sampled(one_in=11)
@families
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("p", [3, 11])
@pytest.mark.parametrize("K", [1, 2, 4])
def test_iterates_of_several_outputs(K, p, bound, weighted, family):
    case = Case(K, p, bound, SOUND[weighted], weighted=weighted, **family)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.sampled(one_in=11)
@families
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("p", [3, 11])
@pytest.mark.parametrize("K", [1, 2, 4])
def test_iterates_of_several_outputs_under_hostile_steps_with_a_prior(K, p, seed, family):
    case = Case(K, p, BOUNDS[seed], HOSTILE, prior=1.0, seed=seed, weighted=seed > 0, **family)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.finite
    assert agreement.smallest_mass >= 1e-3 / K
    assert agreement.difference <= agreement.target(case), agreement


@families
def test_powers_of_the_inputs(family):
    case = Case(3, 5, "adaptive", SOUND[0], degree=2, gate_degree=1, weighted=True, **family)
    agreement = run(case, EVENTS, twins=1)
    assert agreement.decides
    assert agreement.difference <= agreement.target(case), agreement


@pytest.mark.parametrize("family", [{}, *FAMILIES], ids=["one output", "diagonal", "full"])
@pytest.mark.parametrize(("bound", "other"), [("adaptive", "tight"), ("tight", "adaptive"), ("paper", "adaptive")])
def test_another_curvature_is_noticed(bound, other, family):
    case = Case(4, 3, bound, SOUND[0], **family)
    assert run(case, 100, twins=1, kernel_bound=other).difference > 1e-4


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_one_column_of_outputs_is_the_regressor_of_one_output(covariance):
    case = Case(3, 5, "tight", HOSTILE, prior=1.0)
    events = stream(case, 200)
    start = start_of(case, events)
    one = estimator(case, start, case.bound)
    if covariance == "full":
        start = start | {"variances": start["variances"][:, :, None]}
    column = MoEMultiTargetRegressor.from_parameters(
        start,
        covariance=covariance,
        feature_names=names(case),
        schedule=STEPS[HOSTILE],
        bound="tight",
        prior_strength=1.0,
        averaging=None,
    )
    losses = one.learn_array(events.X, events.y, feature_names=names(case))
    found = column.learn_array(events.X, events.y[:, None], feature_names=names(case))
    np.testing.assert_allclose(found, losses, rtol=1e-9)
    np.testing.assert_allclose(column.parameters()["experts"], one.parameters()["experts"], rtol=1e-9, atol=1e-12)
