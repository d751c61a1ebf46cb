"""Rows as features, and rows that are out of range."""

import math

import numpy as np
import pytest

from streammoe.kernels.features import CATEGORICAL, NUMERIC, TIMESTAMP, expand_rows, screen_rows

# Fields: a number, a category with three codes of which the second has no column, a time, a number.
NUMBERS = np.array([[0, 0], [3, 8]])
CODED = np.array([1])
PLACES = np.array([[1, -1, 9]])
TIMED = np.array([[2, 2]])
C = 10
PLAIN = (
    np.array([[0, 0], [1, 1]]),
    np.zeros(0, dtype=np.int64),
    np.zeros((0, 0), dtype=np.int64),
    np.zeros((0, 2), int),
)


def expanded(X, plan, columns, degree=1, fill=0.0, center=0.0, scale=1.0, padding=0):
    X = np.array(X, dtype=float)
    numbers = [np.full(columns, value) for value in (fill, center, scale)]
    out = np.zeros((len(X), 1 + columns + (degree - 1) * len(plan[0]) + padding))
    expand_rows(X, *plan, *numbers, degree, out)
    return out


class TestExpandRows:
    def test_each_field_fills_its_own_columns_and_no_other(self):
        row = expanded([[2.0, 0.0, 21_600.0, 3.0]], (NUMBERS, CODED, PLACES, TIMED), C, degree=3)[0]
        assert row[[0, 1, 2, 9, 10]].tolist() == [1, 2, 1, 3, 0]
        assert row[3:5] == pytest.approx([1, 0])  # six in the morning
        assert row[5:7] == pytest.approx([math.sin(3.25 * math.tau / 7), math.cos(3.25 * math.tau / 7)])
        assert row[11:].tolist() == [4, 9, 8, 27]

    def test_a_code_sets_the_column_that_it_has(self):
        for code, columns in [(0, [2]), (1, []), (2, [10]), (3, []), (-1, []), (math.nan, [])]:
            row = expanded([[0.0, code, math.nan, 0.0]], (NUMBERS, CODED, PLACES, TIMED), C)[0]
            assert np.flatnonzero(row).tolist() == [0, *columns], code

    def test_numbers_give_the_same_bits_alone_and_among_other_fields(self):
        """Two loops in the kernel, one arithmetic."""
        X = np.random.default_rng(0).normal(size=(200, 2))
        X[::9, 1] = math.nan
        alone = expanded(X, PLAIN, 2, degree=3, fill=0.7, center=0.3, scale=1.7)
        wide = np.insert(X, [1, 1], math.nan, axis=1)
        among = expanded(wide, (NUMBERS, CODED, PLACES, TIMED), C, degree=3, fill=0.7, center=0.3, scale=1.7)
        assert among[:, [0, 1, 9, 11, 12, 13, 14]].tobytes() == alone.tobytes()

    def test_padding_is_left_alone(self):
        assert expanded([[2.0, 3.0]], PLAIN, 2, degree=2, padding=3).tolist() == [[1, 2, 3, 4, 9, 0, 0, 0]]

    def test_any_time_lies_on_the_circle(self):
        for seconds in (-62_135_596_800.0, -1e-20, 253_402_300_800.0):
            row = expanded([[0.0, 0.0, seconds, 0.0]], (NUMBERS, CODED, PLACES, TIMED), C)[0]
            assert row[[3, 5, 7]] ** 2 + row[[4, 6, 8]] ** 2 == pytest.approx([1, 1, 1])


class TestScreenRows:
    @staticmethod
    def screened(X, Y, kinds, factor=10.0, limit=1e50):
        X, Y = np.array(X, dtype=float), np.array(Y, dtype=float)
        largest, target_largest = np.zeros(X.shape[1]), np.zeros(Y.shape[1])
        verdicts = np.empty(len(X), dtype=np.int64)
        rejected = screen_rows(X, Y, np.array(kinds), largest, target_largest, factor, limit, verdicts)
        assert rejected == (verdicts >= 0).sum()
        return verdicts.tolist(), largest.tolist(), target_largest.tolist()

    def test_codes_and_times_know_no_range_factor_and_widen_none(self):
        kinds = [CATEGORICAL, TIMESTAMP, NUMERIC]
        verdicts, largest, _ = self.screened([[63, 2e9, 9], [-1, -6e10, 90], [0, 0, 901]], [[0], [0], [0]], kinds)
        assert verdicts == [-1, -1, 2]
        assert largest == [0, 0, 90]

    def test_times_are_those_of_the_years_1_to_9999(self):
        for seconds, verdict in [
            (-62_135_596_800.0, -1),
            (-62_135_596_801.0, 0),
            (253_402_300_800.0, -1),
            (253_402_300_801.0, 0),
            (math.inf, 0),
            (-math.inf, 0),
            (math.nan, -1),
        ]:
            for target in (1.0, math.nan):
                assert self.screened([[seconds]], [[target]], [TIMESTAMP])[0] == [verdict], seconds

    def test_outputs_are_counted_behind_all_fields(self):
        verdicts, _, seen = self.screened([[0, 0, 0]] * 2, [[1, 5], [1, 51]], [NUMERIC, CATEGORICAL, TIMESTAMP])
        assert verdicts == [-1, 4]
        assert seen == [1, 5]
