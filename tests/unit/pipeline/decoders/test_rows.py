"""What one value becomes, or why it is rejected, by the exact path; the fast paths equal it (tests/property)."""

import math
from decimal import Decimal

import numpy as np
import pytest

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.pipeline.decoders import Wanted, decoder, to_row
from streammoe.pipeline.decoders.values import TooLarge

KINDS = {
    "number": (Wanted(("v",)), lambda row: row.x[0]),
    "target": (Wanted((), ("v",)), lambda row: row.y[0]),
    "time": (Wanted(("v",), timestamps=frozenset("v")), lambda row: row.x[0]),
    "category": (Wanted(("v",), categorical=frozenset("v")), lambda row: row.texts[0]),
    "label": (Wanted((), label="v"), lambda row: row.label),
    "weight": (Wanted((), weight="v"), lambda row: row.weight),
}
NUMBERS = [(True, 1.0), (0.5, 0.5), (None, math.nan)]
NUMBERS_AS_TEXT = [
    *[("1", 1.0), ("\t-1.5e3 ", -1500.0), (".5", 0.5), ("1.", 1.0), ("+1E-2", 0.01), ("1e-999", 0.0), ("007", 7.0)],
    *[("True", 1.0), ("fALSE", 0.0), ("", math.nan)],
]
TIMES = [
    *[("1970-01-01", 0.0), ("1969-12-31T23:59:59.75", -0.25), ("2024-05-01T12:30:00Z", 1714566600.0)],
    *[("2024-05-01t12:30z", 1714566600.0), ("2024-05-01 14:30:00+02:00", 1714566600.0)],
    *[("2024-05-01 14:30:00.000000000 +0200", 1714566600.0), ("2024-05-01T10:00:00,5-02:30", 1714566600.5)],
    *[("2024-05-01T14:30:00+02", 1714566600.0), ("0001-01-01", -62135596800.0)],
    ("9999-12-31T23:59:59.999999999Z", 253402300799 + 0.999999999),
    *[(1714566600, 1714566600.0), (-1.5, -1.5), (Decimal("1.5"), 1.5), (None, math.nan)],
    (np.datetime64("2024-05-01T12:30:00.000000001", "ns"), 1714566600 + 1e-9),
    (np.datetime64("1969-12-31T23:59:59.750", "ms"), -0.25),
    (np.datetime64("2024-05-01", "D"), 1714521600.0),
]
TEXTS = [
    *[("cat", "cat"), (" 01 ", " 01 "), ("True", "True"), (True, "true"), (False, "false"), (7, "7"), (-0.0, "0")],
    *[(2.0**60, "1152921504606846976"), (10**30, "1" + "0" * 30), (0.1, "0.1"), (1e-7, "1e-07")],
    *[(Decimal("1.50"), "1.5"), (Decimal("3.00"), "3"), ("", None), (None, None), ("é" * 256, "é" * 256)],
]
ACCEPTED = {
    ("number", False): NUMBERS,
    ("target", False): NUMBERS,
    ("number", True): NUMBERS_AS_TEXT,
    ("time", False): TIMES,
    ("time", True): [(" 1714566600.5 ", 1714566600.5), ("\t2024-05-01 ", 1714521600.0), ("", math.nan)],
    ("category", False): TEXTS,
    ("label", False): TEXTS,
    ("label", True): [("1.0", "1.0"), ("true", "true"), ("", None)],
    ("weight", False): [(0, 0.0), (2.5, 2.5), (1e6, 1e6), (True, 1.0), (None, 1.0)],
}
NO_NUMBERS = [
    *[("1", "wrong_type"), ("", "wrong_type"), (b"1", "wrong_type"), ([], "wrong_type"), ({}, "wrong_type")],
    *[(1j, "wrong_type"), (" NaN ", "not_finite"), (math.nan, "not_finite"), (-math.inf, "not_finite")],
    (10**400, "out_of_range"),
]
NO_TIMES = [
    *[("yesterday", "wrong_type"), ("1714566600", "wrong_type"), ("20240501", "wrong_type")],
    *[("2024-5-1", "wrong_type"), ("2024-02-30", "wrong_type"), ("2024-05-01T24:00", "wrong_type")],
    *[("2024-05-01T10:00:60", "wrong_type"), ("2024-05-01Z", "wrong_type"), ("2024-05-01T10", "wrong_type")],
    *[("٢٠٢٤-05-01", "wrong_type"), ("", "wrong_type"), (" 2024-05-01", "wrong_type"), (True, "wrong_type")],
    *[([], "wrong_type"), ("nan", "not_finite"), (math.inf, "not_finite"), (10**400, "out_of_range")],
]
NO_TEXTS = [
    *[([], "wrong_type"), ({"a": 1}, "wrong_type"), ("\ud800", "wrong_type")],
    *[(np.datetime64("2024-05-01"), "wrong_type"), (math.nan, "not_finite"), (math.inf, "not_finite")],
    *[("x" * 257, "out_of_range"), (1e300, "out_of_range"), (TooLarge("9" * 400), "out_of_range")],
]
REJECTED = {
    ("number", False): NO_NUMBERS,
    ("target", False): NO_NUMBERS,
    ("number", True): [
        *[(cell, "wrong_type") for cell in ("abc", " ", "yes", "0x10", "1_0", "1" * 1_000_000 + ".x")],
        *[("nan", "not_finite"), ("-Infinity", "not_finite"), ("1e999", "out_of_range")],
    ],
    ("time", False): NO_TIMES,
    ("category", False): NO_TEXTS,
    ("label", False): NO_TEXTS,
    ("weight", False): [
        (-1e-9, "out_of_range"),
        (1000001, "out_of_range"),
        (math.nan, "not_finite"),
        ("1", "wrong_type"),
    ],
}


def value_of(kind, value, text):
    """The value as it is learned, or the reason for which it is rejected."""
    wanted, part = KINDS[kind]
    try:
        return part(to_row({"v": value}, wanted, text=text))
    except InvalidEvent as error:
        return f"rejected: {error.reason}" if error.feature == "v" and len(str(error)) < 250 else str(error)


@pytest.mark.parametrize(("kind", "text"), ACCEPTED)
def test_what_values_become(kind, text):
    table = ACCEPTED[kind, text]
    found = [value_of(kind, value, text) for value, _ in table]
    assert repr(found) == repr([expected for _, expected in table])


@pytest.mark.parametrize(("kind", "text"), REJECTED)
def test_which_values_are_rejected(kind, text):
    table = REJECTED[kind, text]
    assert [value_of(kind, value, text) for value, _ in table] == [f"rejected: {reason}" for _, reason in table]


def test_values_come_in_the_order_of_the_names():
    row = to_row({"b": 2, "a": True, "y": 0.5, "z": "ignored"}, Wanted(("a", "b"), ("y",)))
    assert (row.x, row.y, row.label, row.weight) == ([1.0, 2.0], [0.5], None, 1.0)


def test_an_event_has_all_targets_or_none():
    wanted = Wanted(("a",), ("y", "z"))
    assert to_row({"a": 1, "y": 2, "z": 3}, wanted).y == [2, 3]
    assert all(map(math.isnan, to_row({"a": 1, "z": None}, wanted).y))
    with pytest.raises(InvalidEvent) as caught:
        to_row({"a": 1, "z": 3}, wanted)
    assert (caught.value.reason, caught.value.feature) == ("partial_target", "y")


def test_an_unknown_format_is_an_error_of_the_settings():
    with pytest.raises(ConfigError):
        decoder("xml")
