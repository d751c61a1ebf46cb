"""What columns hold is found by their first values, alike in Python, in frames and in records of any format."""

import logging
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from river import datasets, preprocessing

from streammoe import InvalidEvent, MoEClassifier, MoERegressor, load
from streammoe.columns.kinds import WORDS, ColumnKind
from streammoe.columns.layout import CODES, IN_CHECKPOINTS
from streammoe.columns.values import _RULES, READERS, READERS_IN_PYTHON, kind_of
from streammoe.notation import Notation
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import PrequentialScores
from tests.pairs import pairwise_cases
from tests.unit.pipeline.streams import run

KINDS = {"categorical": ("c", "d"), "timestamps": ("t", "u")}
QUICK = {"n_experts": 2, "warmup": 30}
N = 60


def event(i):
    """Return an event in which some columns have their first value late, and a flag and a time now and then none."""
    held = {
        "a": round(math.sin(3 * i), 4),
        "b": i % 3 == 0 if i % 7 else None,
        "c": "red" if i % 3 else "green",
        "d": ("north", "south")[i % 2] if i > 4 else None,
        "e": 0.25 * i if i > 9 else None,
        "t": datetime.fromtimestamp(1.7e9 + 1800 * i, UTC).isoformat() if i % 5 else None,
        "u": "2026-01-31" if i > 30 else None,
    }
    return {**held, "y": round(2 * held["a"] + (i % 3 == 0), 4)}


EVENTS = [event(i) for i in range(N)]


def without_missing(held):
    return {name: value for name, value in held.items() if value is not None and name != "y"}


def learned(model, events):
    for held in events:
        model.learn_one(without_missing(held), held["y"])
    return model


def pipeline(**schema):
    fixed = {name: frozenset(names) for name, names in schema.items() if name in {"categorical", "numeric"}}
    return Pipeline(MoERegressor(**QUICK), Schema(("y",), **{**schema, **fixed}), PrequentialScores(1))


# --- the rule -------------------------------------------------------------------------------------------------------

MISSING = ["#DIV/0!", "NaT", "NA", "n/a", "NULL", "None", "\\N", "<NA>", "?", "-", "--", "nan", " NA "]
TO_BE_REJECTED = [
    *("na", "-Infinity", "1,5", "1,234.5", "1.234,5", "1 000", "12,34,567", "1\u202f234,5", b"x", [1]),
    *("21 °C", "48.2%", "$1,012.33", "-$5", "$-5", "5 €", "2.31M", "5 %", "(5)", "( 5 )", "($1,234)", "(5 %)"),
    *(
        *("1,5 kg", "£1.2bn", "280.69-", "1.234,50-"),
        *("836 W", "1,234 W", "230 V", "230V", "2 h", "15 min", "1.5 m", "12 kn", "12KT", "29.92inHg", "10SM", "21C"),
    ),
]
"""Nothing that is meant as a number becomes a category, nor does what no kind can hold."""
NAMES = [
    *("3rd", "4G", "10A", "B12", "K9", "M 5", "km 5", "EUR5", "10115-A", "5 stars", "36 months", "10-20", "A4", "<5"),
    *("12A", "5XL", "2D", "7b", "15m", "5L", "W 5"),
    *("%", "°C", "1/2", "2021-22", "none", "(a)", "(5", "5)", "0-", "5-"),
]
"""Categories that begin with a number, or look like a unit or a marker."""
FOUND = {
    "number": [0, 1.5, Decimal(1), np.int8(3), np.float32(1), "1", " -1.5e3 ", "007", Decimal("1e400")],
    "boolean": [True, np.False_],
    "category": ["red", "yes", "A12", "12:30", "2026-01-31 to 2026-02-28", "ü", *NAMES],
    "time": [
        *(datetime(2026, 1, 31, tzinfo=UTC), date(2026, 1, 31), np.datetime64("2026-01-31"), "2026-01-31T12:00Z"),
        *("2026-01", "2026-12"),
    ],
    None: [None, "", "  "],
}


def test_every_table_of_kinds_has_all_of_them():
    kinds = set(get_args(ColumnKind))
    assert READERS.keys() == WORDS.keys() == kinds == FOUND.keys() - {None}
    assert READERS_IN_PYTHON.keys() == CODES.keys() == IN_CHECKPOINTS.keys() == kinds - {"boolean"}
    assert {kind for kind, _ in _RULES} == kinds - {"boolean"}


def test_a_value_has_one_kind_and_what_is_meant_as_a_number_is_one():
    for kind, values in FOUND.items():
        for value in values:
            assert kind_of(value, Notation()) == kind, value
    assert kind_of("  ") is None
    for decimal in ("", ".", ","):
        notation = Notation(decimal=decimal)
        for value in [*TO_BE_REJECTED, "1.5"]:
            assert kind_of(value, notation) == "number", value
        for value in MISSING:
            assert kind_of(value, notation) is None, value
        for value in NAMES:
            assert kind_of(value, notation) == "category", value
        for word in ("true", "False"):
            assert kind_of(word, notation) == ("boolean" if decimal else "category")


@pytest.mark.parametrize(
    ("codes", "ordered"), [([0, 1, 2], True), (["0", "1", "2"], False), ([0.5, 1.5, 2.5], False)], ids=str
)
def test_a_type_of_categories_is_what_the_user_says_whatever_the_codes(codes, ordered):
    rng = np.random.default_rng(0)
    k = rng.integers(0, 3, 300)
    frame = pd.DataFrame({"k": np.array(codes, dtype=object)[k], "a": rng.normal(size=300)})
    y = pd.Series(np.array([0.0, 5.0, -5.0])[k])
    expected, found = MoERegressor(**QUICK, categorical=("k",)), MoERegressor(**QUICK)
    expected.learn_many(frame, y)
    typed = frame.assign(k=pd.Categorical(frame["k"], categories=codes, ordered=ordered))
    found.learn_many(typed, y)
    assert found.state_digest() == expected.state_digest()
    assert np.abs(found.predict_many(typed) - y).max() < 0.2
    arrays, numbers = MoERegressor(**QUICK), MoERegressor(**QUICK, numeric=("k",))
    arrays.learn_array(typed, y)
    assert arrays.state_digest() == expected.state_digest()
    if not isinstance(codes[0], str):
        numbers.learn_many(typed, y)
        assert numbers.column_kinds["k"] == "number"
    of_numbers = MoERegressor(**QUICK)
    of_numbers.learn_one({"k": 1.0, "a": 0.0}, 1.0)
    with pytest.raises(InvalidEvent, match="its type is category, but the model has a column of numbers"):
        of_numbers.predict_many(typed)


# --- the same everywhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    pairwise_cases(
        format=["jsonl", "csv", "arrow"], sizes=[(), (1,), (7, 1, 20)], stop=[None, 3, 12, 40], listed=[False, True]
    ),
)
def test_any_cut_any_format_and_a_resume_give_the_model_whose_kinds_were_given(case, tmp_path):
    expected = learned(MoERegressor(**QUICK, **KINDS, numeric=("a", "b", "e")), EVENTS)
    schema = {"features": tuple("abcdetu")} if case["listed"] else {}
    line, stop = pipeline(**schema), case["stop"] or 0
    run(line, EVENTS[:stop], case["format"], case["sizes"])
    if stop:
        line.model.save(tmp_path / "model")
        resumed = load(tmp_path / "model")
        assert resumed.awaited == line.model.awaited
        line = Pipeline(resumed, line.schema, line.scores)
    assert run(line, EVENTS[stop:], case["format"], case["sizes"]).outcomes["learned"] == N - stop
    assert line.model.state_digest() == expected.state_digest()
    assert line.model.column_kinds == {name: expected.column_kinds[name] for name in line.model.fields}


def test_a_frame_is_learned_like_its_rows_whatever_is_missing_and_whatever_its_types():
    n = 120
    rng = np.random.default_rng(0)
    moments = pd.Series(pd.date_range("2026-01-01", periods=n, freq="97min")).mask(rng.random(n) < 0.3)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "late": [None] * 70 + rng.normal(size=n - 70).tolist(),
            "text": [None, *rng.choice(["r", "g"], size=n - 1)],
            "Int64": pd.array([None, *range(n - 1)], dtype="Int64"),
            "boolean": pd.array([True, None] * (n // 2), dtype="boolean"),
            "string": pd.array(["u", None] * (n // 2), dtype="string"),
            "Float64": pd.array([pd.NA, *rng.normal(size=n - 1)], dtype="Float64"),
            "moments": moments,
            "zones": moments.dt.tz_localize("Europe/Paris"),
            "bool": rng.normal(size=n) > 0.0,
            "category": pd.Categorical(rng.choice(["x", "y"], size=n)),
            "codes": rng.integers(2**60, 2**60 + 3, size=n),
            "objects": [Decimal(i) if i % 3 else None for i in range(n)],
            "never": [None] * n,
        }
    )
    y = pd.Series(rng.normal(size=n))
    one, arrays, many = (MoERegressor(**QUICK, categorical=("codes",)) for _ in range(3))
    rows = frame.to_dict("records")
    for x, target in zip(rows, y, strict=True):
        one.learn_one(x, target)
        arrays.learn_one({**x, "moments": x["moments"].to_datetime64()}, target)
    many.learn_many(frame, y)
    assert many.fields == one.fields
    assert many.state_digest() == one.state_digest() == arrays.state_digest()
    assert many.predict_many(frame).tolist() == [one.predict_one(x) for x in rows]
    cut = MoERegressor(**QUICK, categorical=("codes",))
    for piece in (slice(0, 1), slice(1, 90), slice(90, n)):
        cut.learn_many(frame[piece], y[piece])
    assert cut.state_digest() == one.state_digest()


def test_a_setting_decides_before_any_value():
    model = MoERegressor(numeric=("a", "d"), categorical=("z",), timestamps=("t",))
    model.learn_one({"z": 10115, "t": 0.0, "d": date(2026, 1, 31)}, 1.0)
    with pytest.raises(InvalidEvent) as rejected:
        model.learn_one({"a": "red"}, 1.0)
    assert (rejected.value.reason, rejected.value.feature) == ("wrong_type", "a")
    assert model.column_kinds == {"d": "number", "t": "time", "z": "category"}
    line = pipeline(categorical=("z",), numeric=("a",))
    records = [{"a": "red", "z": "7", "y": 1.0}, {"a": "1.5", "z": "7", "y": 1.0}]
    assert run(line, records, "csv").letters == [(0, "wrong_type", "decode")]
    assert line.model.column_kinds == {"a": "number", "z": "category"}


def test_a_column_that_never_has_a_value_costs_nothing_and_is_not_warned_of(caplog):
    line = pipeline()
    with caplog.at_level(logging.WARNING):
        events = [{"a": 1.0 * i, "q": None, "y": 1.0 * i} for i in range(20)]
        assert run(line, events, "arrow").outcomes["learned"] == 20
    assert (line.model.fields, line.model.awaited, caplog.records) == (["a"], ["q"], [])


# --- a scaler in front ----------------------------------------------------------------------------------------------


def warned(caplog, model, events):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for x, y in events:
            model.learn_one(x, y)
    return [record for record in caplog.records if "scaler" in record.message]


@pytest.mark.parametrize("scaler", [preprocessing.StandardScaler, preprocessing.MinMaxScaler])
def test_a_scaler_in_front_is_noticed_once(scaler, caplog):
    for data, estimator in ((datasets.TrumpApproval, MoERegressor), (datasets.ImageSegments, MoEClassifier)):
        for standardize in (True, False):
            model = scaler() | estimator(1, warmup=40, standardize=standardize)
            assert len(warned(caplog, model, islice(data(), 50))) == 1
            model = estimator(1, warmup=40, standardize=standardize)
            assert not warned(caplog, model, islice(data(), 50))


def test_inputs_that_begin_with_zeros_or_have_unit_scales_are_not_taken_for_scaled(caplog):
    rng = np.random.default_rng(0)
    walk = np.concatenate([np.zeros((1, 3)), np.cumsum(rng.normal(size=(99, 3)), axis=0)])
    unit = rng.uniform(size=(100, 3))
    unit[0] = 0.0
    flags = rng.integers(0, 2, size=(100, 3)).astype(float)
    flags[:2] = [[0.0] * 3, [1.0] * 3]
    for rows in (walk, unit, flags, rng.normal(size=(100, 3)), np.zeros((100, 3))):
        events = [(dict(zip("abc", row, strict=True)), sum(row)) for row in rows.tolist()]
        assert not warned(caplog, MoERegressor(1, warmup=40), events)
