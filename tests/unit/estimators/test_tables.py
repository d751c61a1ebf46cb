"""Rows of a table and events: parts of them, and the order of their columns."""

import numpy as np
import pytest

from streammoe import InvalidEvent
from streammoe.estimators.tables import Events, Table, table_of_array

ROWS = np.arange(8.0).reshape(4, 2)
TEXTS = {"c": ["r", None, "g", "b"]}


def same(found, wanted):
    for have, want in zip(found, wanted, strict=True):
        if isinstance(want, np.ndarray):
            np.testing.assert_array_equal(have, want)
        else:
            assert have == want


def test_a_part_has_the_same_rows_of_everything():
    table = Table(ROWS, ["a", "b"], TEXTS)
    same(table.part(slice(1, 3)), (ROWS[1:3], ["a", "b"], {"c": [None, "g"]}))
    events = Events(ROWS, TEXTS, ["p", "q", None, "s"], np.arange(4.0))
    same(events.part(slice(1, 3)), (ROWS[1:3], {"c": [None, "g"]}, ["q", None], np.array([1.0, 2.0])))


def test_chosen_rows_are_the_same_of_everything():
    at = np.array([0, 3])
    same(Table(ROWS, ["a", "b"], TEXTS).chosen(at), (ROWS[at], ["a", "b"], {"c": ["r", "b"]}))
    events = Events(ROWS, TEXTS, ROWS + 1.0, np.arange(4.0))
    same(events.chosen(at), (ROWS[at], {"c": ["r", "b"]}, ROWS[at] + 1.0, np.array([0.0, 3.0])))


def test_columns_come_in_the_order_of_the_fields_and_what_has_none_is_missing():
    table = Table(ROWS, ["a", "b"], {})
    np.testing.assert_array_equal(table.ordered(["b", "late", "a"]), np.c_[ROWS[:, 1], np.full(4, np.nan), ROWS[:, 0]])
    np.testing.assert_array_equal(table.ordered(["b"]), ROWS[:, 1:])


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ([], ["x0", "x1"]),
        (["x1", "x0"], ["x0", "x1"]),
        (["b", "a"], ["b", "a"]),
        (["a", "b", "c"], ["x0", "x1"]),
    ],
)
def test_columns_without_names_are_numbered_unless_they_can_only_be_the_models_own(fields, names):
    assert table_of_array(ROWS, None, fields).names == names


def test_names_have_to_fit():
    assert table_of_array(ROWS, ("p", "q"), ["a", "b"]).names == ["p", "q"]
    for names in (["a"], ["a", "a"]):
        with pytest.raises(InvalidEvent) as error:
            table_of_array(ROWS, names, [])
        assert error.value.reason == "wrong_shape"
