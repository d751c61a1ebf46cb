"""Which numbers of experts are tried, what each costs, and which is chosen."""

import math

import numpy as np
import pytest

from streammoe.distributions import Gaussian
from streammoe.engine.em import Buffer
from streammoe.engine.jobs import run_job
from streammoe.engine.model_selection import cheapest
from streammoe.engine.state import UnsoundError
from streammoe.experts import family_of
from tests.unit.cases import Case, random_state

LINE = Case("gaussian", 1)
RNG = np.random.default_rng(0)
X = np.column_stack([np.ones(80), RNG.normal(size=(80, 3))])
BUFFER = Buffer(X, X, X[:, 1:2] + 0.1 * RNG.normal(size=(80, 1)), RNG.uniform(0.5, 2.0, size=80))


def chosen(fit, most=5):
    def job(n_experts):
        yield 1.0
        return fit(n_experts)

    family = family_of(Gaussian(tail=math.inf))
    return run_job(cheapest(family, BUFFER, job, max_experts=most, n_outputs=1, p_w=4, p_v=4))


def test_a_number_that_cannot_be_fitted_is_left_out_unless_none_can():
    def fit(K):
        if K == 1:
            raise UnsoundError(["experts"])
        return random_state(LINE, K, 4, 0.1, 0)

    state, costs = chosen(fit, most=3)
    assert (len(state.masses), list(costs)) == (2, [2, 3])
    with pytest.raises(UnsoundError):
        chosen(fit, most=1)
