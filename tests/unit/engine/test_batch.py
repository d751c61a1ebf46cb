"""Rounds of the batch methods: what each promises, how they end, and which start wins."""

import math

import numpy as np
import pytest

from streammoe.engine import batch
from streammoe.engine.em import Buffer, Em, statistics_at
from streammoe.engine.gradient import expert_objective, gate_objective, gradient, squared_norm
from streammoe.engine.methods import METHODS, STEPPED, LineSearch, point_at
from streammoe.engine.state import UnsoundError
from streammoe.engine.warmup import LEAST_STRENGTH, as_streamed, with_own_prior
from streammoe.experts import Parameters
from tests.unit.cases import Case, draw, options, random_prior, random_theta, responsibilities, same_bits

n, p, K = 80, 3, 3
SOME = [Case("gaussian", 1), Case("gaussian_full", 3), Case("student_t", 3), Case("categorical", 3)]


def problem(case, bound="tight", strength=0.7, seed=0, K=K):
    R, Y = draw(case, n, p, K, seed)
    weights = np.random.default_rng(9).uniform(0.0, 2.0, n)
    return Em(case.family, Buffer(R, R, Y, weights), random_prior(case, strength, p), options(case, K, strength, bound))


def descend(em, case, method, **more):
    arguments = {"rounds": 30, "tolerance": 0.0} | more
    return batch.descend(em, random_theta(case, K, p), method, **arguments)


@pytest.mark.parametrize("case", SOME, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_no_round_lowers_the_likelihood_or_changes_the_start(case, method):
    theta = random_theta(case, K, p)
    way = batch.descend(problem(case), theta, method, rounds=20, tolerance=0.0)
    assert same_bits(theta, random_theta(case, K, p))
    changes = [each.change for each in way.trace[1:]]
    assert min(changes) > -1e-12
    assert way.trace[-1].objective > way.trace[0].objective + 0.05
    assert [each.number for each in way.trace] == list(range(len(way.trace)))


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_trace_says_what_the_parameters_are(case):
    em = problem(case)
    way = descend(em, case, "em", rounds=5)
    objective, tau = em.expect(way.theta)
    assert way.objective == way.trace[-1].objective == objective
    assert way.trace[-1].gradient == math.sqrt(squared_norm(*gradient(em, way.theta, tau)))
    assert math.isnan(way.trace[0].change)
    for before, after in zip(way.trace, way.trace[1:], strict=False):
        assert after.change == after.objective - before.objective
        assert after.seconds >= before.seconds


@pytest.mark.parametrize("case", SOME, ids=str)
def test_with_one_step_for_all_gradient_em_is_gradient_descent(case):
    """Fisher's identity: the complete-data objectives have the slope of the likelihood."""
    em = problem(case)
    ways = [descend(em, case, method, step=0.02, rounds=5) for method in STEPPED]
    assert same_bits(ways[0].theta, ways[1].theta)
    searched = [descend(em, case, method, rounds=20) for method in STEPPED]
    assert not same_bits(searched[0].theta, searched[1].theta)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_objectives_of_gate_and_experts_add_up(case):
    """Σ τ (log g + log e) and the prior, which is all that a round of gradient EM looks at."""
    em, theta = problem(case), random_theta(case, K, p)
    total, tau = em.expect(theta)
    entropy = -np.sum(tau * np.log(np.maximum(tau, 1e-300)), axis=1) @ em.buffer.weights / n
    parts = [gate_objective(em, theta.gate, tau), *(expert_objective(em, theta, k, tau) for k in range(K))]
    assert sum(parts) + entropy == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("case", SOME, ids=str)
def test_each_step_of_gradient_em_gains_what_armijo_asks_for(case):
    em = problem(case)
    point = point_at(em, random_theta(case, K, p))
    slope = gradient(em, point.theta, point.tau)
    after = METHODS["gradient_em"]().advance(em, point, slope)
    step = _step(point.theta.gate, after.theta.gate, slope.gate)
    gain = gate_objective(em, after.theta.gate, point.tau) - gate_objective(em, point.theta.gate, point.tau)
    assert gain >= 1e-4 * step * squared_norm(slope.gate) > 0.0
    for k in range(K):
        step = _step(point.theta.experts[k], after.theta.experts[k], slope.experts[k])
        gain = expert_objective(em, after.theta, k, point.tau) - expert_objective(em, point.theta, k, point.tau)
        assert gain >= 1e-4 * step * squared_norm(slope.experts[k], slope.variances[k]) * (1.0 - 1e-9) > 0.0


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_round_of_mm_is_what_streaming_starts_from(case):
    """`statistics_at`, which tests/oracle holds to the literal algorithm."""
    em = problem(case)
    point = point_at(em, random_theta(case, K, p))
    theta = Parameters(*(array.copy() for array in point.theta))
    after = METHODS["mm"]().advance(em, point, gradient(em, point.theta, point.tau))
    statistics_at(em, theta)
    assert same_bits(after.theta, theta)


def _step(before, after, slope):
    at = np.unravel_index(np.argmax(np.abs(slope)), slope.shape)
    return (after - before)[at] / slope[at]


def test_a_line_search_goes_on_from_twice_its_last_step():
    asked = []

    def objective(step):
        asked.append(step)
        return -((step - 0.1) ** 2)

    search = LineSearch()
    first = search.step(objective, 0.2)  # the slope of the objective at 0
    assert first == 0.125
    assert asked == [0.0, 1.0, 0.5, 0.25, 0.125]
    asked.clear()
    assert search.step(objective, 0.2, now=-0.01) == 0.125
    assert asked == [0.25, 0.125]


def test_a_line_search_that_finds_nothing_says_so():
    assert LineSearch().step(lambda step: -step, 1.0) == 0.0
    assert LineSearch().step(lambda step: 1e-5 * step, 1.0) == 0.0  # less than the slope promises, by far
    assert LineSearch().step(lambda step: math.nan if step else 0.0, 1.0) == 0.0


# --- how a descent ends ---------------------------------------------------------------------------------------------


def test_it_ends_for_a_reason():
    case, em, seen = SOME[0], problem(SOME[0]), []
    way = descend(em, case, "em", rounds=500, tolerance=1e-6)
    assert way.reason == batch.CONVERGED
    assert abs(way.trace[-1].change) <= 1e-6 < min(each.change for each in way.trace[1:-1])
    way = descend(em, case, "mm", rounds=4)
    assert (way.reason, len(way.trace)) == (batch.OUT_OF_ROUNDS, 5)
    way = descend(em, case, "em", on_round=lambda each: seen.append(each) or each.number == 2)
    assert (way.reason, len(way.trace), tuple(seen)) == (batch.STOPPED, 3, way.trace)
    way = descend(problem(SOME[2], strength=20.0), SOME[2], "gradient_descent", rounds=5_000)
    assert way.reason == batch.STATIONARY
    assert way.trace[-1].gradient < 1e-6


@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_step_that_is_too_long_leaves_the_likeliest_round(case):
    em = problem(case)
    with np.errstate(all="ignore"):
        way = descend(em, case, "gradient_descent", step=1e160, rounds=50)
    assert way.reason == batch.DIVERGED
    assert way.objective == max(each.objective for each in way.trace) == em.expect(way.theta)[0]


def test_a_step_that_is_rather_long_does_too():
    case = Case("categorical", 3)
    em = problem(case)
    way = descend(em, case, "gradient_descent", step=60.0, rounds=40)
    assert way.reason == batch.OUT_OF_ROUNDS
    assert way.trace[-1].objective < way.objective == em.expect(way.theta)[0]


def test_an_infinite_start_leads_nowhere():
    case = SOME[0]
    theta = random_theta(case, K, p)
    theta.experts[0] = np.inf
    with np.errstate(all="ignore"):
        assert batch.descend(problem(case), theta, "em", rounds=3, tolerance=0.0) is None
    with pytest.raises(UnsoundError):
        batch.fit(problem(case), [theta], "em", rounds=3, tolerance=0.0)


# --- the fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SOME, ids=str)
def test_the_likeliest_end_wins_and_is_settled(case):
    em = problem(case)
    starts = [random_theta(case, K, p, seed) for seed in range(4)]
    ends = [batch.descend(em, theta, "em", rounds=40, tolerance=1e-9).objective for theta in starts]
    best, state = batch.fit(em, starts, "em", rounds=40, tolerance=1e-9)
    assert best.objective == max(ends) > min(ends)
    assert best.trace[0].start == int(np.argmax(ends))
    assert em.expect(Parameters(state.gate, state.experts, state.variances))[0] >= best.objective - 1e-12
    tau = responsibilities(case, best.theta, em.buffer.R, em.buffer.Y)[0] * em.buffer.weights[:, None]
    np.testing.assert_allclose(state.masses, (tau.sum(axis=0) + 0.7 / K) / (n + 0.7), rtol=1e-8)
    assert state.n[0] == n


def test_an_end_that_was_asked_for_tries_no_further_start():
    case = SOME[0]
    starts = [random_theta(case, K, p, seed) for seed in range(3)]
    seen = []
    best, _ = batch.fit(
        problem(case), starts, "em", rounds=9, tolerance=0.0, on_round=lambda each: seen.append(each) or True
    )
    assert [each.start for each in seen] == [0]
    assert best.reason == batch.STOPPED


@pytest.mark.parametrize("case", [Case("gaussian", 1), Case("categorical", 3)], ids=str)
def test_a_search_has_a_prior_even_where_streaming_has_none(case):
    R, Y = draw(case, n, p, K)
    em = with_own_prior(case.family, Buffer(R, R, Y, np.ones(n)), case.n_outputs, options(case, K, 0.0))
    assert em.prior.strength == LEAST_STRENGTH
    assert as_streamed(em).prior.strength == 0.0
    _, state = batch.fit(em, [random_theta(case, K, p)], "em", rounds=5, tolerance=0.0)
    assert state.prior_weight[0] == 0.0
