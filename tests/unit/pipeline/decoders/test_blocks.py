"""What is special to blocks of each format; that their values equal the exact path's is a property (tests/property)."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from streammoe.errors import InvalidEvent, SourceError
from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.ports import Batch

MARK = b"\xef\xbb\xbf"


def csv_batch(*records, columns=("a", "b", "y")):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    return Batch(b"".join(records), ends, "csv", columns, "events.csv", lambda i: {"offset": i}, {})


def jsonl_batch(*records):
    return replace(csv_batch(*records, columns=None), format="jsonl")


def arrow_batch(**columns):
    table = pa.record_batch(columns)
    return Batch(b"", np.empty(0, np.int64), "arrow", None, "a.parquet", lambda i: {"row": i}, {}, table=table)


def decode(batch, columns=("a", "b"), targets=("y",), ignore=None, **wanted):
    return decoder(batch.format).decode(batch, Wanted(columns, targets, **wanted), ignore)


def rejected(batch, *arguments, **wanted):
    return [(bad.index, bad.reason) for bad in decode(batch, *arguments, **wanted).rejected]


# --- all of them ----------------------------------------------------------------------------------------------------

SAME = {
    "csv": csv_batch(
        b"1,red,2024-05-01,cat,2\n",
        b',"",,,\r\n',
        b'2,"say ""hi""",1.5,dog,0',
        columns=("a", "c", "t", "y", "w"),
    ),
    "jsonl": jsonl_batch(
        b'{"a":1,"c":"red","t":"2024-05-01","y":"cat","w":2}\n',
        b'{"c":"","t":null}\r\n',
        b'{"a":2,"c":"say \\"hi\\"","t":1.5,"y":"dog","w":0}',
    ),
    "arrow": arrow_batch(
        a=pa.array([1, None, 2], pa.uint8()),
        c=pa.array(["red", "", 'say "hi"']).dictionary_encode(),
        t=pa.array([1714521600_000, None, 1500], pa.timestamp("ms", "Asia/Tokyo")),
        y=pa.array(["cat", None, "dog"], pa.string_view()),
        w=[2.0, None, 0.0],
    ),
}


@pytest.mark.parametrize("format", SAME)
def test_features_labels_categories_times_and_weights(format):
    kinds = {"label": "y", "weight": "w", "categorical": frozenset("c"), "timestamps": frozenset("t")}
    decoded = decode(SAME[format], ("c", "a", "t", "not there"), (), **kinds)
    nan = math.nan
    np.testing.assert_array_equal(decoded.X, [[nan, 1, 1714521600, nan], [nan, nan, nan, nan], [nan, 2, 1.5, nan]])
    assert decoded.texts == {0: ["red", None, 'say "hi"']}
    assert decoded.labels == ["cat", None, "dog"]
    assert decoded.weights.tolist() == [2, 1, 0]
    assert decoded.Y.shape == (3, 0)
    assert decoded.X.flags.c_contiguous
    assert (decoded.rows.tolist(), decoded.rejected) == ([0, 1, 2], [])


@pytest.mark.parametrize(
    "batch", [csv_batch(b"1,2,3\n"), jsonl_batch(b'{"a":1,"b":2,"y":3}'), arrow_batch(a=[1], b=[2], y=[3])], ids=SAME
)
def test_a_name_may_be_feature_and_target(batch):
    decoded = decode(batch, ("a", "y", "a"), ("y", "a"))
    assert (decoded.X.tolist(), decoded.Y.tolist()) == ([[1, 3, 1]], [[3, 1]])


@pytest.mark.parametrize("batch", [csv_batch(b"1,2,3\n"), arrow_batch(a=[1.0], b=[1.0], y=[1.0])], ids=["csv", "arrow"])
def test_target_and_label_have_to_be_among_the_columns_and_the_weight_may_be(batch):
    assert decode(batch, weight="w").weights.tolist() == [1]
    for wanted in ({"targets": ("price",)}, {"targets": (), "label": "l"}):
        with pytest.raises(SourceError):
            decode(batch, **wanted)


@pytest.mark.parametrize("n", [0, 3, 500])
def test_reading_stops_before_the_first_value_of_a_late_column(n):
    header = ("a", "y", "late", "later", "skip")
    for batch, first in (
        (csv_batch(*[b"1,2,,,x\n"] * n, b"1,2,,7,\n", b"1,2,3,4,x\n", b"bad", columns=header), {"later": "7"}),
        (jsonl_batch(*[b'{"y":2,"late":null,"skip":[{}]}\n'] * n, b'{"late":7,"y":0}\n', b"bad"), {"late": 7}),
        (arrow_batch(a=[1.0] * (n + 2), y=[1] * (n + 2), late=[None] * n + [7, 8], skip=["x"] * (n + 2)), {"late": 7}),
    ):
        decoded = decode(batch, ("a",), ignore={"skip", 'odd "name"'})
        assert decoded.first_new == (n, first)
        assert decoded.rows.tolist() == list(range(n))
        assert decoded.rejected == []
        assert decode(batch, ("a",)).first_new is None, "without permission to grow"


def test_a_rejected_record_brings_no_column():
    rows = [("x", 2, 3), (1, 2, "abc"), (1, 2, None)]
    lines = [b"%s\n" % ",".join("" if value is None else str(value) for value in row).encode() for row in rows]
    objects = [json.dumps(dict(zip(("a", "y", "late"), row, strict=True))).encode() + b"\n" for row in rows]
    for batch in (csv_batch(*lines, columns=("a", "y", "late")), jsonl_batch(*objects)):
        assert decode(batch, ("a",), ignore=()).first_new is None
        assert rejected(batch, ("a",), ignore=()) == [(0, "wrong_type"), (1, "wrong_type")]
        late = decode(batch, ("a",), ignore=(), categorical=frozenset({"late"}))
        assert late.first_new == (1, {"late": "abc"})
    batch = arrow_batch(a=["x", None, None], late=["p", "q", None])
    assert rejected(batch, ("a",), (), ()) == [(0, "wrong_type"), (1, "wrong_type")]
    assert decode(batch, ("a",), (), (), categorical=frozenset({"late"})).first_new == (1, {"late": "q"})


def test_events_that_are_not_learned_bring_no_column_but_are_rejected_for_one_that_cannot_be_read():
    records = [b'{"late":1}\n', b'{"late":1,"y":null,"l":"x"}\n', b'{"late":1,"y":1,"l":"x","w":0}\n', b'{"late":[]}\n']
    records += [b'{"late":1,"y":1}\n', b'{"late":2,"y":1,"l":"x","w":2}\n']
    decoded = decode(jsonl_batch(*records), ignore=(), label="l", weight="w")
    assert decoded.first_new == (5, {"late": 2})
    assert decoded.rows.tolist() == [0, 1, 2, 4]
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(3, "wrong_type")]


# --- csv ------------------------------------------------------------------------------------------------------------


def test_a_csv_record_that_cannot_be_taken_apart_is_malformed():
    for record in (b"1,2\n", b"1,2,3,\n", b"\xff,2,3\n", b'1,"2,3\n', b'"1"2,3,4\n', b"1\r2,3,4\n", MARK + b"1,2,3\n"):
        assert rejected(csv_batch(b"1,2,3\n", record, b"4,5,6\n")) == [(1, "malformed")], record
    assert decode(csv_batch(b'1,"two, ""2""\nlines",3\n'), ("a",)).X.tolist() == [[1]]


def test_rare_bad_records_are_found_among_many():
    records = [b"%d,2,3\n" % i for i in range(3000)]
    records[700], records[2999] = b"z" * 500 + b",2,3\n", b"1,2\n"
    decoded = decode(csv_batch(*records))
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(700, "wrong_type"), (2999, "malformed")]
    assert len(decoded.rejected[0].detail) < 200
    assert decoded.X[:, 0].tolist() == decoded.rows.tolist()
    assert len(decoded.rows) == 2998


def test_booleans_of_csv_are_numbers_whatever_came_first():
    for first in (b"true", b"", b"1"):
        cells = [first, b"TRUE", b"false", b"False", b"tRuE", b""] * 100
        decoded = decode(csv_batch(*(b"%s,0,1\n" % cell for cell in cells)))
        expected = [math.nan if cell == b"" else float(cell.lower() in {b"true", b"1"}) for cell in cells]
        np.testing.assert_array_equal(decoded.X[:, 0], expected)


def test_two_records_in_one_piece_never_pass_for_two_pieces():
    """Readers of whole blocks count two rows here; only the records' own ends show that both pieces are broken."""
    assert rejected(csv_batch(b"1,2,3\n4,5,6\n", b"")) == [(0, "malformed"), (1, "malformed")]


def test_no_category_takes_up_a_byte_order_mark():
    """Files put together have it in the middle of the stream."""
    for records in ([MARK + b"red,1\n"], [b"red,1\n", MARK + b"red,2\n", b"red,3\n"]):
        decoded = decode(csv_batch(*records, columns=("c", "y")), ("c",), categorical=frozenset("c"))
        assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(len(records) // 2, "malformed")]
        assert decoded.texts == {0: ["red"] * (len(records) - 1)}


# --- JSON Lines -----------------------------------------------------------------------------------------------------


def test_a_line_that_is_no_object_is_malformed():
    no_objects = [b"nonsense", b"[1]", b"null", b'{"a":1}{"a":2}', b'{"a":1', b'{"c":"\xff"}', b'{"\xff":1}', b"\0"]
    for line in [*no_objects, *[b'{"a":%s}' % value for value in (b"01", b"+1", b"1.", b"")]]:
        assert rejected(jsonl_batch(b'{"a":1}\n', line + b"\n", b'{"a":2}\n')) == [(1, "malformed")], line
    # A parser of whole blocks reads three objects in these three lines.
    assert rejected(jsonl_batch(b'{"a":1}{"a":2}\n', b'{"a":\n', b"3}\n")) == [(i, "malformed") for i in range(3)]


def test_of_a_repeated_key_the_last_value_counts():
    assert decode(jsonl_batch(b'{"a":1,"a":2}\n', b'{"a":"x","a":3}\n')).X[:, 0].tolist() == [2, 3]
    assert rejected(jsonl_batch(b'{"a":1,"a":"x"}\n')) == [(0, "wrong_type")]


def test_what_is_not_asked_for_may_be_any_json_that_python_writes():
    others = [b'"c":NaN', b'"c":1e999', b'"c":"\\ud800"', '"ü":"ß"'.encode()]
    decoded = decode(jsonl_batch(*(b'{"a":%d,%s}\n' % (i, other) for i, other in enumerate(others))))
    assert decoded.X[:, 0].tolist() == [0, 1, 2, 3]


def test_deep_nesting_is_malformed_and_many_brackets_beside_each_other_are_not():
    for depth in (150, 900, 100_000):
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
            deep = b'{"c":' + opening * depth + b"1" + closing * depth + b"}\n"
            batch = jsonl_batch(b'{"a":1}\n', deep, b'{"c":' + opening * depth + b"\n")
            assert rejected(batch) == [(1, "malformed"), (2, "malformed")]
    flat = b'{"a":1,"c":[' + b"[],{}," * 300 + b'0],"d":"' + b"[{" * 300 + b'\\""}\n'
    assert decode(jsonl_batch(flat)).X[0, 0] == 1


def test_any_name_can_be_a_feature():
    for name in ("é", 'say "a"', "back\\slash", "", "tab\t"):
        assert decode(jsonl_batch(json.dumps({name: 7}).encode()), (name,), ()).X.tolist() == [[7]]


def test_many_different_fields_that_are_null_are_no_columns():
    decoded = decode(jsonl_batch(*(b'{"a":%d,"n%d":null}\n' % (i, i) for i in range(200))), ignore=())
    assert decoded.X[:, 0].tolist() == list(range(200))
    assert decoded.first_new is None


# --- Arrow ----------------------------------------------------------------------------------------------------------


def test_columns_of_every_type_of_number_are_read():
    for values, kind in (
        ([1, None, 3], pa.int8()),
        ([2**64 - 1, None, 0], pa.uint64()),
        ([0.5, None, -1.5], pa.float16()),
        ([True, None, False], pa.bool_()),
        ([Decimal("0.10"), None, Decimal("-12345678901234567.89")], pa.decimal128(20, 2)),
        ([Decimal("1E+30"), None, Decimal("1E+20")], pa.decimal256(50, 2)),
        ([None, None, None], pa.null()),
    ):
        array = pa.array(values, kind)
        expected = [math.nan if value is None else float(value) for value in array.to_pylist()]
        np.testing.assert_array_equal(decode(arrow_batch(a=array), ("a",), ()).X[:, 0], expected)


def test_times_of_any_unit_and_zone_are_seconds_since_1970():
    for unit, power in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9)):
        for zone in (None, "UTC", "Nowhere/Else"):
            ticks = pa.array([1714566600 * 10**power, None, -1]).cast(pa.timestamp(unit, zone))
            decoded = decode(arrow_batch(a=ticks), ("a",), (), timestamps=frozenset("a"))
            before = -1 + (1 - 10.0**-power) if power else -1
            np.testing.assert_allclose(decoded.X[:, 0], [1714566600, math.nan, before], rtol=0, atol=1e-15)


def test_dates_of_any_type_are_times_too():
    """Both paths read them by the same function, so no comparison of the two shows a wrong unit."""
    for array in (pa.array([date(2024, 5, 1), None], kind) for kind in (pa.date32(), pa.date64())):
        decoded = decode(arrow_batch(a=array), ("a",), (), timestamps=frozenset("a"))
        np.testing.assert_array_equal(decoded.X[:, 0], [1714521600, math.nan])


def test_text_that_is_not_utf8_whatever_the_file_says_is_rejected():
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    for wanted in ({"categorical": frozenset("a")}, {"timestamps": frozenset("a")}, {}):
        batch = arrow_batch(a=broken)
        assert rejected(batch, ("a",), (), **wanted)[-1] == (1, "wrong_type")
        assert json.loads(batch.record(1)) == {"a": "a value of type string"}


def test_a_record_of_any_types_can_become_a_letter():
    moment = datetime(2024, 5, 1, tzinfo=UTC)
    nowhere = pa.array([5], pa.timestamp("s", "Nowhere/Else"))
    batch = arrow_batch(a=[moment], n=pa.array([1], pa.timestamp("ns")), z=nowhere, b=[b"x"])
    record = json.loads(batch.record(0))
    assert record["a"].startswith("2024-05-01")
    assert record["z"] == 5


def test_columns_become_arrays_without_pandas():
    """Arrow's own way loads it where it is installed, amid the first batch; so does making an array of a list."""
    program = """
import sys
import numpy as np, pyarrow as pa
from pyarrow import csv

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


# --- one record -----------------------------------------------------------------------------------------------------


def test_names_gives_raw_values():
    tick = pa.array([1], pa.timestamp("ns", "Nowhere/Else"))
    raw = decoder("arrow").names(arrow_batch(a=[1], b=["x"], t=tick, c=[[1]]), 0)
    assert (raw["a"], raw["b"], raw["t"]) == (1, "x", np.datetime64(1, "ns"))
    assert repr(raw["c"]) == "a value of type list<item: int64>"
    assert decoder("csv").names(csv_batch(b'1,"x ""y""",\r\n'), 0) == {"a": "1", "b": 'x "y"', "y": ""}
    found = decoder("jsonl").names(jsonl_batch(b'{"a":3,"c":"x","d":[1.5,null]}\n'), 0)
    assert found == {"a": 3, "c": "x", "d": [1.5, None]}
    for batch in (csv_batch(b"1\n"), jsonl_batch(b"[]\n")):
        with pytest.raises(InvalidEvent) as caught:
            decoder(batch.format).names(batch, 0)
        assert caught.value.reason == "malformed"
