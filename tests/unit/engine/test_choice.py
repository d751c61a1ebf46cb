"""Which fits go on to a race, and what their parameters cost."""

import math

import numpy as np
import pytest

from streammoe.engine import mm
from streammoe.engine.choice import ENTRANTS, SHORTEST_RACE, entrants, n_parameters, race_length
from streammoe.engine.em import Buffer
from streammoe.engine.state import UnsoundError
from streammoe.experts import families

RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(80), RNG.normal(size=(80, 3))])
BUFFER = Buffer(X, X, X[:, 1:2] + 0.1 * RNG.normal(size=(80, 1)), RNG.uniform(0.5, 1.5, size=80))
FAMILY = families()["gaussian"]


@pytest.mark.parametrize(
    ("family", "n_outputs", "expected"),
    [("gaussian", 1, 2 * 5 + 3 * (7 + 1)), ("gaussian", 2, 2 * 5 + 3 * (14 + 2)),
     ("gaussian_full", 3, 2 * 5 + 3 * (21 + 6)), ("categorical", 4, 2 * 5 + 3 * 21)],
)  # fmt: skip
def test_parameters_are_counted(family, n_outputs, expected):
    assert n_parameters(families()[family], 3, n_outputs, p_w=5, p_v=7) == expected


def start(n_experts):
    return mm.random_start(FAMILY, n_experts=n_experts, p_w=4, p_v=4, n_outputs=1, prior_strength=0.1, seed=n_experts)


def chosen(fit, most=5):
    return entrants(FAMILY, BUFFER, fit, max_experts=most, n_outputs=1, p_w=4, p_v=4)


def test_the_cheapest_come_first_and_each_number_is_fitted_once():
    asked = []
    found = chosen(lambda K: asked.append(K) or start(K))
    assert asked == [1, 2, 3, 4, 5]
    assert len(found) == ENTRANTS
    totals = {}
    for K in asked:
        scores, _ = mm.score(FAMILY, start(K), X, X, BUFFER.Y, n_outputs=1)
        free = (K - 1) * 4 + K * 5
        totals[K] = float(np.sum(BUFFER.weights * scores.losses)) + 0.5 * math.log(80 + SHORTEST_RACE) * free
    best = sorted(totals, key=totals.get)[:ENTRANTS]
    assert [len(entrant.state.masses) for entrant in found] == best
    assert [entrant.total for entrant in found] == pytest.approx([totals[K] for K in best])


def test_fits_of_which_nothing_finite_comes_are_left_out():
    def fit(K):
        if K != 2:
            raise UnsoundError([f"experts of {K}"])
        return start(K)

    assert [len(entrant.state.masses) for entrant in chosen(fit)] == [2]
    with pytest.raises(UnsoundError, match="experts of 1"):
        chosen(fit, most=1)


def test_a_race_is_longer_after_a_longer_warm_up():
    assert (race_length(10), race_length(SHORTEST_RACE)) == (SHORTEST_RACE, 2 * SHORTEST_RACE)
