"""Csv with other delimiters and decimals: both paths agree, and it says what usual csv says."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import InvalidEvent
from streammoe.pipeline.dead_letters import DeadLetterFile, read_letter
from streammoe.pipeline.decoders import Wanted, decoder, to_row
from streammoe.pipeline.decoders.values import CommaText, label, number, seconds
from streammoe.ports import DECIMALS, DELIMITERS, DeadLetter
from tests.property.test_decoders import HEADER, assert_same, batch_of, cells, exactly, mutated, numbers, times

WANTED = [
    Wanted(("a", "b"), ("y",)),
    Wanted(("a", "b", "t"), ("y",), categorical=frozenset({"b"}), timestamps=frozenset({"t"})),
    Wanted(("a",), label="y", weight="b"),
]
DIALECTS = [(delimiter, decimal) for delimiter in DELIMITERS for decimal in DECIMALS if delimiter != decimal]
dialects = st.sampled_from(DIALECTS)
commas = st.sampled_from(["1,5", "-,5", "+2,", "1,5e3", "1.5", "1.000,5", "1,0,0", " 1,5", '"1,5"', "-1,5;2", "1\t2"])


@settings(deadline=None)
@given(dialects, st.sampled_from(WANTED), st.data())
def test_blocks_decode_like_their_records(dialect, wanted, data):
    delimiter, decimal = dialect
    cell = st.one_of(cells, commas, times, numbers.map(lambda text: text.replace(".", decimal)))
    rows = st.lists(cell, min_size=4, max_size=4).map(lambda row: (delimiter.join(row) + "\n").encode())
    records = data.draw(st.lists(mutated(rows), min_size=1, max_size=6))
    batch = replace(batch_of(records, "csv"), delimiter=delimiter, decimal=decimal)
    assert_same(decoder("csv").decode(batch, wanted), exactly(batch, wanted))


@pytest.mark.parametrize(("delimiter", "decimal"), DIALECTS)
@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(numbers | times, min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_same_table_is_read_from_every_dialect(delimiter, decimal, rows):
    rows = [[cell for cell in row if not re.search(r'[,;|\t"\r\n]', cell)] for row in rows]
    rows = [row for row in rows if len(row) == 4]
    usual = batch_of([(",".join(row) + "\n").encode() for row in rows], "csv")
    other = [[re.sub(r"^([^:]*)\.([^:]*)$", rf"\1{decimal}\2", cell) for cell in row] for row in rows]
    written = batch_of([(delimiter.join(row) + "\n").encode() for row in other], "csv")
    wanted = Wanted(("a", "b", "t"), ("y",), timestamps=frozenset({"t"}))
    one = decoder("csv").decode(usual, wanted)
    two = decoder("csv").decode(replace(written, delimiter=delimiter, decimal=decimal), wanted)
    assert one.rows.tolist() == two.rows.tolist()
    for a, b in ((one.X, two.X), (one.Y, two.Y)):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("cell", "read"), [("1,5", 1.5), (" -,5e1", -5.0), ("7", 7.0), ("1.5", None), ("1.000,5", None), ("1,0,0", None)]
)
def test_a_point_is_no_decimal_mark_where_the_comma_is(cell, read):
    if read is None:
        with pytest.raises(InvalidEvent) as caught:
            number("a", CommaText(cell), text=True)
        assert caught.value.reason == "wrong_type"
    else:
        assert number("a", CommaText(cell), text=True) == seconds("a", CommaText(cell), text=True) == read
    assert label("a", CommaText(cell), text=True).__class__ is str


@pytest.mark.parametrize(("delimiter", "decimal"), DIALECTS)
def test_a_dead_letter_says_how_it_is_read(tmp_path, delimiter, decimal):
    letter = DeadLetter({"offset": 1}, "decode", "wrong_type", "…", b"x", "csv", HEADER, "run", 3, delimiter, decimal)
    file = DeadLetterFile(tmp_path / "letters")
    file.write([letter])
    file.flush()
    file.close()
    line = (tmp_path / "letters").read_bytes()
    assert read_letter(line) == letter
    for name in ("delimiter", "decimal"):
        assert read_letter(json.dumps({**json.loads(line), name: "x"}).encode()) is None


def test_a_cell_keeps_its_own_text_in_messages_and_rows():
    row = to_row({"a": CommaText("1,5"), "y": CommaText("2,0")}, Wanted(("a",), ("y",)), text=True)
    assert (row.x, row.y) == ([1.5], [2.0])
