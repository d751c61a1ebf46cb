import math
from decimal import Decimal

import numpy as np
import pytest

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.pipeline.decoders import Wanted, decoder, to_row
from streammoe.pipeline.decoders.values import TooLarge


def test_values_come_in_the_order_of_the_names():
    row = to_row({"b": 2, "a": True, "y": 0.5, "z": "ignored"}, Wanted(("a", "b"), ("y",)))
    assert (row.x, row.y, row.label, row.weight) == ([1.0, 2.0], [0.5], None, 1.0)


def test_absent_and_none_are_missing():
    row = to_row({"a": None}, Wanted(("a", "b"), ("y",)))
    assert all(map(math.isnan, row.x + row.y))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "not_finite"),
        (-math.inf, "not_finite"),
        (10**400, "out_of_range"),
        ("1", "wrong_type"),
        ("", "wrong_type"),
        (" NaN ", "not_finite"),
        (b"1", "wrong_type"),
        ([], "wrong_type"),
        ({}, "wrong_type"),
        (1j, "wrong_type"),
    ],
)
def test_other_values_are_refused_by_name(value, reason):
    with pytest.raises(InvalidEvent) as caught:
        to_row({"a": 1, "y": value}, Wanted(("a",), ("y",)))
    assert (caught.value.reason, caught.value.feature) == (reason, "y")
    assert "field 'y' is" in str(caught.value)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1", 1),
        ("\t-1.5e3 ", -1500),
        (".5", 0.5),
        ("1.", 1),
        ("+1E-2", 0.01),
        ("1e-999", 0),
        ("007", 7),
        ("True", 1),
        ("fALSE", 0),
    ],
)
def test_text_formats_write_numbers_as_text(cell, value):
    assert to_row({"a": cell}, Wanted(("a",)), text=True).x == [value]


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"'xml'.*csv, jsonl, arrow"):
        decoder("xml")


def test_a_number_of_many_digits_takes_no_longer_than_its_length():
    with pytest.raises(InvalidEvent, match="must be a number"):
        to_row({"a": "1" * 1_000_000 + ".x"}, Wanted(("a",)), text=True)


# --- texts ----------------------------------------------------------------------------------------------------------


def label_of(value, *, text=False):
    return to_row({"y": value}, Wanted((), label="y"), text=text).label


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("cat", "cat"),
        (" 01 ", " 01 "),
        ("True", "True"),
        (True, "true"),
        (False, "false"),
        (7, "7"),
        (-0.0, "0"),
        (2.0**60, "1152921504606846976"),
        (10**30, "1" + "0" * 30),
        (0.1, "0.1"),
        (1e-7, "1e-07"),
        (Decimal("1.50"), "1.5"),
        (Decimal("3.00"), "3"),
        ("", None),
        (None, None),
        ("é" * 256, "é" * 256),
    ],
)
def test_labels_are_texts(value, label):
    assert label_of(value) == label
    assert to_row({"c": value}, Wanted(("c",), categorical=frozenset("c"))).texts == {0: label}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "wrong_type"),
        ({"a": 1}, "wrong_type"),
        ("\ud800", "wrong_type"),
        (np.datetime64("2024-05-01"), "wrong_type"),
        (math.nan, "not_finite"),
        (math.inf, "not_finite"),
        ("x" * 257, "out_of_range"),
        (1e300, "out_of_range"),
        (TooLarge("9" * 400), "out_of_range"),
    ],
)
def test_what_is_no_label(value, reason):
    with pytest.raises(InvalidEvent, match="field 'y' is") as caught:
        label_of(value)
    assert (caught.value.reason, caught.value.feature) == (reason, "y")
    assert len(str(caught.value)) < 250


def test_in_text_formats_labels_are_the_text():
    assert [label_of(cell, text=True) for cell in ("1.0", "true", "")] == ["1.0", "true", None]


# --- times ----------------------------------------------------------------------------------------------------------


def time_of(value, *, text=False):
    return to_row({"t": value}, Wanted(("t",), timestamps=frozenset("t")), text=text).x[0]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("1970-01-01", 0),
        ("1969-12-31T23:59:59.75", -0.25),
        ("2024-05-01T12:30:00Z", 1714566600),
        ("2024-05-01t12:30z", 1714566600),
        ("2024-05-01 14:30:00+02:00", 1714566600),
        ("2024-05-01 14:30:00.000000000 +0200", 1714566600),
        ("2024-05-01T10:00:00,5-02:30", 1714566600.5),
        ("2024-05-01T14:30:00+02", 1714566600),
        ("0001-01-01", -62135596800),
        ("9999-12-31T23:59:59.999999999Z", 253402300799 + 0.999999999),
        (1714566600, 1714566600),
        (-1.5, -1.5),
        (Decimal("1.5"), 1.5),
        (np.datetime64("2024-05-01T12:30:00.000000001", "ns"), 1714566600 + 1e-9),
        (np.datetime64("1969-12-31T23:59:59.750", "ms"), -0.25),
        (np.datetime64("2024-05-01", "D"), 1714521600),
        (None, math.nan),
    ],
)
def test_times_are_seconds_since_1970(value, seconds):
    assert time_of(value) == pytest.approx(seconds, rel=0, abs=0, nan_ok=True)


def test_in_text_formats_times_may_be_numbers_and_have_blanks_around_them():
    assert time_of(" 1714566600.5 ", text=True) == 1714566600.5
    assert time_of("\t2024-05-01 ", text=True) == 1714521600
    assert math.isnan(time_of("", text=True))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("yesterday", "wrong_type"),
        ("1714566600", "wrong_type"),
        ("20240501", "wrong_type"),
        ("2024-5-1", "wrong_type"),
        ("2024-02-30", "wrong_type"),
        ("2024-05-01T24:00", "wrong_type"),
        ("2024-05-01T10:00:60", "wrong_type"),
        ("2024-05-01Z", "wrong_type"),
        ("2024-05-01T10", "wrong_type"),
        ("٢٠٢٤-05-01", "wrong_type"),
        ("", "wrong_type"),
        (" 2024-05-01", "wrong_type"),
        (True, "wrong_type"),
        ([], "wrong_type"),
        ("nan", "not_finite"),
        (math.inf, "not_finite"),
        (10**400, "out_of_range"),
    ],
)
def test_what_is_no_time(value, reason):
    with pytest.raises(InvalidEvent, match="field 't' is") as caught:
        time_of(value)
    assert caught.value.reason == reason
    if reason == "wrong_type":
        assert "2024-05-01T12:30:00Z" in str(caught.value)


# --- events as a whole ----------------------------------------------------------------------------------------------


def test_an_event_has_all_targets_or_none():
    wanted = Wanted(("a",), ("y", "z"))
    assert to_row({"a": 1, "y": 2, "z": 3}, wanted).y == [2, 3]
    assert all(map(math.isnan, to_row({"a": 1, "z": None}, wanted).y))
    with pytest.raises(InvalidEvent, match="target 'y' is missing; an event must have all of its 2 targets") as caught:
        to_row({"a": 1, "z": 3}, wanted)
    assert (caught.value.reason, caught.value.feature) == ("partial_target", "y")


@pytest.mark.parametrize(("value", "weight"), [(0, 0), (2.5, 2.5), (1e6, 1e6), (True, 1), (None, 1)])
def test_weights(value, weight):
    assert to_row({"w": value}, Wanted((), weight="w")).weight == weight


@pytest.mark.parametrize(
    ("value", "reason"),
    [(-1e-9, "out_of_range"), (1000001, "out_of_range"), (math.nan, "not_finite"), ("1", "wrong_type")],
)
def test_what_is_no_weight(value, reason):
    with pytest.raises(InvalidEvent, match="'w' is") as caught:
        to_row({"w": value}, Wanted((), weight="w"))
    assert (caught.value.reason, caught.value.feature) == (reason, "w")
