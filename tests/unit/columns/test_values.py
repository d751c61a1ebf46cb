"""Values of events as numbers, categories and times, beyond the tables of tests/unit/bad_input.md."""

import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from streammoe.columns.values import level, number, quantity, seconds
from streammoe.errors import InvalidEvent

NOON = 1_769_860_800.0
VALUES = {
    number: [(1, 1.0), (np.bool_(False), 0.0), (np.float32(0.5), 0.5), (Decimal("0.1"), 0.1)],
    quantity: [(Decimal("-1e9"), -1e9), (date(1970, 1, 3), 172_800.0), (datetime(2026, 1, 31, 12, tzinfo=UTC), NOON)],
    level: [
        *[("", ""), (np.str_("red"), "red"), (np.False_, "false"), (np.int8(-7), "-7"), (-0.0, "0"), (0.1, "0.1")],
        *[(1e22, "10000000000000000000000"), (np.float32(0.5), "0.5"), (Decimal("7.0"), "7"), (10**30, "1" + "0" * 30)],
    ],
    seconds: [
        *[(np.int64(86_400), 86_400.0), (1e300, 1e300), (datetime(2026, 1, 31, 12, tzinfo=UTC), NOON)],
        (datetime(2026, 1, 31, 12), NOON),  # noqa: DTZ001 - what says nothing is UTC
        (datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
        *[(pd.Timestamp("2026-01-31 12:00"), NOON), (date(2026, 1, 31), NOON - 43_200.0)],
        *[("2026-01-31t12:00:00z", NOON), ("2026-01-31 12:00", NOON)],
        *[("2026-01-31T11:00:00,5-01", NOON + 0.5), ("2026-01-31 14:00:00.000000000 +0200", NOON)],
        ("9999-12-31T23:59:59.999999999Z", 253_402_300_799 + 0.999999999),
        *[("2026-01-31T12:00:00.25Z", NOON + 0.25), ("1969-12-31T23:59:59.5", -0.5), ("0001-01-01", -62_135_596_800.0)],
        (datetime.max.replace(tzinfo=UTC), 253_402_300_800.0),
    ],
}
REJECTED = {
    number: {
        "wrong_type": ["x" * 10_000, 1j],
        "not_finite": [-np.inf, np.float64("nan"), Decimal("inf"), Decimal("sNaN")],
    },
    quantity: {"wrong_type": ["2026-01-31", np.timedelta64(1, "s")], "not_finite": [-np.inf]},
    level: {"wrong_type": [b"red", 1j], "not_finite": [np.float32("inf")]},
    seconds: {
        "wrong_type": [
            *(np.True_, b"2026-01-31", "1769860800", "20260131.05"),
            *("20260131T120000Z", "2026-01-31T25:00", "0000-01-01", "2026-1-31", "2026-01-31T24:00"),
            *("2026-01-31T10:00:60", "2026-01-31Z", " 2026-01-31"),
        ],
        "not_finite": [pd.NaT],
    },
}


@pytest.fixture
def far_from_utc():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC+5")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("read", VALUES)
def test_a_value_is_the_same_in_every_form_and_all_else_is_rejected(read, far_from_utc):
    for value, expected in VALUES[read]:
        found = read(value, "a")
        assert (type(found), found) == (type(expected), expected)
    # Python itself cannot write this number.
    for reason, values in {**REJECTED[read], "out_of_range": [10**5000]}.items():
        for value in values:
            with pytest.raises(InvalidEvent) as rejected:
                read(value, "sensor 7")
            assert (rejected.value.feature, rejected.value.reason) == ("sensor 7", reason)
            assert len(str(rejected.value)) < 300
