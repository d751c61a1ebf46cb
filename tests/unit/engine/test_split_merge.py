"""Which expert is starved, which a duplicate, which is to be reseeded, and as half of which."""

from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.engine.split_merge import DUPLICATE_BELOW, STARVED_BELOW, diagnose, idle, reseeded
from streammoe.experts.gaussian import Gaussian
from tests.unit.cases import CASES, random_state

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
    assert idle(judged([0.3])) is None


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


@pytest.mark.parametrize("case", [case for case in CASES if case.name.startswith("gaussian")], ids=str)
def test_variances_stay_positive_where_rounding_has_spoilt_a_gram_matrix(case):
    state = random_state(case, 3, 4)
    state.masses[:] = 1.0 / 3.0
    state.variances[...] = 0.1 * (np.eye(case.n_outputs) if state.variances.ndim == 3 else 1.0)
    state.average_variances[:] = state.variances
    state.expert_grams[:] = np.eye(4)
    state.expert_grams[0] *= -0.5
    found = reseeded(state, 0, heir=1, parent=1, rng=np.random.default_rng(0), n_features=4, window=10)
    assert all(np.isfinite(array).all() for array in found)
    for variances in (found.variances, found.average_variances):
        own = np.linalg.eigvalsh(variances) if variances.ndim == 3 else variances
        assert (own > 0.0).all()


@pytest.mark.parametrize("square", [0.0, 1e-30])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_feature_that_is_zero_has_no_part_in_a_split(case, square):
    state = random_state(case, 3, 4)
    state.prior_weight[:] = 0.0
    state.expert_grams[:] = np.diag([1.0, 1.0, square, square])
    found = reseeded(state, 0, heir=1, parent=2, rng=np.random.default_rng(0), n_features=4, window=10)
    assert all(np.isfinite(array).all() for array in found)
    halves = found.experts[0] - found.experts[2]
    assert np.abs(halves[:, :2]).min() > 0.0
    assert np.array_equal(halves[:, 2:], np.zeros_like(halves[:, 2:]))
    state.expert_grams[:] = 0.0
    state.masses[:] = [0.0, 0.0, 1.0]
    found = reseeded(state, 0, heir=1, parent=2, rng=np.random.default_rng(0), n_features=4, window=10)
    assert all(np.isfinite(array).all() for array in found)
