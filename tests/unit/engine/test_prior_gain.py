"""What the division of the prior gains: as much as losses say where there is no noise, next to nothing where there is,
never below 0."""

import math

import numpy as np
import pytest

from streammoe.engine import mm
from streammoe.engine.em import Buffer
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.warmup import fit
from streammoe.experts import families
from streammoe.schedules import Power

RNG = np.random.default_rng(0)
N = 400
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 3))])
LINE = X @ np.array([[3.0, -1.0], [2.0, 0.5], [-1.0, 0.0], [0.0, 1.0]])
NOISE = RNG.normal(size=(N, 2))


def fitted(n_experts, Y, *, family="gaussian", weights=None, prior_strength=0.1):
    """A state with its family and its rows."""
    found = families()[family]
    buffer = Buffer(X, X, np.ascontiguousarray(Y), np.ones(N) if weights is None else weights)
    options = mm.learning_options(
        bound="tight",
        n_experts=n_experts,
        n_rows=Y.shape[1],
        prior_strength=prior_strength,
        averaging="polyak",
        schedule=Power(),
    )
    state = fit(found, buffer, n_experts=n_experts, n_outputs=Y.shape[1], restarts=1, seed=0, options=options)
    return found, buffer, state


def loss(family, buffer, state):
    """Of the mean event."""
    scores, _ = mm.score(family, state, buffer.W, buffer.R, buffer.Y, n_outputs=buffer.Y.shape[1])
    return float(scores.losses.mean())


@pytest.mark.parametrize(
    ("family", "n_experts"), [("gaussian", 2), ("gaussian_full", 4), ("student_t", 4), ("laplace", 2)]
)
def test_without_noise_it_is_all_by_which_more_experts_seem_better(family, n_experts):
    Y = LINE if family.startswith("gaussian") else LINE[:, :1]
    alone, many = fitted(1, Y, family=family), fitted(n_experts, Y, family=family)
    gain = prior_gain(many[2])
    assert gain == pytest.approx(0.5 * math.log(n_experts) * Y.shape[1], rel=0.02)
    assert loss(*alone) - loss(*many) == pytest.approx(gain, rel=0.05)


def test_with_noise_it_is_next_to_nothing():
    assert 0.0 <= prior_gain(fitted(3, LINE + 0.3 * NOISE)[2]) < 1e-4


def test_a_covariance_is_looked_at_along_its_own_directions():
    """Of two outputs with the same noise the difference has none."""
    Y = np.column_stack([LINE[:, 0] + 0.3 * NOISE[:, 0]] * 2)
    state = fitted(2, Y, family="gaussian_full")[2]
    shares = state.masses / state.masses.sum()
    entropy = -float(shares @ np.log(shares))
    assert prior_gain(state) == pytest.approx(0.5 * (math.log(2.0) - entropy), rel=0.05, abs=1e-3)


def test_what_the_division_has_cost_is_not_refunded():
    state = fitted(2, np.where(X[:, 1:2] > 0.0, LINE[:, :1], -LINE[:, :1]))[2]
    state.variances[0] *= 1e6  # all noise, so that the prior weighs on the other alone,
    state.masses[:] = [0.8, 0.2]  # which has little to do
    assert prior_gain(state) == 0.0


def test_events_of_more_weight_gain_as_much_more():
    once, twice = (fitted(3, LINE, weights=np.full(N, weight))[2] for weight in (1.0, 2.0))
    assert prior_gain(twice) == pytest.approx(2.0 * prior_gain(once), rel=0.01)


def test_where_there_is_nothing_to_divide_there_is_no_gain():
    assert prior_gain(fitted(1, LINE)[2]) == 0.0
    assert prior_gain(fitted(2, LINE, prior_strength=0.0)[2]) == 0.0
    classes = mm.random_start(
        families()["categorical"], n_experts=3, p_w=4, p_v=4, n_outputs=2, prior_strength=0.1, seed=0
    )
    assert prior_gain(classes) == 0.0


def test_experts_that_never_work_leave_it_finite():
    state = fitted(3, LINE)[2]
    state.masses[np.argsort(state.masses)[:2]] = 1e-100
    assert prior_gain(state) == pytest.approx(math.log(3.0), rel=0.02)
