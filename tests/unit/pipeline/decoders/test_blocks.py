"""What is special to blocks of each format.

That their values equal the exact path's is a property (tests/property), and what one broken record becomes is in the
tables of docs/bad-input.md.
"""

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

from streammoe.errors import SourceError
from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.ports import Batch


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


def test_a_name_may_be_feature_and_target():
    for batch in (csv_batch(b"1,2,3\n"), jsonl_batch(b'{"a":1,"b":2,"y":3}'), arrow_batch(a=[1], b=[2], y=[3])):
        decoded = decode(batch, ("a", "y", "a"), ("y", "a"))
        assert (decoded.X.tolist(), decoded.Y.tolist()) == ([[1, 3, 1]], [[3, 1]])


@pytest.mark.parametrize("batch", [csv_batch(b"1,2,3\n"), arrow_batch(a=[1.0], b=[1.0], y=[1.0])], ids=["csv", "arrow"])
def test_target_and_label_have_to_be_among_the_columns_and_the_weight_may_be(batch):
    assert decode(batch, weight="w").weights.tolist() == [1]
    for wanted in ({"targets": ("price",)}, {"targets": (), "label": "l"}):
        with pytest.raises(SourceError):
            decode(batch, **wanted)


@pytest.mark.parametrize("n", [0, 500])
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


def test_events_that_are_not_learned_bring_no_column_but_are_rejected_for_one_that_cannot_be_read():
    records = [b'{"late":1}\n', b'{"late":1,"y":null,"l":"x"}\n', b'{"late":1,"y":1,"l":"x","w":0}\n', b'{"late":[]}\n']
    records += [b'{"late":1,"y":1}\n', b'{"late":2,"y":1,"l":"x","w":2}\n']
    decoded = decode(jsonl_batch(*records), ignore=(), label="l", weight="w")
    assert decoded.first_new == (5, {"late": 2})
    assert decoded.rows.tolist() == [0, 1, 2, 4]
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(3, "wrong_type")]


def test_rare_bad_records_are_found_among_many():
    records = [b"%d,2,3\n" % i for i in range(3000)]
    records[700], records[2999] = b"z" * 500 + b",2,3\n", b"1,2\n"
    decoded = decode(csv_batch(*records))
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(700, "wrong_type"), (2999, "malformed")]
    assert len(decoded.rejected[0].detail) < 200
    assert decoded.X[:, 0].tolist() == decoded.rows.tolist()
    assert len(decoded.rows) == 2998


def test_two_records_in_one_piece_never_pass_for_two_pieces():
    """Readers of whole blocks count two rows in them; only the records' own ends show which pieces are broken."""
    assert rejected(csv_batch(b"1,2,3\n4,5,6\n", b"")) == [(0, "malformed"), (1, "malformed")]
    pieces = jsonl_batch(b'{"a":1}{"a":2}\n', b'{"a":\n', b"3}\n")
    assert rejected(pieces) == [(i, "malformed") for i in range(3)]


# --- Arrow ----------------------------------------------------------------------------------------------------------


def test_columns_of_every_type_of_number_and_time_are_read():
    """Both paths read times by the same function, so no comparison of the two shows a wrong unit."""
    for values, kind in (
        ([2**64 - 1, None, 0], pa.uint64()),
        ([0.5, None, -1.5], pa.float16()),
        ([True, None, False], pa.bool_()),
        ([Decimal("0.10"), None, Decimal("-12345678901234567.89")], pa.decimal128(20, 2)),
        ([None, None, None], pa.null()),
    ):
        expected = [math.nan if value is None else float(value) for value in values]
        np.testing.assert_array_equal(decode(arrow_batch(a=pa.array(values, kind)), ("a",), ()).X[:, 0], expected)
    arrays = [pa.array([date(2024, 5, 1), None], kind) for kind in (pa.date32(), pa.date64())]
    for unit, power in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9)):
        ticks = pa.array([1714521600 * 10**power, None])
        arrays += [ticks.cast(pa.timestamp(unit, zone)) for zone in (None, "UTC", "Nowhere/Else")]
    for array in arrays:
        decoded = decode(arrow_batch(a=array), ("a",), (), timestamps=frozenset("a"))
        np.testing.assert_array_equal(decoded.X[:, 0], [1714521600, math.nan])


def test_text_that_is_not_utf8_whatever_the_file_says_is_rejected():
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())
    for wanted in ({"categorical": frozenset("a")}, {"timestamps": frozenset("a")}, {}):
        batch = arrow_batch(a=broken)
        assert rejected(batch, ("a",), (), **wanted)[-1] == (1, "wrong_type")
        assert json.loads(batch.record(1)) == {"a": "a value of type string"}


def test_a_record_of_any_types_can_become_a_letter():
    nowhere = pa.array([5], pa.timestamp("s", "Nowhere/Else"))
    batch = arrow_batch(a=[datetime(2024, 5, 1, tzinfo=UTC)], n=pa.array([1], pa.timestamp("ns")), z=nowhere, b=[b"x"])
    record = json.loads(batch.record(0))
    assert record["a"].startswith("2024-05-01")
    assert record["z"] == 5


@pytest.mark.slow
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
