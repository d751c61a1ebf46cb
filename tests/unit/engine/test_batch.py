"""Rounds of the batch methods: what each promises, how they end, and which start wins."""

import math

import numpy as np
import pytest

from streammoe.engine import batch
from streammoe.engine.em import Buffer, Em
from streammoe.engine.gradient import expert_objective, gate_objective, gradient, moved, squared_norm
from streammoe.engine.methods import METHODS, STEPPED, LineSearch, point_at
from streammoe.engine.state import UnsoundError
from streammoe.engine.warmup import LEAST_STRENGTH, as_streamed, with_own_prior
from streammoe.experts import Parameters
from tests.unit.cases import CASES, Case, draw, options, random_prior, random_theta, responsibilities, same_bits

n, p, K = 80, 3, 3


def problem(case, bound="tight", strength=0.7, seed=0, K=K):
    R, Y = draw(case, n, p, K, seed)
    weights = np.random.default_rng(9).uniform(0.0, 2.0, n)
    return Em(case.family, Buffer(R, R, Y, weights), random_prior(case, strength, p), options(case, K, strength, bound))


def descend(em, case, method, **more):
    arguments = {"rounds": 30, "tolerance": 0.0} | more
    return batch.descend(em, random_theta(case, K, p), method, **arguments)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_no_round_lowers_the_likelihood(case, method):
    way = descend(problem(case), case, method)
    changes = [each.change for each in way.trace[1:]]
    assert min(changes) > -1e-12
    assert way.trace[-1].objective > way.trace[0].objective + 0.05
    assert [each.number for each in way.trace] == list(range(len(way.trace)))


@pytest.mark.parametrize("case", CASES, ids=str)
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_start_is_left_as_it_was(case):
    em, theta = problem(case), random_theta(case, K, p)
    before = Parameters(*(array.copy() for array in theta))
    for method in METHODS:
        batch.descend(em, theta, method, rounds=3, tolerance=0.0)
        assert same_bits(before, theta), method


@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_one_step_for_all_gradient_em_is_gradient_descent(case):
    """Fisher's identity: the complete-data objectives have the slope of the likelihood."""
    em = problem(case)
    ways = [descend(em, case, method, step=0.02, rounds=5) for method in STEPPED]
    assert same_bits(ways[0].theta, ways[1].theta)
    searched = [descend(em, case, method, rounds=20) for method in STEPPED]
    assert not same_bits(searched[0].theta, searched[1].theta)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_objectives_of_gate_and_experts_add_up(case):
    """Σ τ (log g + log e) and the prior, which is all that a round of gradient EM looks at."""
    em, theta = problem(case), random_theta(case, K, p)
    total, tau = em.expect(theta)
    entropy = -np.sum(tau * np.log(np.maximum(tau, 1e-300)), axis=1) @ em.buffer.weights / n
    parts = [gate_objective(em, theta.gate, tau), *(expert_objective(em, theta, k, tau) for k in range(K))]
    assert sum(parts) + entropy == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("case", CASES, ids=str)
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


def test_line_searches_are_told_the_whole_slope(monkeypatch):
    case = CASES[0]
    em, theta = problem(case), random_theta(case, K, p)
    squares = []
    monkeypatch.setattr(LineSearch, "step", lambda self, objective, square, now=None: squares.append(square) or 0.0)
    for method in STEPPED:
        batch.descend(em, theta, method, rounds=1, tolerance=0.0)
    assert len(squares) == 1 + K + 1
    assert sum(squares[:-1]) == pytest.approx(squares[-1], rel=1e-12)
    assert squares[-1] == squared_norm(*gradient(em, theta, em.expect(theta)[1]))


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


def test_it_ends_when_a_round_gains_too_little():
    case = CASES[0]
    way = descend(problem(case), case, "em", rounds=500, tolerance=1e-6)
    assert way.reason == batch.CONVERGED
    assert abs(way.trace[-1].change) <= 1e-6 < min(each.change for each in way.trace[1:-1])


def test_it_ends_with_its_rounds():
    case = CASES[0]
    way = descend(problem(case), case, "mm", rounds=4)
    assert (way.reason, len(way.trace)) == (batch.OUT_OF_ROUNDS, 5)


def test_it_ends_where_no_step_helps_any_more():
    case = CASES[3]
    way = descend(problem(case, strength=20.0), case, "gradient_descent", rounds=5_000)
    assert way.reason == batch.STATIONARY
    assert way.trace[-1].gradient < 1e-6


def test_it_ends_when_it_is_asked_to():
    case = CASES[0]
    seen = []
    way = descend(problem(case), case, "em", on_round=lambda each: seen.append(each) or each.number == 2)
    assert (way.reason, len(way.trace)) == (batch.STOPPED, 3)
    assert tuple(seen) == way.trace


@pytest.mark.parametrize("case", CASES, ids=str)
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
    case = CASES[0]
    theta = random_theta(case, K, p)
    theta.experts[0] = np.inf
    with np.errstate(all="ignore"):
        assert batch.descend(problem(case), theta, "em", rounds=3, tolerance=0.0) is None
    with pytest.raises(UnsoundError, match="likelihood of every start"):
        batch.fit(problem(case), [theta], "em", rounds=3, tolerance=0.0)


# --- the fit --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_likeliest_end_wins_and_is_settled(case):
    em = problem(case)
    starts = [random_theta(case, K, p, seed) for seed in range(4)]
    ends = [batch.descend(em, theta, "em", rounds=40, tolerance=1e-9).objective for theta in starts]
    best, state = batch.fit(em, starts, "em", rounds=40, tolerance=1e-9)
    assert best.objective == max(ends) > min(ends)
    assert best.trace[0].start == int(np.argmax(ends))
    settled = Parameters(state.gate, state.experts, state.variances)
    assert em.expect(settled)[0] >= best.objective - 1e-12
    tau = responsibilities(case, best.theta, em.buffer.R, em.buffer.Y)[0] * em.buffer.weights[:, None]
    np.testing.assert_allclose(state.masses, (tau.sum(axis=0) + 0.7 / K) / (n + 0.7), rtol=1e-8)
    assert state.n[0] == n


def test_an_end_that_was_asked_for_tries_no_further_start():
    case = CASES[0]
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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_moves_add_up_and_none_is_no_move(case):
    em, theta = problem(case), random_theta(case, K, p)
    direction = Parameters(*(np.ones_like(array) for array in theta))
    nowhere = moved(em, theta, direction, 0.0, 0.0)
    for old, new in zip(theta, nowhere, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-12)
    one = moved(em, theta, direction, 0.5, np.array([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(one.gate, theta.gate + 0.5)
    np.testing.assert_allclose(
        one.experts - theta.experts, np.array([0.0, 1.0, 0.0])[:, None, None] + 0 * theta.experts
    )
    assert same_bits([one.variances[0], one.variances[2]], [nowhere.variances[0], nowhere.variances[2]])
