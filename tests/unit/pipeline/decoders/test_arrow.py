import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from streammoe.errors import SourceError
from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.ports import Batch


def batch_of(**columns):
    table = pa.record_batch(columns)
    return Batch(b"", np.empty(0, np.int64), "arrow", None, "a.parquet", lambda i: {"row": i}, {}, table=table)


def decode(columns=("a",), targets=(), ignore=None, wanted=None, **arrays):
    return decoder("arrow").decode(batch_of(**arrays), Wanted(columns, targets, **wanted or {}), ignore)


def refused(values, kind=None, **wanted):
    return [(bad.index, bad.reason) for bad in decode(a=pa.array(values, kind), wanted=wanted).rejected]


def test_numbers_become_contiguous_arrays_in_the_order_of_the_names():
    decoded = decode(("b", "a"), ("y",), a=[1.0, 2.0], b=[3, None], y=[True, False])
    np.testing.assert_array_equal(decoded.X, [[3, 1], [math.nan, 2]])
    assert decoded.Y.tolist() == [[1], [0]]
    assert decoded.X.flags.c_contiguous
    assert decoded.rows.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 3], pa.int8()),
        ([2**53 + 1, None, -(2**63)], pa.int64()),
        ([2**64 - 1, None, 0], pa.uint64()),
        ([0.1, None, -1.5], pa.float32()),
        ([0.5, None, -1.5], pa.float16()),
        ([True, None, False], pa.bool_()),
        ([Decimal("0.10"), None, Decimal("-12345678901234567.89")], pa.decimal128(20, 2)),
        ([Decimal("1E+30"), None, Decimal("1E+20")], pa.decimal256(50, 2)),
        ([None, None, None], pa.null()),
    ],
)
def test_every_type_of_number_is_a_float(values, kind):
    array = pa.array(values, kind)
    expected = [math.nan if value is None else float(value) for value in array.to_pylist()]
    np.testing.assert_array_equal(decode(a=array).X[:, 0], expected)
    np.testing.assert_array_equal(
        decode(a=array.dictionary_encode() if kind == pa.int64() else array).X[:, 0], expected
    )


def test_nan_and_infinities_are_refused_and_null_is_missing():
    assert refused([1.0, math.nan, None, math.inf, -math.inf]) == [(i, "not_finite") for i in (1, 3, 4)]


@pytest.mark.parametrize(
    "values",
    [["1", "x"], [[1], []], [{"b": 1}] * 2, [b"1"] * 2, [date(2024, 5, 1)] * 2, pa.array([1, 2], pa.duration("ns"))],
)
def test_what_is_no_number_is_refused_row_by_row(values):
    array = pa.concat_arrays([pa.array(values), pa.nulls(1, pa.array(values).type)])
    assert refused(array) == [(0, "wrong_type"), (1, "wrong_type")]
    assert refused(pa.array(["1", None]).dictionary_encode()) == [(0, "wrong_type")]


def test_the_detail_names_value_or_type():
    assert "field 'a' is 'x'" in decode(a=["x"]).rejected[0].detail
    assert "field 'a' is a value of type list<item: int64>" in decode(a=[[1]]).rejected[0].detail


def test_columns_that_are_not_there_are_missing_and_a_target_must_be_there():
    decoded = decode(("a", "z"), (), a=[1.0, 2.0])
    assert np.isnan(decoded.X[:, 1]).all()
    with pytest.raises(SourceError, match=r"a\.parquet has no column 'y'.*'a', 'b'"):
        decode(targets=("y",), a=[1.0], b=[1.0])
    with pytest.raises(SourceError, match="no column 'l'"):
        decode(wanted={"label": "l"}, a=[1.0])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo", "Nowhere/Else"])
def test_times_of_any_unit_and_zone_are_seconds_since_1970(unit, zone):
    ticks = pa.array([1714566600 * 10 ** {"s": 0, "ms": 3, "us": 6, "ns": 9}[unit], None, -1])
    decoded = decode(a=ticks.cast(pa.timestamp(unit, zone)), wanted={"timestamps": frozenset("a")})
    least = {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    np.testing.assert_array_equal(decoded.X[:, 0], [1714566600, math.nan, -1 + (1 - least) if unit != "s" else -1])


def test_dates_texts_and_numbers_are_times_too():
    for array in (
        pa.array([date(2024, 5, 1), None]),
        pa.array([date(2024, 5, 1), None], pa.date64()),
        pa.array(["2024-05-01", None]),
        pa.array(["2024-05-01", None]).dictionary_encode(),
        pa.array([1714521600, None]),
        pa.array([Decimal(1714521600), None]),
    ):
        decoded = decode(a=array, wanted={"timestamps": frozenset("a")})
        np.testing.assert_array_equal(decoded.X[:, 0], [1714521600, math.nan])


def test_what_is_no_time_is_refused_row_by_row():
    assert refused(["2024-05-01", "May", "1714521600", None], timestamps=frozenset("a")) == [
        (1, "wrong_type"),
        (2, "wrong_type"),
    ]
    assert refused([True, None], timestamps=frozenset("a")) == [(0, "wrong_type")]


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (pa.array(["a", "", None, "é"]), ["a", None, None, "é"]),
        (pa.array(["a", None], pa.large_string()), ["a", None]),
        (pa.array(["a", None], pa.string_view()), ["a", None]),
        (pa.array(["a", None, "b", "a"]).dictionary_encode(), ["a", None, "b", "a"]),
        (pa.array([True, None, False]), ["true", None, "false"]),
        (pa.array([7, None]), ["7", None]),
        (pa.array([7.0, None, 0.1]), ["7", None, "0.1"]),
        (pa.array([0.5, None], pa.float16()), ["0.5", None]),
        (pa.array([Decimal("7.00"), None, Decimal("0.10")]), ["7", None, "0.1"]),
        (pa.nulls(2), [None, None]),
        (pa.nulls(2, pa.string()), [None, None]),
    ],
)
def test_texts(array, texts):
    decoded = decode(("a",), a=array, l=array, wanted={"label": "l", "categorical": frozenset("a")})
    assert decoded.texts == {0: texts}
    assert decoded.labels == texts
    assert decoded.rejected == []


def test_what_is_no_text_is_refused_row_by_row():
    texts = {"categorical": frozenset("a")}
    assert refused(["a", "x" * 257, None], **texts) == [(1, "out_of_range")]
    assert refused([1.0, math.nan], **texts) == [(1, "not_finite")]
    assert refused([[1], None], **texts) == [(0, "wrong_type")]
    assert refused([date(2024, 5, 1), None], **texts) == [(0, "wrong_type")]


def test_text_that_is_not_utf8_whatever_the_file_says_is_refused():
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    for wanted in ({"categorical": frozenset("a")}, {"timestamps": frozenset("a")}, {}):
        batch = batch_of(a=broken)
        found = decoder("arrow").decode(batch, Wanted(("a",), **wanted))
        assert found.rejected[-1][:2] == (1, "wrong_type")
        assert json.loads(batch.record(1)) == {"a": "a value of type string"}


def test_events_with_some_of_their_targets_and_bad_weights_are_refused():
    decoded = decode(
        (), ("y", "z"), wanted={"weight": "w"}, y=[1, 1, None, 1], z=[1, None, None, 1], w=[None, 1, 2, -1]
    )
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(1, "partial_target"), (3, "out_of_range")]
    assert decoded.weights.tolist() == [1, 2]


# --- names, records and late columns --------------------------------------------------------------------------------


def test_names_gives_raw_values():
    batch = batch_of(a=[1, None], b=["x", "y"], t=pa.array([1, 2], pa.timestamp("ns", "Nowhere/Else")), c=[[1], None])
    first, second = (decoder("arrow").names(batch, i) for i in range(2))
    assert (first["a"], first["b"], first["t"]) == (1, "x", np.datetime64(1, "ns"))
    assert repr(first["c"]) == "a value of type list<item: int64>"
    assert (second["a"], second["c"]) == (None, None)


def test_a_record_of_any_types_can_become_a_letter():
    moment = datetime(2024, 5, 1, tzinfo=UTC)
    batch = batch_of(
        a=[moment], n=pa.array([1], pa.timestamp("ns")), z=pa.array([5], pa.timestamp("s", "Nowhere/Else")), b=[b"x"]
    )
    record = json.loads(batch.record(0))
    assert record["a"].startswith("2024-05-01")
    assert record["z"] == 5


@pytest.mark.parametrize("n", [0, 3, 500])
def test_reading_stops_before_the_first_value_of_a_new_column(n):
    late = [None] * n + [7, 8]
    columns = {"a": [1.0] * (n + 2), "late": late, "never": pa.nulls(n + 2), "skip": ["x"] * (n + 2)}
    decoded = decode(ignore={"skip"}, **columns)
    assert decoded.first_new == (n, {"late": 7})
    assert decoded.rows.tolist() == list(range(n))
    assert decode(**columns).first_new is None


def test_a_refused_row_brings_no_column():
    decoded = decode(a=["x", None, None], late=["p", "q", None], ignore=())
    assert decoded.first_new is None
    assert [bad.index for bad in decoded.rejected] == [0, 1]
    assert "'late' is 'q'" in decoded.rejected[1].detail
    again = decode(a=["x", None, None], late=["p", "q", None], ignore=(), wanted={"categorical": frozenset({"late"})})
    assert again.first_new == (1, {"late": "q"})


def test_columns_become_arrays_without_pandas():
    """Arrow's own way loads it where it is installed, amid the first batch; so does making an array of a list."""
    program = """
import sys
import numpy as np, pyarrow as pa
from pyarrow import csv
from streammoe.ports import Batch
from streammoe.pipeline.decoders import Wanted, decoder

wanted = Wanted(("a", "b", "c"), ("y",), categorical=frozenset("b"), timestamps=frozenset("c"))
lines = [b"1,p,2020-01-01T00:00:00,1\\n", b",,,2\\n"]
block, ends = b"".join(lines), np.cumsum([len(line) for line in lines])
table = csv.read_csv(pa.BufferReader(block), read_options=csv.ReadOptions(column_names=list("abcy"))).to_batches()[0]
for batch in (
    Batch(b"", np.empty(0, np.int64), "arrow", None, "", lambda i: {}, {}, table=table),
    Batch(block, ends, "csv", tuple("abcy"), "", lambda i: {}, {}),
):
    decoded = decoder(batch.format).decode(batch, wanted)
    assert decoded.Y.tolist() == [[1.0], [2.0]], decoded
print(table.schema.field("c").type, "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "timestamp[s] False\n"
