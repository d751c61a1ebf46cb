"""Events as rows: columns, levels, times, and what is out of range. The kernels below it have tests too."""

import math
from datetime import UTC, datetime
from statistics import median

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe.columns.encoder import Encoder
from streammoe.columns.fitting import fit_scaler
from streammoe.columns.kinds import GivenKinds
from streammoe.columns.layout import CYCLES
from streammoe.columns.values import level, seconds
from streammoe.kernels.features import BLOCK, DAY, MARGIN, RUN, SETTLED


def encoder(columns=(), *, categorical=(), timestamps=(), **given):
    options = {"degree": 1, "gate_degree": 1, "range_factor": 1e6} | given
    made = Encoder(n_outputs=1, given=GivenKinds(categorical, timestamps), **options)
    made.set_columns(columns)
    return made


def take(into, event, target=0.0):
    """What learning does with an event before it reaches the kernels."""
    additions = into.columns.additions(event)
    row = into.row(event, additions)
    into.take(row, np.array([[target]]), additions)
    return row[0]


def features(of, rows):
    """Gate and expert features as lists, without the zeros that rows are padded with."""
    found = of.design(np.asarray(rows, dtype=float))
    return tuple(
        block[:, :width].tolist()
        for block, width in zip(found, (of.n_gate_features, of.n_expert_features), strict=True)
    )


# --- columns, ranges and levels -------------------------------------------------------------------------------------


def literal_verdicts(X, Y, factor, limit):
    """The range rule as the documentation has it, for numeric columns; targets count as further columns."""
    accepted = [[] for _ in range(X.shape[1] + Y.shape[1])]
    verdicts = []
    for row in np.concatenate([X, Y], axis=1):
        learns = not math.isnan(row[-1])
        verdict = -1
        for j, value in enumerate(row):
            blocks = [accepted[j][at : at + BLOCK] for at in range(0, len(accepted[j]) - BLOCK + 1, BLOCK)]
            scale = max(map(median, blocks), default=0.0)
            if abs(value) > limit or (learns and 0.0 < factor * scale < abs(value)):
                verdict = j
                break
        verdicts.append(verdict)
        if learns and verdict < 0:
            for values, value in zip(accepted, row, strict=True):
                if value and not math.isnan(value):
                    values.append(abs(value))
    return verdicts


@pytest.mark.parametrize("factor", [0.0, 10.0])
def test_ranges_are_judged_by_the_medians_of_what_was_accepted_however_rows_are_cut(factor):
    rng = np.random.default_rng(0)
    n = 600
    X = rng.normal(size=(n, 4)) * np.exp(rng.normal(size=(n, 4))) * [1.0, 1e-9, 1e9, 1.0]
    X[:, 3] *= rng.random(n) < 0.3
    X[rng.random((n, 4)) < 0.02] = np.nan
    X[rng.random((n, 4)) < 0.02] *= 1e7
    X[500, 0] = 1e60
    Y = rng.normal(size=(n, 1)) * np.linspace(1.0, 100.0, n)[:, None]
    Y[rng.random(n) < 0.1] = np.nan
    expected = literal_verdicts(X, Y, factor, 1e50)
    assert len({*expected}) > (3 if factor else 1)
    whole, cut = (encoder(list("abcd"), range_factor=factor) for _ in range(2))
    assert whole.screen(X, Y).tolist() == expected
    found = []
    for at in np.array_split(np.arange(n), 97):
        restored = encoder(range_factor=factor)
        restored.restore(cut.arrays())
        cut = restored
        found += cut.screen(X[at], Y[at]).tolist()
    assert found == expected
    assert {name: array.tobytes() for name, array in cut.arrays().items()} == {
        name: array.tobytes() for name, array in whole.arrays().items()
    }


def test_bounds_follow_a_jump_but_not_what_moves_there_step_by_step():
    rng, highs = np.random.default_rng(1), []
    for values in (3.0 + rng.random(2 * RUN), np.linspace(0.0, 4.0, 2_000) + 0.2 * rng.random(2_000)):
        made = encoder(["a"], holds=True)
        for x in [*np.linspace(0.0, 1.0, SETTLED + 2), *values]:
            made.hold(np.array([[x]]), np.zeros((1, 1)))
        highs.append(float(made.bounds.high[0]))
    assert highs[0] > 3.0
    assert highs[1] < 1.23  # 2,000 steps of the pace


def test_beyond_max_levels_none_is_added_which_is_logged_once(caplog):
    made = encoder(["c"], categorical=("c",), max_levels=2)
    for text in "abcda":
        row = take(made, {"c": text})
        made.notice_unplaced(row[None], np.zeros((1, 1)))
    assert made.levels == {"c": {"a": 0, "b": 1}}
    (record,) = caplog.records
    assert "c: has 2 levels" in record.message
    assert "max_levels" in record.message


# --- features -------------------------------------------------------------------------------------------------------


def test_numbers_that_vary_have_mean_0_and_deviation_1():
    names = ["c", "t", "a", "gaps", "constant", "rounding", "absent", "far", "absurd"]
    made = encoder(names, categorical=("c",), timestamps=("t",))
    made.append_levels([("c", "red")])
    rng, n = np.random.default_rng(0), 400
    X = np.column_stack([np.zeros(n), 1e9 + np.arange(n), rng.normal(5.0, 0.01, n), rng.normal(-300.0, 40.0, n)])
    X[::7, 3] = np.nan
    far, absurd = np.append(np.arange(n - 1) % 2, 1e5), np.append(1e12, np.arange(n - 1) % 2)
    X = np.column_stack([X, np.full(n, 0.1), 1e9 + 1e-7 * np.arange(n), np.full(n, np.nan), far, absurd])
    Y = rng.normal(7.0, 3.0, size=(n, 1))
    before = dict(zip(made.feature_names, made.design(X)[1].T[1:].copy(), strict=False))
    fit_scaler(made, X, Y, standardize=True)
    after = dict(zip(made.feature_names, made.design(X)[1].T[1:], strict=False))
    for name, present in (("a", np.ones(n, bool)), ("gaps", ~np.isnan(X[:, 3]))):
        assert after[name][present].mean() == pytest.approx(0.0, abs=1e-9)
        assert after[name][present].std() == pytest.approx(1.0)
        assert (after[name][~present] == 0).all(), "a missing value is the mean"
    for name in ("constant", "rounding", "absent"):
        assert np.abs(after[name]).max() < 1e-4, "centred and not blown up"
    at = made.feature_names.index("far")
    assert made.scaler.center[at] < 10.0, "one absurd value must not shape the column"
    assert made.scaler.scale[at] == pytest.approx(1e-3 * (far - made.scaler.center[at]).std(), rel=0.1)
    at = made.feature_names.index("absurd")
    assert made.scaler.scale[at] == pytest.approx(0.5, rel=0.01), "one that would be out of range is none"
    for name in ("c=red", *(f"t:{part}" for part in CYCLES)):
        assert after[name].tobytes() == before[name].tobytes()
    assert (made.scaler.target_center[0], made.scaler.target_scale[0]) == pytest.approx((Y.mean(), Y.std()))


def test_a_missing_time_is_the_mean_of_all_others_in_each_cycle():
    made, rng = encoder(["t"], timestamps=("t",)), np.random.default_rng(0)
    X = rng.uniform(1.7e9, 1.7e9 + 3e5, size=(200, 1))
    X[::9] = np.nan
    assert not made.design(X)[1][0, 1:].any(), "nothing is known yet"
    fit_scaler(made, X, np.zeros((200, 1)), standardize=True)
    R = made.design(X)[1][:, 1 : 1 + len(CYCLES)]
    assert R[0] == pytest.approx(R[~np.isnan(X[:, 0])].mean(axis=0), abs=1e-12)
    assert np.hypot(*R[0][4:]) == pytest.approx(1.0, abs=1e-3), "the days are near each other in the year"


def test_a_time_is_held_in_cycles_that_were_not_seen_whole_and_only_there():
    """Three days tell nothing about other days of the week or the year, to which a line would go on."""
    made, free = encoder(["t"], timestamps=("t",), holds=True), encoder(["t"], timestamps=("t",))
    X = 1.78e9 + np.linspace(0.0, 3 * DAY, 2 * SETTLED)[:, None]
    asked = np.array([[X[0, 0] - DAY], [X[-1, 0] + 90.2 * DAY], [math.nan]])
    for row in X:
        made.hold(row[None], np.zeros((1, 1)))
    (*known, missing), true, seen = made.design(asked)[1][:, 1:7], free.design(asked)[1][:, 1:7], made.design(X)[1]
    np.testing.assert_array_equal(seen, free.design(X)[1])
    np.testing.assert_array_equal(np.array(known)[:, :2], true[:2, :2])
    ends = np.array([[X[0, 0] - MARGIN * 3 * DAY], [X[-1, 0] + MARGIN * 3 * DAY]])
    np.testing.assert_array_equal(np.array(known)[:, 2:], free.design(ends)[1][:, 3:7])
    np.testing.assert_array_equal(missing[2:], seen[-1, 3:7])
    made.hold(asked, np.full((3, 1), math.nan))  # not learned
    np.testing.assert_array_equal(made.design(asked)[1][:2, 1:7], known)
    made.hold(np.array([[X[0, 0] + 400 * DAY]]), np.zeros((1, 1)))
    np.testing.assert_array_equal(made.design(asked)[1][:2, 1:7], true[:2])


def test_predictions_take_what_is_beyond_as_the_end_and_leave_codes_alone():
    made = encoder(["c", "t", "x"], degree=150, categorical=("c",), timestamps=("t",))
    found = made.bounded(np.array([[63.0, 1.7e9, 1e300], [-1.0, 1e300, np.nan], [np.nan, -1e300, -1e300]]))
    np.testing.assert_array_equal(
        found,
        [[63.0, 1.7e9, made.limit], [-1.0, 253_402_300_800.0, np.nan], [np.nan, -62_135_596_800.0, -made.limit]],
    )


# --- laws -----------------------------------------------------------------------------------------------------------

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


@settings(max_examples=30)
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


@settings(max_examples=30)
@given(events=st.lists(sound, min_size=2, max_size=12), first=st.integers(1, 11), degree=degrees)
@example(events=[{"a": 2.0}, {"b": 3.0}], first=1, degree=(3, 3))
def test_old_features_stand_where_the_layout_says(events, first, degree):
    first = min(first, len(events) - 1)
    made = made_of(events[:first], *degree)
    layout, n_fields = made.layout, len(made.fields)
    rows = np.concatenate([made.row(event) for event in events[:first]])
    before = features(made, rows)
    for event in events[first:]:
        take(made, event)
    missing = np.full((first, len(made.fields) - n_fields), np.nan)
    after = features(made, np.concatenate([rows, missing], axis=1))
    for at, power in enumerate((made.gate_degree, made.degree)):
        places = layout.places_in(made.layout, power)
        wide = np.array(after[at])
        assert wide[:, places].tolist() == before[at]
        assert (np.delete(wide, places, axis=1) == 0).all()
        assert len(set(places.tolist())) == len(places) == len(before[at][0])
