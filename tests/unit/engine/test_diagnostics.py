"""Which expert is starved; of two that say the same, contracts and living models tell."""

from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.distributions import Gaussian
from streammoe.engine.diagnostics import STARVED_BELOW, diagnose
from streammoe.experts.linear import Linear


class Apart(Linear):
    """Experts that have nothing in common."""

    def divergences(self, state, options):
        return 1.0 - np.eye(len(state.masses))

    def expert_losses(self, state):
        return np.zeros(len(state.masses))


def judged(masses):
    return diagnose(Apart(Gaussian()), SimpleNamespace(masses=np.array(masses)), None)


def test_an_expert_is_starved_below_a_share_of_all_but_never_alone():
    assert judged([1.0, 3.0]).shares == pytest.approx([0.25, 0.75])
    limit = STARVED_BELOW / 2
    assert judged([limit * 0.99, 1.0 - limit * 0.99]).starved.tolist() == [True, False]
    assert judged([limit, 1.0 - limit]).starved.tolist() == [False, False]
    assert judged([0.3]).starved.tolist() == [False]
