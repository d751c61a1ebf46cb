import math

import pytest

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.runtime.decoders import Wanted, decoder, to_row


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
    with pytest.raises(ConfigError, match=r"'xml'.*csv, jsonl"):
        decoder("xml")


def test_a_number_of_many_digits_takes_no_longer_than_its_length():
    with pytest.raises(InvalidEvent, match="must be a number"):
        to_row({"a": "1" * 1_000_000 + ".x"}, Wanted(("a",)), text=True)
