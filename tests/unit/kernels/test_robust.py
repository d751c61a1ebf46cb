"""Columns without what is absurdly far out."""

import numpy as np
import pytest

from streammoe.kernels.robust import FAR, winsorised


def test_ordinary_columns_keep_their_bits():
    for draw in ("normal", "uniform", "laplace"):
        values = getattr(np.random.default_rng(0), draw)(size=(2000, 3))
        assert winsorised(values).tobytes() == values.tobytes(), draw


@pytest.mark.parametrize("absurd", [999.0, -99999.0, 1e30])
def test_what_is_far_out_is_moved_to_the_edge(absurd):
    values = np.random.default_rng(0).normal(size=(400, 1))
    values[7] = absurd
    found = winsorised(values)
    others = np.delete(values, 7)
    reach = FAR * np.median(np.abs(others - np.median(others)))
    assert np.delete(found, 7).tobytes() == others.tobytes()
    assert abs(found[7, 0]) == pytest.approx(reach, rel=0.05)
    assert np.sign(found[7, 0]) == np.sign(absurd)


def test_columns_that_are_mostly_one_value_keep_the_others():
    values = np.zeros((500, 2))
    values[::50, 0] = 1.0  # a rare category
    values[::50, 1] = np.arange(1.0, 11.0)  # counts
    assert winsorised(values).tobytes() == values.tobytes()


def test_missing_values_stay_and_say_nothing():
    values = np.array([[np.nan, np.nan], [1.0, np.nan], [2.0, np.nan], [3.0, np.nan], [1e9, np.nan]])
    found = winsorised(values)
    assert np.isnan(found).tolist() == np.isnan(values).tolist()
    assert found[4, 0] < 100.0
    assert values[4, 0] == 1e9  # what it was given stays as it was


def test_many_values_far_out_are_no_accident():
    """Such as a sensor that is mostly idle, but for its noise."""
    rng = np.random.default_rng(0)
    values = 1e-6 * rng.normal(size=(400, 1))
    values[::20] += 100.0
    assert winsorised(values).tobytes() == values.tobytes()
