"""Columns without what is absurdly far out."""

import numpy as np
import pytest

from streammoe.outliers import MAX_DEVIATIONS, winsorised

RNG = np.random.default_rng(0)
RARE = np.zeros((500, 2))
RARE[::50, 0] = 1.0  # a rare category
RARE[::50, 1] = np.arange(1.0, 11.0)  # counts
IDLE = 1e-6 * RNG.normal(size=(400, 1))  # a sensor that is mostly idle, but for its noise
IDLE[::20] += 100.0


def test_columns_without_single_values_far_out_keep_their_bits():
    for values in (RNG.normal(size=(2000, 3)), RNG.uniform(size=(2000, 3)), RNG.laplace(size=(2000, 3)), RARE, IDLE):
        assert winsorised(values).tobytes() == values.tobytes()


@pytest.mark.parametrize("absurd", [-99999.0, 1e30])
def test_what_is_far_out_is_moved_to_the_edge_and_missing_values_stay(absurd):
    values = RNG.normal(size=(400, 1))
    values[7], values[8] = absurd, np.nan
    found = winsorised(values)
    others = np.delete(values, 7)
    reach = MAX_DEVIATIONS * np.nanmedian(np.abs(others - np.nanmedian(others)))
    assert np.delete(found, 7).tobytes() == others.tobytes()
    assert found[7, 0] == pytest.approx(np.sign(absurd) * reach, rel=0.05)
