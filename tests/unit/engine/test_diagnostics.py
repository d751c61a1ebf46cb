"""Which expert is starved, and which a duplicate."""

from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.engine.diagnostics import DUPLICATE_BELOW, STARVED_BELOW, diagnose
from streammoe.experts.gaussian import Gaussian

NEAR = DUPLICATE_BELOW * 0.9
PAIR = [[0.0, NEAR, 9.0], [NEAR, 0.0, 9.0], [9.0, 9.0, 0.0]]
"""Divergences where the first two experts say the same."""


class Given(Gaussian):
    def __init__(self, apart):
        self.apart = np.array(apart, dtype=float)

    def divergences(self, state, options):
        return self.apart.copy()

    def expert_losses(self, state):
        return np.zeros(len(state.masses))


def judged(masses, apart=None):
    K = len(masses)
    return diagnose(Given(1.0 - np.eye(K) if apart is None else apart), SimpleNamespace(masses=np.array(masses)), None)


def test_an_expert_is_starved_below_a_share_of_all_but_never_alone():
    assert judged([1.0, 3.0]).shares == pytest.approx([0.25, 0.75])
    limit = STARVED_BELOW / 2
    assert judged([limit * 0.99, 1.0 - limit * 0.99]).starved.tolist() == [True, False]
    assert judged([limit, 1.0 - limit]).starved.tolist() == [False, False]
    assert judged([0.3]).starved.tolist() == [False]


@pytest.mark.parametrize(
    ("masses", "apart", "starved", "duplicate"),
    [
        ([0.2, 0.3, 0.5], PAIR, [], [0]),
        ([0.25, 0.25, 0.5], PAIR, [], [1]),  # of equals the later
        ([0.001, 0.499, 0.5], PAIR, [0], []),  # a starved expert neither is a duplicate nor makes one
    ],
)
def test_of_two_that_say_the_same_the_smaller_is_the_duplicate(masses, apart, starved, duplicate):
    found = judged(masses, apart)
    assert np.flatnonzero(found.starved).tolist() == starved
    assert np.flatnonzero(found.duplicate).tolist() == duplicate
    assert starved or found.nearest.tolist() == [1, 0, 0]
