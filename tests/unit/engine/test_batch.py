"""Rounds of a batch fit: what they promise, how they end, and which start wins.

That no round lowers the likelihood, whatever the rows are, is in tests/property; EM is held to literal rounds in
tests/oracle.
"""

import math

import numpy as np
import pytest

from streammoe.engine import batch
from streammoe.experts import Parameters
from tests.unit.cases import Case, problem, random_theta, responsibilities, same_bits

n, p, K = 80, 3, 3
LINE, CLASSES = Case("gaussian", 1), Case("categorical", 3)
cases = pytest.mark.parametrize("case", [Case("gaussian_full", 3), Case("student_t", 3), CLASSES], ids=str)


def descend(em=None, **more):
    return batch.descend(
        em or problem(LINE, n, p, K), random_theta(LINE, K, p), **{"rounds": 30, "tolerance": 0.0} | more
    )


@cases
def test_the_trace_describes_the_parameters(case):
    em, theta = problem(case, n, p, K), random_theta(case, K, p)
    way = batch.descend(em, theta, rounds=8, tolerance=0.0)
    assert same_bits(theta, random_theta(case, K, p))
    objective, _ = em.e_step(way.theta)
    assert way.objective == way.trace[-1].objective == objective > way.trace[0].objective + 0.02
    assert [each.number for each in way.trace] == list(range(9))
    assert math.isnan(way.trace[0].change)
    for before, after in zip(way.trace, way.trace[1:], strict=False):
        assert after.change == after.objective - before.objective > -1e-12
        assert after.seconds >= before.seconds


# --- how a descent ends ---------------------------------------------------------------------------------------------


def test_it_ends_for_a_reason():
    way = descend(rounds=500, tolerance=1e-6)
    assert way.reason == batch.CONVERGED
    assert abs(way.trace[-1].change) <= 1e-6 < min(each.change for each in way.trace[1:-1])
    way = descend(rounds=4)
    assert (way.reason, len(way.trace)) == (batch.OUT_OF_ROUNDS, 5)
    seen = []
    way = descend(on_round=lambda each: seen.append(each) or each.number == 2)
    assert (way.reason, len(way.trace), tuple(seen)) == (batch.STOPPED, 3, way.trace)


@pytest.mark.parametrize("reason", [batch.DIVERGED, batch.OUT_OF_ROUNDS, batch.STATIONARY])
def test_the_likeliest_round_counts_whatever_comes_after_it(reason):
    worse = {batch.DIVERGED: math.nan, batch.OUT_OF_ROUNDS: -1e9}

    def advance(em, point):
        if point.objective < way_up.objective:
            return batch.em_round(em, point)
        return point._replace(objective=worse[reason]) if reason in worse else None

    way_up = descend(rounds=3)
    way = descend(advance=advance, rounds=4)
    assert (way.reason, way.objective) == (reason, way_up.objective)
    assert same_bits(way.theta, way_up.theta)


# --- the fit --------------------------------------------------------------------------------------------------------


@cases
def test_the_likeliest_end_wins_and_is_settled(case):
    em = problem(case, n, p, K)
    starts = [random_theta(case, K, p, seed) for seed in range(3)]
    ends = [batch.descend(em, theta, rounds=15, tolerance=1e-9).objective for theta in starts]
    best, state = batch.fit(em, starts, rounds=15, tolerance=1e-9)
    assert best.objective == max(ends) > min(ends)
    assert best.trace[0].start == int(np.argmax(ends))
    assert em.e_step(Parameters(state.gate, state.experts, state.variances))[0] >= best.objective - 1e-12
    tau = responsibilities(case, best.theta, em.buffer.R, em.buffer.Y)[0] * em.buffer.weights[:, None]
    np.testing.assert_allclose(state.masses, (tau.sum(axis=0) + 0.7 / K) / (n + 0.7), rtol=1e-8)
    assert state.n[0] == n
