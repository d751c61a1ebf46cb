"""Columns without what is absurdly far out."""

import numpy as np
import pytest

from streammoe.columns.outliers import MAX_DEVIATIONS, code_of, winsorised

RNG = np.random.default_rng(0)
RARE = np.zeros((500, 2))
RARE[::50, 0] = 1.0  # a rare category
RARE[::50, 1] = np.arange(1.0, 11.0)  # counts
IDLE = 1e-6 * RNG.normal(size=(400, 1))  # a sensor that is mostly idle, but for its noise
IDLE[::20] += 100.0


MONEY = np.where(RNG.random((2000, 1)) < 0.8, 0.0, np.round(np.exp(6.0 + RNG.normal(size=(2000, 1)))))
TIERS = np.where(RNG.random((2000, 1)) < 0.7, RNG.normal(size=(2000, 1)), 1000.0)
HONEST = (
    RNG.normal(size=(2000, 3)),
    RNG.uniform(size=(2000, 3)),
    RNG.laplace(size=(2000, 3)),
    RARE,
    IDLE,
    MONEY,
    TIERS,
)


def test_columns_without_single_values_far_out_keep_their_bits():
    for values in HONEST:
        for codes in (False, True):
            assert winsorised(values, codes=codes).tobytes() == values.tobytes()


DRAWS = np.random.default_rng(1)
NO_CODES = {
    "flags": DRAWS.integers(0, 2, 200),
    "rare flags": np.arange(200) % 60 == 0,
    "counts": DRAWS.poisson(3, 200),
    "clipped on both sides": np.clip(DRAWS.normal(size=200), -1, 1),
    "a dial that is at its end": np.minimum(DRAWS.exponential(50, 200), 100),
    "rain": np.where(DRAWS.random(200) < 0.4, 0, DRAWS.gamma(0.6, 5, 200)),
    "heavy tails": DRAWS.standard_cauchy(200),
    "tiers": DRAWS.choice([1, 2, 1000], 200),
    "one value": np.full(200, -999),
    "twice": np.concatenate([DRAWS.normal(size=198), [-999, -999]]),
    "nothing": np.full(200, np.nan),
    "too large to be squared": np.repeat([1e200, -1e200, 1e199, 3e199], [3, 1, 1, 1]),
}


def test_a_code_far_from_all_others_is_found_and_what_a_column_may_well_hold_is_none():
    assert [name for name, values in NO_CODES.items() if code_of(values.astype(np.float64)) is not None] == []
    for code in (-999.0, -200.0, 99999.0, -1.0):
        values = np.random.default_rng(1).normal(60.0, 8.0, 200)
        values[::9], values[1::9] = code, np.nan
        assert code_of(values) == (code, 23)


@pytest.mark.parametrize("absurd", [-99999.0, 1e30])
def test_what_is_far_out_is_moved_to_the_edge_and_missing_values_stay(absurd):
    values = RNG.normal(size=(400, 1))
    values[7], values[8] = absurd, np.nan
    found = winsorised(values)
    others = np.delete(values, 7)
    reach = MAX_DEVIATIONS * np.nanmedian(np.abs(others - np.nanmedian(others)))
    assert np.delete(found, 7).tobytes() == others.tobytes()
    assert found[7, 0] == pytest.approx(np.sign(absurd) * reach, rel=0.05)
