"""Which expert is starved, and which a duplicate."""

from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.engine.diagnostics import STARVED_BELOW, diagnose
from streammoe.experts.gaussian import Gaussian


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
