"""The buffer, and the one-expert fit that predicts while it fills."""

import numpy as np
import pytest

from streammoe.engine.warmup_buffer import WarmUpBuffer
from tests.unit.cases import Case, draw, same_bits

P = 3


def learn(warm_up, R, Y, weights=None):
    return warm_up.learn(R[:, 1:], R, Y, np.ones(len(R)) if weights is None else weights, traced=False)


def new(case):
    return WarmUpBuffer(case.family, case.n_outputs, P)


@pytest.mark.parametrize("case", [Case("laplace", 1), Case("categorical", 3)], ids=str)
def test_the_buffer_keeps_rows_with_a_target_and_their_weights(case):
    """Also where it has to grow, after 64 rows; where the rows were cut leaves no trace."""
    R, Y = draw(case, 100, P, 2)
    Y[5] = np.nan
    weights = np.random.default_rng(0).uniform(0.1, 4.0, 100)
    warm_up, parts = new(case), new(case)
    scores = learn(warm_up, R, Y, weights)
    X, kept, kept_weights = warm_up.rows()
    assert warm_up.count == 99
    for found, given in ((X, R[:, 1:]), (kept, Y), (kept_weights, weights)):
        assert found.tobytes() == np.delete(given, 5, axis=0).tobytes()
    assert np.isnan(scores.losses).tolist() == [i == 5 for i in range(100)]
    cut = [learn(parts, R[a:b], Y[a:b], weights[a:b]).losses for a, b in [(0, 1), (1, 64), (64, 65), (65, 100)]]
    assert np.concatenate(cut).tobytes() == scores.losses.tobytes()
    arrays = {name: array.copy() for name, array in warm_up.arrays().items()}
    assert same_bits(arrays.values(), parts.arrays().values())
