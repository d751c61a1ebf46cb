import math
import time
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import CheckpointError, ConfigError, InvalidEvent
from streammoe.features import Encoder
from streammoe.layout import CYCLES, News
from streammoe.values import level, number, seconds

TOO_LONG = 10**5000
"""Python itself cannot write this number."""


def encoder(columns=(), *, degree=1, gate_degree=1, range_factor=1e6, **kinds):
    made = Encoder(n_outputs=1, degree=degree, gate_degree=gate_degree, range_factor=range_factor, **kinds)
    made.set_columns(columns)
    return made


def take(into, event, target=0.0):
    """What learning does with an event before it reaches the kernels."""
    news = into.news(event)
    row = into.row(event, news)
    into.take(row, np.array([[target]]), news)
    return row[0]


def features(of, rows):
    """Gate and expert features as lists, without the zeros that rows are padded with."""
    found = of.design(np.asarray(rows, dtype=float))
    return tuple(
        block[:, :width].tolist()
        for block, width in zip(found, (of.n_gate_features, of.n_expert_features), strict=True)
    )


def frozen(of):
    """All that a checkpoint would hold, in bits."""
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in of.arrays().items()}


def refused(read, value):
    with pytest.raises(InvalidEvent) as found:
        read(value, "sensor 7")
    assert found.value.feature == "sensor 7"
    assert len(str(found.value)) < 300
    return found.value.reason


def test_numbers_are_numbers_and_all_else_is_rejected():
    for value, expected in ((1, 1.0), (2.5, 2.5), (True, 1.0), (np.bool_(False), 0.0), (np.float32(0.5), 0.5)):
        found = number(value, "a")
        assert (type(found), found) == (float, expected)
    for value in (math.nan, math.inf, -np.inf, np.float64("nan")):
        assert refused(number, value) == "not_finite"
    for value in (10**400, TOO_LONG):
        assert refused(number, value) == "out_of_range"
    for value in (None, "1.0", "x" * 10_000, 1j, [1.0], {}):
        assert refused(number, value) == "wrong_type"


LEVELS = [
    ("red", "red"),
    ("", ""),
    (np.str_("red"), "red"),
    (True, "true"),
    (np.False_, "false"),
    (7, "7"),
    (np.int8(-7), "-7"),
    (7.0, "7"),
    (-0.0, "0"),
    (1e22, "10000000000000000000000"),
    (0.1, "0.1"),
    (np.float32(0.5), "0.5"),
    (10**30, "1" + "0" * 30),
]


def test_a_level_is_the_same_text_in_every_format_and_all_else_is_rejected():
    for value, expected in LEVELS:
        found = level(value, "c")
        assert (type(found), found) == (str, expected)
    for value in (None, b"red", ["red"], {}, 1j):
        assert refused(level, value) == "wrong_type"
    for value in (math.nan, np.float32("inf")):
        assert refused(level, value) == "not_finite"
    assert refused(level, TOO_LONG) == "out_of_range"


NOON = 1_769_860_800.0
SECONDS = [
    (0, 0.0),
    (1.5, 1.5),
    (np.int64(86_400), 86_400.0),
    (1e300, 1e300),
    (datetime(2026, 1, 31, 12, tzinfo=UTC), NOON),
    (datetime(2026, 1, 31, 12), NOON),  # noqa: DTZ001 - what says nothing is UTC
    (datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
    (pd.Timestamp("2026-01-31 12:00"), NOON),
    (date(2026, 1, 31), NOON - 43_200.0),
    ("2026-01-31T12:00:00Z", NOON),
    ("2026-01-31t12:00:00z", NOON),
    ("2026-01-31 12:00", NOON),
    ("2026-01-31T14:00:00+02:00", NOON),
    ("20260131T120000Z", NOON),
    ("2026-01-31", NOON - 43_200.0),
    ("2026-01-31T12:00:00.25Z", NOON + 0.25),
    ("1969-12-31T23:59:59.5", -0.5),
    ("0001-01-01", -62_135_596_800.0),
    (datetime.max.replace(tzinfo=UTC), 253_402_300_800.0),
]
NO_TIMES = [None, True, np.True_, [2026], b"2026-01-31", "", "yesterday", "1769860800", "20260131", "20260131.05"]
NO_TIMES += ["2026-02-30", "2026-01-31T25:00", "0000-01-01", "٢٠٢٦-01-31"]


@pytest.fixture
def far_from_utc():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC+5")
        time.tzset()
        yield
    time.tzset()


def test_times_are_seconds_since_1970_utc_and_all_else_is_rejected(far_from_utc):
    for value, expected in SECONDS:
        found = seconds(value, "t")
        assert (type(found), found) == (float, expected)
    for value in NO_TIMES:
        assert refused(seconds, value) == "wrong_type", value
    for value in (math.nan, -math.inf, pd.NaT):
        assert refused(seconds, value) == "not_finite"
    assert refused(seconds, 10**400) == "out_of_range"


class TestColumns:
    def test_are_ordered_by_name_within_the_event_that_first_shows_them(self):
        made = encoder()
        take(made, {"b": 1, "a": 2})
        take(made, {"z": 1, "b": 3, "c": 4, "A": 5})
        assert made.fields == ["a", "b", "A", "c", "z"]
        assert made.row({"z": 9, "a": 1}).tolist()[0][:2] == [1, pytest.approx(np.nan, nan_ok=True)]

    def test_names_of_different_types_can_stand_side_by_side(self):
        made = encoder()
        take(made, {10: 1.0, "x": 2.0, 9: 3.0})
        assert made.fields == [10, 9, "x"]


class TestRanges:
    def test_each_column_and_the_target_have_their_own(self):
        made = encoder()
        take(made, {"a": 1e6, "b": 1.0}, target=10.0)
        take(made, {"a": 1e12, "b": 1.0}, target=1e7)
        with pytest.raises(InvalidEvent) as refused:
            take(made, {"a": 1.0, "b": 1e7})
        assert refused.value.feature == "b"
        with pytest.raises(InvalidEvent) as refused:
            take(made, {"a": 1.0, "b": 1.0}, target=-1e14)
        assert refused.value.reason == "out_of_range"

    def test_without_the_rule_only_the_limit_holds(self):
        made = encoder(range_factor=0.0)
        take(made, {"a": 9e49})
        with pytest.raises(InvalidEvent) as refused:
            take(made, {"a": -1.1e50})
        assert refused.value.reason == "out_of_range"

    @pytest.mark.parametrize(
        ("degree", "gate_degree", "limit"), [(1, 1, 1e50), (3, 1, 1e50), (4, 1, 10**37.5), (1, 6, 1e25)]
    )
    def test_powers_lower_the_limit_so_that_squares_stay_finite(self, degree, gate_degree, limit):
        made = encoder(degree=degree, gate_degree=gate_degree)
        assert made.limit == pytest.approx(limit)
        assert np.isfinite((made.limit ** max(degree, gate_degree)) ** 2)

    def test_screen_goes_on_after_a_refused_row_which_widens_nothing(self):
        made = encoder(["a", "b"])
        X = np.array([[1.0, 1.0], [1.0, 1e8], [1.0, 1e7], [np.nan, 1.0], [1.0, 1.0]])
        Y = np.array([[1.0], [1.0], [1.0], [1.0], [1e9]])
        assert made.screen(X, Y).tolist() == [-1, 1, 1, -1, 2]
        assert made.largest.tolist() == [1.0, 1.0]
        assert made.target_largest.tolist() == [1.0]

    def test_a_row_without_target_is_held_to_the_limit_only_and_widens_nothing(self):
        made = encoder(["a"])
        verdicts = made.screen(np.array([[1e20], [1e60], [1e20]]), np.array([[np.nan], [np.nan], [1.0]]))
        assert verdicts.tolist() == [-1, 0, 0]
        assert made.largest.tolist() == [0.0]


class TestDesign:
    def test_what_is_far_out_comes_out_no_more_than_a_thousand_deviations_away(self):
        made = encoder(["a"])
        X = np.append(np.tile([0.0, 1.0], 200), 1e12)[:, None]
        made.fit_scaler(X, np.zeros((len(X), 1)), standardize=True)
        assert made.scaler.center[0] < 10.0, "one absurd value must not shape the column"
        assert made.scaler.scale[0] == pytest.approx(1e-3 * (X - made.scaler.center).std(), rel=0.1)

    def test_rows_are_as_wide_as_said_and_end_in_zeros(self):
        for P in range(9):
            made = encoder([f"x{j}" for j in range(P)], degree=3, gate_degree=2)
            W, R = made.design(np.ones((2, P)))
            assert (made.gate_width, made.expert_width) == (W.shape[1], R.shape[1])
            assert (made.n_gate_features, made.n_expert_features) == (1 + 2 * P, 1 + 3 * P)
            assert (W.sum(axis=1) == made.n_gate_features).all()
            assert (R[:, made.n_expert_features :] == 0).all()
            assert R.flags.c_contiguous

    def test_a_missing_value_is_zero_before_means_are_known_and_the_mean_after(self):
        made = encoder(["a", "b"])
        rows = np.array([[1.0, np.nan], [3.0, 10.0]])
        assert features(made, rows)[1] == [[1, 1, 0], [1, 3, 10]]
        made.fit_scaler(rows, np.zeros((2, 1)), standardize=False)
        assert features(made, np.full((1, 2), np.nan))[1] == [[1, 2, 10]]
        assert features(made, rows)[1] == [[1, 1, 10], [1, 3, 10]]

    def test_standardised_rows_have_mean_0_and_deviation_1(self):
        made = encoder(["a", "b"])
        rng = np.random.default_rng(0)
        X = rng.normal([5.0, -300.0], [0.01, 40.0], size=(500, 2))
        Y = rng.normal(7.0, 3.0, size=(500, 1))
        X[::7, 1] = np.nan
        made.fit_scaler(X, Y, standardize=True)
        Z = made.design(X)[1][:, 1:3]
        present = ~np.isnan(X)
        for j in range(2):
            assert Z[present[:, j], j].mean() == pytest.approx(0.0, abs=1e-9)
            assert Z[present[:, j], j].std() == pytest.approx(1.0)
        # A missing value enters as the mean, which is 0 here.
        assert (Z[~present] == 0).all()
        assert made.scaler.target_center[0] == pytest.approx(Y.mean())
        assert made.scaler.target_scale[0] == pytest.approx(Y.std())

    def test_columns_that_do_not_vary_are_centred_and_not_blown_up(self):
        made = encoder(["constant", "rounding", "absent"])
        X = np.column_stack([np.full(50, 0.1), 1e9 + 1e-7 * np.arange(50), np.full(50, np.nan)])
        made.fit_scaler(X, np.full((50, 1), 4.0), standardize=True)
        assert made.scaler.scale.tolist() == [1.0, 1.0, 1.0]
        assert made.scaler.target_scale.tolist() == [1.0]
        assert np.abs(made.design(X)[1][:, 1:]).max() < 1e-5

    def test_powers_are_those_of_numbers_alone_behind_all_columns_of_degree_1(self):
        made = encoder(["c", "x", "t", "y"], degree=3, categorical=("c",), timestamps=("t",))
        made.append_levels([("c", "red"), ("c", "blue")])
        _, R = features(made, [[1.0, 2.0, np.nan, 3.0]])
        assert made.feature_names == ["x", *(f"t:{part}" for part in CYCLES), "y", "c=red", "c=blue"]
        assert R == [[1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 9, 8, 27]]
        assert made.n_expert_features == 15
        assert made.n_gate_features == 11


class TestLevels:
    def test_become_columns_as_they_are_learned(self):
        made = encoder(categorical=("c",))
        assert take(made, {"x": 5.0, "c": "red"}).tolist() == [0.0, 5.0]
        assert take(made, {"c": "blue", "x": 6.0, "y": 1.0}).tolist() == [1.0, 6.0, 1.0]
        assert made.feature_names == ["c=red", "x", "c=blue", "y"]
        assert made.fields == ["c", "x", "y"]

    def test_news_are_fields_by_name_and_levels_in_the_order_of_the_fields(self):
        made = encoder(["d", "c"], categorical=("c", "d", "b"))
        event = {"z": 1.0, "c": 1, "b": True, "d": "p", "a": 2.0}
        assert made.news(event) == News(("a", "b", "z"), (("d", "p"), ("c", "1"), ("b", "true")))
        take(made, event)
        assert made.feature_names == ["d=p", "c=1", "a", "b=true", "z"]
        assert not made.news(event)
        assert made.news(event) is not None

    def test_one_that_is_not_held_is_minus_one_and_no_column(self):
        made = encoder(["c", "x"], categorical=("c",))
        take(made, {"c": "red", "x": 1.0})
        row = made.row({"c": "blue", "x": 2.0})
        assert row.tolist() == [[-1.0, 2.0]]
        assert features(made, row)[1] == [[1, 2, 0]]
        assert features(made, [[np.nan, 2.0]])[1] == [[1, 2, 0]]

    def test_a_code_without_a_column_is_all_zeros(self):
        made = encoder(["c"], categorical=("c",))
        made.append_levels([("c", "red"), ("c", "blue")])
        for code in (-1.0, 2.0, 1e300, np.inf, -np.inf, np.nan):
            assert features(made, [[code]])[1] == [[1, 0, 0]]

    def test_beyond_max_levels_none_is_added_which_is_said_once(self, caplog):
        made = encoder(["c"], categorical=("c",), max_levels=2)
        for text in "abcda":
            row = take(made, {"c": text})
            made.notice_unplaced(row[None], np.zeros((1, 1)))
        assert made.levels == {"c": {"a": 0, "b": 1}}
        assert made.unplaced == {"c": 2}
        (record,) = caplog.records
        assert "c: has 2 levels" in record.message
        assert "max_levels" in record.message

    def test_what_is_only_predicted_is_not_counted(self):
        made = encoder(["c"], categorical=("c",), max_levels=1)
        made.append_levels([("c", "a")])
        made.notice_unplaced(np.array([[-1.0], [0.0]]), np.array([[np.nan], [1.0]]))
        assert made.unplaced == {}

    def test_codes_of_texts(self):
        made = encoder(["x", "c"], categorical=("c",))
        made.append_levels([("c", "red"), ("c", "blue")])
        found = made.codes(1, ["blue", "green", None, "red"])
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, [1.0, -1.0, np.nan, 0.0])
        assert made.codes(1, []).shape == (0,)

    def test_arrivals_say_where_an_array_has_to_be_cut(self):
        made = encoder(["c", "d"], categorical=("c", "d"), max_levels=3)
        made.append_levels([("c", "a")])
        texts = {"c": ["a", None, "b", "z", "c", "e"], "d": ["p", "p", "q", "p", None, "r"]}
        learned = np.array([True, True, True, False, True, True])
        assert made.arrivals(texts, learned) == [
            (0, (("d", "p"),)),
            (2, (("c", "b"), ("d", "q"))),
            (4, (("c", "c"),)),
            (5, (("d", "r"),)),
        ]
        assert made.arrivals({"c": ["z"]}) == [(0, (("c", "z"),))]

    @pytest.mark.parametrize("levels", [[("c", "a")], [("x", "a")], [("c", "b"), ("c", "b")], [("c", "b"), ("c", "d")]])
    def test_none_is_appended_twice_or_beyond_the_most(self, levels):
        made = encoder(["c", "x"], categorical=("c",), max_levels=2)
        made.append_levels([("c", "a")])
        before = frozen(made)
        with pytest.raises(ValueError):
            made.append_levels(levels)
        assert frozen(made) == before


class TestTimes:
    def test_range_factor_is_not_for_them_and_the_years_1_to_9999_are(self):
        made = encoder(["t", "x"], timestamps=("t",), range_factor=2.0)
        X = np.array([[1.7e9, 1.0], [1.7e12, 1.0], [-6.3e10, 1.0], [np.inf, 1.0], [0.0, 3.0], [np.nan, 1.0]])
        assert made.screen(X, np.zeros((6, 1))).tolist() == [-1, 0, 0, 0, 1, -1]
        assert made.largest.tolist() == [0.0, 1.0]
        with pytest.raises(InvalidEvent) as refused:
            take(made, {"t": 1_700_000_000_000})
        assert (refused.value.reason, refused.value.feature) == ("out_of_range", "t")

    def test_predictions_take_what_is_beyond_as_the_end_and_leave_codes_alone(self):
        made = encoder(["c", "t", "x"], degree=150, categorical=("c",), timestamps=("t",))
        found = made.bounded(np.array([[63.0, 1.7e9, 1e300], [-1.0, 1e300, np.nan], [np.nan, -1e300, -1e300]]))
        np.testing.assert_array_equal(
            found,
            [[63.0, 1.7e9, made.limit], [-1.0, 253_402_300_800.0, np.nan], [np.nan, -62_135_596_800.0, -made.limit]],
        )

    def test_neither_times_nor_levels_are_scaled(self):
        made = encoder(["t", "x", "c"], timestamps=("t",), categorical=("c",))
        made.append_levels([("c", "a")])
        X = np.array([[1e9, 1.0, 0.0], [2e9, 5.0, 0.0], [np.nan, np.nan, -1.0]])
        raw = made.design(X)[1].copy()
        made.fit_scaler(X, np.array([[1.0], [2.0], [3.0]]), standardize=True)
        assert made.scaler.center.tolist() == [0, 0, 0, 0, 0, 0, 3, 0]
        assert made.scaler.fill.tolist() == [0, 0, 0, 0, 0, 0, 3, 0]
        assert made.scaler.scale.tolist() == [1, 1, 1, 1, 1, 1, 2, 1]
        scaled = made.design(X)[1]
        others = [0, 1, 2, 3, 4, 5, 6, 8]
        assert scaled[:, others].tobytes() == raw[:, others].tobytes()
        assert scaled[:, 7].tolist() == [-1, 1, 0]


class TestNames:
    def test_derived_ones_are_texts_and_numbers_keep_theirs(self):
        made = encoder([3, 1, 2], categorical=(1,), timestamps=(2,))
        made.append_levels([(1, "a=b")])
        assert made.feature_names == [3, *(f"2:{part}" for part in CYCLES), "1=a=b"]

    def test_features_are_found_again_by_their_names(self):
        made = encoder(categorical=("c", "c=d"), timestamps=("t",))
        for name in "txc":
            take(made, {name: 1.0})
        take(made, {"c=d": "e=f", "late": 3.0, "c": "g"})
        again = encoder(categorical=("c", "c=d"), timestamps=("t",))
        again.set_features(made.feature_names)
        assert again.feature_names == made.feature_names
        assert again.levels == made.levels

    @pytest.mark.parametrize("names", [["x", "x"], ["t:day_sin", "x"], ["c=a", "c=a"], ["t:day_sin"]])
    def test_names_that_are_no_layout_are_refused(self, names):
        made = encoder(categorical=("c",), timestamps=("t",))
        with pytest.raises(ConfigError):
            made.set_features(names)


class TestKeeping:
    def test_with_numbers_alone_the_arrays_are_those_of_the_first_version(self):
        made = encoder(["a", 1])
        names = ["columns", "largest", "target_largest", "fill", "center", "scale", "target_center", "target_scale"]
        assert list(made.arrays()) == [f"encoder.{name}" for name in names]
        assert made.arrays()["encoder.columns"].tobytes() == b'["a", 1]'

    def test_a_field_of_another_kind_is_refused(self):
        kept = encoder(["a"]).arrays()
        with pytest.raises(CheckpointError):
            encoder(timestamps=("a",)).restore(kept)


# -- Laws --------------------------------------------------------------------------------------------------------------

KINDS = {"categorical": ("c", "d"), "timestamps": ("s", "t"), "max_levels": 3}
numbers = st.floats(-1e6, 1e6)
categories = st.one_of(
    st.sampled_from(["red", "blue", ""]), st.booleans(), st.integers(0, 3), st.sampled_from([0.0, 0.5])
)
times = st.one_of(
    st.floats(-6e10, 2.5e11),
    st.integers(-(10**9), 10**10),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
    st.dates(),
)
sound = st.fixed_dictionaries(
    {}, optional={"a": numbers, "b": numbers, "z": numbers, "c": categories, "d": categories, "s": times, "t": times}
)

degrees = st.tuples(st.integers(1, 3), st.integers(1, 3))


def made_of(events, degree, gate_degree):
    made = encoder(degree=degree, gate_degree=gate_degree, **KINDS)
    for event in events:
        take(made, event)
    return made


def by_hand(of, event):
    """The columns of degree 1 by name, as the definition reads."""
    columns = {}
    for name, value in event.items():
        if name in KINDS["categorical"]:
            columns[f"{name}={level(value, name)}"] = 1.0
        elif name in KINDS["timestamps"]:
            at = seconds(value, name)
            for period, length, offset in (("day", 86_400, 0), ("week", 604_800, 259_200), ("year", 31_556_952, 0)):
                turn = 2.0 * math.pi * (((at + offset) % length) / length)
                columns[f"{name}:{period}_sin"], columns[f"{name}:{period}_cos"] = math.sin(turn), math.cos(turn)
        else:
            columns[name] = float(value)
    return [columns.get(name, 0.0) for name in of.feature_names]


@settings(max_examples=40, deadline=None)
@given(events=st.lists(sound, min_size=1, max_size=8), degree=degrees)
def test_features_are_what_their_names_say(events, degree):
    made = made_of(events, *degree)
    for event in events:
        W, R = features(made, made.row(event))
        assert R[0][: 1 + len(made.feature_names)] == pytest.approx([1.0, *by_hand(made, event)], rel=1e-12, abs=1e-12)
        numeric = [event.get(name, 0.0) for name in made.fields if name in "abz"]
        powers = [value**d for d in range(2, degree[0] + 1) for value in numeric]
        assert R[0][1 + len(made.feature_names) :] == pytest.approx(powers)
        assert W[0][: len(R[0])] == R[0][: len(W[0])]


@settings(max_examples=40, deadline=None)
@given(events=st.lists(sound, min_size=2, max_size=12), degree=degrees, data=st.data())
def test_old_features_stand_where_moved_says(events, degree, data):
    first = data.draw(st.integers(1, len(events) - 1))
    made = made_of(events[:first], *degree)
    layout, n_fields = made.layout, len(made.fields)
    rows = np.concatenate([made.row(event) for event in events[:first]])
    before = features(made, rows)
    for event in events[first:]:
        take(made, event)
    missing = np.full((first, len(made.fields) - n_fields), np.nan)
    after = features(made, np.concatenate([rows, missing], axis=1))
    for at, power in enumerate((made.gate_degree, made.degree)):
        places = made.moved(layout, power)
        wide = np.array(after[at])
        assert wide[:, places].tolist() == before[at]
        assert (np.delete(wide, places, axis=1) == 0).all()
        assert len(set(places.tolist())) == len(places) == len(before[at][0])
