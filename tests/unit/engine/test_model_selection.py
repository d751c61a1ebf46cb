"""Which numbers of experts are tried, and which is chosen."""

import numpy as np
import pytest

from streammoe.engine.cost import Shape
from streammoe.engine.em import Buffer
from streammoe.engine.jobs import run_job
from streammoe.engine.model_selection import cheapest
from streammoe.engine.state import UnsoundError
from tests.unit.cases import Case, draw, random_state

LINE = Case("gaussian", 1)
X, Y = draw(LINE, 80, 4, 2)


def test_a_number_that_cannot_be_fitted_is_left_out_unless_none_can():
    def fit(K):
        yield 1.0
        if K == 1:
            raise UnsoundError(["experts"])
        return random_state(LINE, K, 4, 0.1)

    def chosen(most):
        buffer = Buffer(X, X, Y, np.ones(80))
        return run_job(cheapest(LINE.family, buffer, fit, Shape(most, 1, 4, 4), 1))

    state, costs = chosen(3)
    assert list(costs) == [2, 3]
    assert len(state.masses) == min(costs, key=costs.get)
    with pytest.raises(UnsoundError):
        chosen(1)
