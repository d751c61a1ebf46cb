"""Which fits go on to a race, and what their parameters cost."""

import math

import numpy as np
import pytest

from streammoe.engine import mm
from streammoe.engine.choice import ENTRANTS, SHORTEST_RACE, entrants, n_parameters, race_length, race_start
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


def start(n_experts, share=0.0):
    """Experts that all know so much of the truth."""
    state = mm.random_start(FAMILY, n_experts=n_experts, p_w=4, p_v=4, n_outputs=1, prior_strength=0.1, seed=0)
    state.average_experts[:] = share * np.array([0.0, 1.0, 0.0, 0.0])
    return state


def chosen(fit, most=5):
    return entrants(FAMILY, BUFFER, fit, max_experts=most, n_outputs=1, p_w=4, p_v=4)


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
        errors = BUFFER.Y[:, 0] - shares[K] * X[:, 1]
        loss = BUFFER.weights @ (0.5 * errors**2 + 0.5 * math.log(2.0 * math.pi))
        free = (K - 1) * 4 + K * 5
        assert entrant.total == pytest.approx(loss + 0.5 * math.log(80 + SHORTEST_RACE) * free)


def test_fits_of_which_nothing_finite_comes_are_left_out():
    def fit(K):
        if K != 2:
            raise UnsoundError([f"experts of {K}"])
        return start(K)

    assert [len(entrant.state.masses) for entrant in chosen(fit)] == [2]
    with pytest.raises(UnsoundError):
        chosen(fit, most=1)


def test_what_the_prior_has_gained_an_entrant_is_added_to_its_cost(monkeypatch):
    plain = chosen(lambda K: start(K, 1.0), most=2)
    monkeypatch.setattr("streammoe.engine.choice.prior_gain", lambda state: 0.25 * len(state.masses))
    for before, after in zip(plain, chosen(lambda K: start(K, 1.0), most=2), strict=True):
        assert after.total - before.total == pytest.approx(80 * 0.25 * len(after.state.masses))


def test_a_race_is_longer_after_a_longer_warm_up():
    assert (race_length(10), race_length(SHORTEST_RACE)) == (SHORTEST_RACE, 2 * SHORTEST_RACE)
    assert all(race_start(n + race_length(n)) == n for n in range(0, 3 * SHORTEST_RACE, 7))
