"""What values become, or why they are rejected, beyond the tables of docs/bad-input.md; the fast paths equal it."""

import math
from decimal import Decimal

import numpy as np
import pytest

from streammoe.errors import InvalidEvent
from streammoe.pipeline.decoders import Wanted, to_row
from streammoe.pipeline.decoders.values import TooLarge

KINDS = {
    "cell": (Wanted(("v",)), lambda row: row.x[0]),
    "time": (Wanted(("v",), timestamps=frozenset("v")), lambda row: row.x[0]),
    "category": (Wanted(("v",), categorical=frozenset("v")), lambda row: row.texts[0]),
    "label": (Wanted((), label="v"), lambda row: row.label),
}
TEXTS = [
    *[(" 01 ", " 01 "), (7, "7"), (-0.0, "0"), (2.0**60, "1152921504606846976"), (1e-7, "1e-07"), ("é" * 256,) * 2],
    *[(10**30, "1" + "0" * 30), (Decimal("1.50"), "1.5"), (Decimal("3.00"), "3")],
]
ACCEPTED = {
    "cell": [("\t-1.5e3 ", -1500.0), ("1.", 1.0), ("+1E-2", 0.01), ("1e-999", 0.0), ("fALSE", 0.0), ("", math.nan)],
    "time": [
        *[("1970-01-01", 0.0), ("1969-12-31T23:59:59.75", -0.25), ("2024-05-01t12:30z", 1714566600.0)],
        *[("2024-05-01 14:30:00+02:00", 1714566600.0), ("2024-05-01T14:30:00+02", 1714566600.0)],
        *[("2024-05-01 14:30:00.000000000 +0200", 1714566600.0), ("2024-05-01T10:00:00,5-02:30", 1714566600.5)],
        *[("0001-01-01", -62135596800.0), ("9999-12-31T23:59:59.999999999Z", 253402300799 + 0.999999999)],
        *[(-1.5, -1.5), (Decimal("1.5"), 1.5), (np.datetime64("2024-05-01", "D"), 1714521600.0)],
        (np.datetime64("2024-05-01T12:30:00.000000001", "ns"), 1714566600 + 1e-9),
    ],
    "category": TEXTS,
    "label": TEXTS,
}
REJECTED = {
    "cell": {"wrong_type": ["yes", "1" * 1_000_000 + ".x"], "not_finite": ["-Infinity"]},
    "time": {
        "wrong_type": [
            *["1714566600", "2024-5-1", "2024-05-01T24:00", "2024-05-01T10:00:60", "2024-05-01Z", "2024-05-01T10"],
            *["٢٠٢٤-05-01", " 2024-05-01"],
        ],
        "out_of_range": [10**400],
    },
    "category": {
        "wrong_type": ["\ud800", np.datetime64("2024-05-01")],
        "not_finite": [math.inf],
        "out_of_range": [1e300, TooLarge("9" * 400)],
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_values_become_and_which_are_rejected(kind):
    wanted, part = KINDS[kind]
    for value, expected in ACCEPTED[kind]:
        assert repr(part(to_row({"v": value}, wanted, text=kind == "cell"))) == repr(expected)
    for reason, values in REJECTED.get(kind, {}).items():
        for value in values:
            with pytest.raises(InvalidEvent) as rejected:
                to_row({"v": value}, wanted, text=kind == "cell")
            assert (rejected.value.feature, rejected.value.reason) == ("v", reason)
            assert len(str(rejected.value)) < 250
