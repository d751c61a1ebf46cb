"""What is special to blocks of each format.

That their values equal the exact path's is a property (tests/property), and what one broken record becomes is in the
tables of tests/unit/bad_input.md.
"""

import math
import subprocess
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from streammoe.pipeline.decoders import NewNames, decoder
from streammoe.ports import Batch
from tests.batches import roles_of


def csv_batch(*records, columns=("a", "b", "y")):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    return Batch(b"".join(records), ends, "csv", columns, "", (), {})


def jsonl_batch(*records):
    return replace(csv_batch(*records, columns=None), format="jsonl")


def arrow_batch(**columns):
    return Batch(b"", np.empty(0, np.int64), "arrow", None, "", (), {}, table=pa.record_batch(columns))


def decode(batch, columns=("a", "b"), targets=("y",), ignore=None, **wanted):
    names = NewNames() if ignore is None else NewNames(frozenset(ignore), late=True)
    return decoder(batch.format).decode(batch, roles_of(columns, targets, **wanted), names)


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
    records = [b'{"late":1}\n', b'{"late":1,"y":null}\n', b'{"late":1,"y":1,"w":0}\n', b'{"late":[]}\n']
    records += [b'{"y":1}\n', b'{"late":2,"y":1,"w":2}\n']
    for label in (None, "y"):
        decoded = decode(jsonl_batch(*records), ignore=(), label=label, weight="w")
        assert decoded.first_new == (5, {"late": 2})
        assert decoded.rows.tolist() == [0, 1, 2, 4]
        assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(3, "wrong_type")]


@pytest.mark.parametrize("record", [b'1,"x" ,3\n', b'1,"x" y,3\n'])
def test_after_a_closing_quote_the_cell_ends(record):
    decoded = decode(csv_batch(b'0,"say ""hi""",3\n', record), categorical=frozenset("b"))
    assert decoded.texts == {1: ['say "hi"']}, "two quotes in a quoted cell are one"
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(1, "malformed")]


@pytest.mark.process
def test_text_is_decoded_without_pandas_which_takes_a_quarter_of_a_second():
    program = (
        "import sys; from tests.unit.pipeline.decoders.test_blocks import *; "
        "decode(csv_batch(b'1,NA,3\\n', b'x,2,3\\n')); decode(jsonl_batch(b'{\"a\":\"NA\",\"b\":1}\\n')); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


# --- Arrow ----------------------------------------------------------------------------------------------------------


def test_columns_of_every_type_of_number_and_time_are_read():
    """Both ways read times by the same function, so no comparison of the two shows a wrong unit."""
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
        arrays.append(pa.array([1714521600 * 10**power, None]).cast(pa.timestamp(unit, "Europe/Zurich")))
    for array in arrays:
        decoded = decode(arrow_batch(a=array), ("a",), (), timestamps=frozenset("a"))
        np.testing.assert_array_equal(decoded.X[:, 0], [1714521600, math.nan])


@pytest.mark.parametrize("zero", [b"-0", b"-0 ", b"-0.0"])
def test_a_negative_zero_keeps_its_sign(zero):
    decoded = decode(csv_batch(b"1,%b,2\n" % zero, b"2,0,%b\n" % zero))
    assert np.signbit(np.column_stack([decoded.X, decoded.Y])).tolist() == [[False, True, False], [False, False, True]]
