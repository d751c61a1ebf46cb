"""Which fits enter a race, what each pays, and who leads."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.distributions import Gaussian
from streammoe.engine import mixture
from streammoe.engine.em import Buffer
from streammoe.engine.jobs import run_job
from streammoe.engine.members.contract import Rows
from streammoe.engine.model_selection import (
    ENTRANTS,
    SHORTEST_RACE,
    Candidate,
    entrants,
)
from streammoe.experts import family_of
from streammoe.model.phases.streaming import Race
from streammoe.schedules import Power
from tests.unit.cases import Case, options, random_state

LINE = Case("gaussian", 1)
STEPS = Power(alpha=0.6)
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(200), RNG.normal(size=(200, 3))])
Y = X[:, 1:2] * np.where(X[:, 2:3] > 0.0, 1.0, -1.0) + 0.1 * RNG.normal(size=(200, 1))
Y[150] = np.nan
WEIGHTS = RNG.uniform(0.5, 2.0, size=200)
BUFFER = Buffer(X[:80], X[:80], X[:80, 1:2] + 0.1 * RNG.normal(size=(80, 1)), WEIGHTS[:80])
TOTALS = np.array([0.0, 0.0, 5.0])


def start(n_experts, share=None, seed=0):
    """Experts that all know so much of the truth."""
    state = random_state(LINE, n_experts, 4, 0.1, seed)
    if share is not None:
        state.average_experts[:] = share * np.array([0.0, 1.0, 0.0, 0.0])
    return state


def chosen(fit, most=5):
    def job(n_experts):
        yield 1.0
        return fit(n_experts)

    family = family_of(Gaussian(tail=math.inf))
    return run_job(entrants(family, BUFFER, job, max_experts=most, n_outputs=1, p_w=4, p_v=4))


@pytest.mark.parametrize(
    ("shares", "asked", "best"),
    [
        ({1: 1.0, 2: 0.5, 3: 0.0}, [1, 2, 3], [1, 2, 3]),
        ({1: -2.0, 2: -9.0, 3: 1.0, 4: -8.0, 5: -7.0}, [1, 2, 3, 4, 5], [3, 1, 5]),
        ({1: 0.0, 2: -9.0, 3: -8.0, 4: 1.0}, [1, 2, 3], [1, 3, 2]),
    ],
)
def test_the_cheapest_come_first_and_more_experts_are_tried_while_that_pays(shares, asked, best):
    tried = []
    found = chosen(lambda K: tried.append(K) or start(K, shares[K]))
    assert tried == asked
    assert [len(entrant.state.masses) for entrant in found] == best
    assert len(best) == ENTRANTS
    for entrant in found:
        K = len(entrant.state.masses)
        errors = BUFFER.Y[:, 0] - shares[K] * X[:80, 1]
        loss = BUFFER.weights @ (0.5 * errors**2 + 0.5 * math.log(2.0 * math.pi))
        free = (K - 1) * 4 + K * 5
        assert entrant.total == pytest.approx(loss + 0.5 * math.log(80 + SHORTEST_RACE) * free)


def candidate(n_experts, seed=0):
    state = start(n_experts, seed=seed)
    return Candidate(state, mixture.new_residual(LINE.family, state, 1), options(LINE, n_experts, schedule=STEPS))


def race():
    return Race([candidate(1), candidate(3), candidate(2, seed=4)], TOTALS.copy(), 10_000)


def learn(of, rows):
    context = SimpleNamespace(family=LINE.family, targets=SimpleNamespace(n_outputs=1))
    return of.step_mixtures(context, STEPS, Rows(X[rows], X[rows], Y[rows], WEIGHTS[rows], X[rows]), traced=True)


def alone(each):
    given = each.state, each.residual, each.options, STEPS, X, X, Y
    return mixture.learn(LINE.family, *given, weights=WEIGHTS, n_outputs=1, traced=True)


def test_each_row_is_scored_by_the_leader_before_it():
    raced, totals, led = race(), TOTALS.copy(), set()
    assert raced.leader is raced.candidates[0]  # of two as good the earlier
    found = learn(raced, slice(None))
    runs = [alone(each) for each in race().candidates]
    for i in range(200):
        leader = int(np.argmin(totals))
        led.add(leader)
        np.testing.assert_array_equal(found.predictions[i], runs[leader].predictions[i])
        np.testing.assert_array_equal(found.losses[i], runs[leader].losses[i])
        if not np.isnan(Y[i, 0]):
            totals += [WEIGHTS[i] * run.losses[i] for run in runs]
    assert len(led) > 1, "one led throughout, so this shows nothing"
    assert raced.totals.tobytes() == totals.tobytes()
    assert raced.leader is raced.candidates[int(totals.argmin())]
