"""Frames of any kind are learned like their rows one by one, and predictions are of the kind that came."""

import subprocess
import sys
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch
from streammoe.errors import InvalidEvent

N = 48
NOON = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - without a time zone
MOMENTS = [None if i % 5 == 1 else NOON + timedelta(hours=7.3 * i) for i in range(N)]
AWARE = [moment and moment.replace(tzinfo=UTC) for moment in MOMENTS]
WORDS = [None if i % 5 == 1 else "rgb"[i % 3] for i in range(N)]
SMALL = [None if i % 5 == 1 else i % 7 for i in range(N)]
COLUMNS = {
    "floats, null and NaN": ([None, float("nan"), *(0.5 * i for i in range(N - 2))], pa.float64()),
    "small floats": ([0.5 * i for i in range(N)], pa.float32()),
    "whole numbers": (list(range(N)), pa.uint16()),
    "whole numbers, null": (SMALL, pa.int64()),
    "large numbers": ([2**62 + 3 * i for i in range(N)], pa.int64()),
    "truth values": ([i % 3 == 0 for i in range(N)], pa.bool_()),
    "truth values, null": ([None if i % 5 == 1 else i % 3 == 0 for i in range(N)], pa.bool_()),
    "texts": (WORDS, pa.string()),
    "long texts": (WORDS, pa.large_string()),
    "views of texts": (WORDS, pa.string_view()),
    "categories": (WORDS, pa.dictionary(pa.int8(), pa.string())),
    "texts that are times": (["2026-01-31", *(f"2026-02-{1 + i % 28:02}" for i in range(N - 1))], pa.string()),
    "dates": ([moment and moment.date() for moment in MOMENTS], pa.date32()),
    "times": (MOMENTS, pa.timestamp("us")),
    "times, ns": (MOMENTS, pa.timestamp("ns")),
    "times, zone": (AWARE, pa.timestamp("ms", "Europe/Paris")),
    "decimals": ([None if i % 5 == 1 else Decimal(i) / 4 for i in range(N)], pa.decimal128(9, 2)),
    "no value": ([None] * N, pa.null()),
    "late value": ([None] * 30 + [1.5 * i for i in range(N - 30)], pa.float64()),
}
REFUSED = {
    "durations": ([None, timedelta(1)], pa.duration("us")),
    "durations, ns": ([None, timedelta(1)], pa.duration("ns")),
    "times of day": ([None, time(12)], pa.time64("us")),
    "lists": ([None, [1.0]], pa.list_(pa.float64())),
    "bytes": ([None, b"a"], pa.binary()),
    "infinity": ([None, float("inf")], pa.float64()),
}
NULLABLE = {
    pa.float64(): pd.Float64Dtype(),
    pa.float32(): pd.Float32Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
    pa.string(): pd.StringDtype(),
}
KINDS = {
    "pandas": lambda table: table.to_pandas(),
    "pandas, Arrow types": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas, nullable": lambda table: table.to_pandas(types_mapper=NULLABLE.get),
    "polars": pl.from_arrow,
    "Arrow": lambda table: pa.concat_tables([table[:7], table[7:]]),
    "Arrow, batch": lambda table: table.combine_chunks().to_batches()[0],
}
OBJECTS = {"a": [0.1 * i for i in range(N)], "y": [0.3 * (i % 7) for i in range(N)]}


def quick(kind=MoERegressor, **more):
    return kind(n_experts=2, warmup=0, **more)


def table(values, dtype):
    return pa.table({"v": pa.array(values, dtype), **{name: held[: len(values)] for name, held in OBJECTS.items()}})


def split(frame):
    """Inputs and targets of a frame of any kind."""
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return frame.select(["v", "a"]), frame["y"]
    return frame[["v", "a"]], frame["y"]


def rows(values):
    return [{"v": v, "a": a} if v is not None else {"a": a} for v, a in zip(values, OBJECTS["a"], strict=True)]


@pytest.fixture(scope="module")
def twins():
    """Models that have learned rows one by one, by type of column."""
    found = {}
    for name, (values, _) in COLUMNS.items():
        found[name] = quick()
        for x, y in zip(rows(values), OBJECTS["y"], strict=True):
            found[name].learn_one(x, y)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_frame_is_learned_like_its_rows_and_predictions_are_of_its_kind(kind, column, twins):
    values, dtype = COLUMNS[column]
    X, y = split(KINDS[kind](table(values, dtype)))
    many, array = quick(), quick()
    many.learn_many(X, y)
    assert many.state_digest() == twins[column].state_digest()
    array.learn_array(X, y)
    assert array.state_digest() == many.state_digest()
    found = many.predict_many(X)
    assert list(np.asarray(found)) == [twins[column].predict_one(x) for x in rows(values)]
    assert many.predict_array(X).tolist() == list(np.asarray(found))
    assert isinstance(found, type(y) if kind != "Arrow, batch" else pa.ChunkedArray)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("column", REFUSED)
def test_a_column_that_holds_no_numbers_categories_or_times_is_refused_with_its_row(kind, column):
    X, y = split(KINDS[kind](table(*REFUSED[column])))
    model = quick()
    with pytest.raises(InvalidEvent) as refused:
        model.learn_many(X, y)
    assert (refused.value.feature, refused.value.row, model.n) == ("v", 1, 0)
    assert refused.value.reason == ("not_finite" if column == "infinity" else "wrong_type")


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_decides_whatever_the_type(kind):
    X, y = split(KINDS[kind](table(*COLUMNS["large numbers"])))
    many, rowwise = quick(categorical=("v",)), quick(categorical=("v",))
    many.learn_many(X, y)
    for x, target in zip(rows(COLUMNS["large numbers"][0]), OBJECTS["y"], strict=True):
        rowwise.learn_one(x, target)
    assert many.state_digest() == rowwise.state_digest()
    X, y = split(KINDS[kind](table(*COLUMNS["truth values, null"])))
    with pytest.raises(InvalidEvent) as refused:
        quick(timestamps=("v",)).learn_many(X, y)
    assert (refused.value.reason, refused.value.row) == ("wrong_type", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_labels_weights_and_outputs_of_any_kind(kind):
    a, labels = OBJECTS["a"], [("lo", "hi")[i % 3 == 0] for i in range(N)]
    given = KINDS[kind](
        pa.table({"a": a, "q": OBJECTS["y"], "p": a, "label": labels, "w": [float(i % 4) for i in range(N)]})
    )
    X, Y = (
        given.select(names) if isinstance(given, pa.Table | pa.RecordBatch) else given[names]
        for names in (["a"], ["q", "p"])
    )
    made, rowwise = quick(MoEClassifier), quick(MoEClassifier)
    made.learn_many(X, given["label"], given["w"])
    outputs, each = quick(MoEMultiTargetRegressor), quick(MoEMultiTargetRegressor)
    outputs.learn_many(X, Y)
    for i in range(N):
        rowwise.learn_one({"a": a[i]}, labels[i], w=i % 4)
        each.learn_one({"a": a[i]}, {"q": OBJECTS["y"][i], "p": a[i]})
    assert made.state_digest() == rowwise.state_digest()
    assert outputs.state_digest() == each.state_digest()
    assert np.asarray(made.predict_many(X)).tolist() == [rowwise.predict_one({"a": value}) for value in a]
    for found, expected in (
        (made.predict_proba_many(X), [rowwise.predict_proba_one({"a": value}) for value in a]),
        (outputs.predict_many(X), [each.predict_one({"a": value}) for value in a]),
    ):
        assert type(found) is (pa.Table if isinstance(given, pa.RecordBatch) else type(given))
        assert nw.from_native(found).rows(named=True) == expected
    fitted, of_arrays = quick(), quick()
    batch.fit(fitted, X, given["q"], w=given["w"], rounds=3)
    batch.fit(of_arrays, np.array(a)[:, None], OBJECTS["y"], w=[i % 4 for i in range(N)], feature_names=["a"], rounds=3)
    assert fitted.state_digest() == of_arrays.state_digest()


def test_labels_that_are_no_texts_name_columns_by_their_text_where_columns_have_no_other_names():
    X, y = {"a": [0.0, 1.0, 2.0, 3.0]}, [True, False, True, False]
    model = quick(MoEClassifier)
    model.learn_many(pl.DataFrame(X), pl.Series(y))
    assert model.predict_proba_many(pl.DataFrame(X)).columns == ["True", "False"]
    assert model.predict_proba_many(pd.DataFrame(X)).columns.tolist() == [True, False]
    assert model.predict_many(pl.DataFrame(X)).dtype == pl.Boolean
    blank = quick(MoEClassifier)
    assert blank.predict_many(pl.DataFrame(X)).to_list() == [None] * 4
    assert blank.predict_proba_many(pa.table(X)).num_columns == 0
    mixed = quick(MoEClassifier, classes=[1, "a"])
    mixed.learn_many(pl.DataFrame(X), [1, "a", 1, "a"])
    assert mixed.predict_many(pl.DataFrame(X)).dtype == pl.String
    assert set(mixed.predict_many(pd.DataFrame(X))) <= {1, "a"}


def test_what_has_no_rows_in_memory_or_a_name_twice_is_refused():
    model = quick()
    for X, reason in (
        (pl.LazyFrame({"a": [1.0]}), "wrong_type"),
        (pa.table([[1.0], [2.0]], names=["a", "a"]), "wrong_shape"),
        (pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]), "wrong_shape"),
    ):
        for call in (model.learn_many, model.learn_array, lambda X, y: batch.fit(quick(), X, y)):
            with pytest.raises(InvalidEvent) as refused:
                call(X, [1.0])
            assert refused.value.reason == reason
    model.learn_many(pa.table({"a": [1.0]}), [1.0])
    with pytest.warns(UserWarning, match="lacks 'a'"):
        assert model.predict_many(pd.DataFrame(index=[5])).index.tolist() == [5]


def test_pandas_is_imported_for_frames_of_pandas_only():
    script = """if True:
        import sys, polars as pl
        from streammoe import MoERegressor
        frame = pl.DataFrame({"a": [1.0, None], "b": ["u", None], "c": [True, None], "t": ["2026-01-31", None]})
        frame = frame.with_columns(pl.col("t").str.to_datetime(), pl.col("b").cast(pl.Categorical), y=pl.lit(1.0))
        for given in (frame, frame.to_arrow()):
            model = MoERegressor(1, warmup=0)
            model.learn_many(given, given["y"], given["y"])
        model.predict_many(frame)
        print("pandas" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
