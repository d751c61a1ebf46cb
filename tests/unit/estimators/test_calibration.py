"""Predictive intervals hold about as many targets as they say, on streams that are what the model takes them for."""

import pytest

from benchmarks.calibration import SIMULATED, coverage


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", SIMULATED)
def test_an_interval_of_90_percent_holds_88_to_92_percent(name):
    found = coverage(name, learned=20_000, asked=1_000, seed=0, levels=(0.9,))
    assert 0.88 <= found[0.9] <= 0.92
