"""Both paths of a decoder agree, and where a file was cut or resumed shows in nothing."""

import json
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import InvalidEvent
from streammoe.ports import Batch
from streammoe.runtime.decoders import Decoded, decoder, to_row
from streammoe_connectors.file import FileSource

COLUMNS, TARGETS, HEADER = ("a", "b"), ("y",), ("a", "t", "b", "y")

finite = st.floats(allow_nan=False, allow_infinity=False)
odd_numbers = st.sampled_from(
    [
        *("1.", ".5", ".", "-.5", "+1", "+-1", "-0", "00", "007", "-", "1;5", "0x10", "0x1p3", "1_0", "1d5", "1f", "١"),
        *("1e5", "1E+05", "1e", "e5", "1e+", "1e999", "-1e999", "1e-999", "0e999", "2.5e-324", "2.4e-324"),
        *("nan", "-NaN", "nan(1)", "inf", "+Infinity", "TRUE", "true", "", " ", " 1", "1 ", "\t1\t", "\v1", "\u00a01"),
        *("9007199254740993", "18446744073709551617", "123456789012345678901234567890.5", "1\0"),
        *("1.7976931348623158e308", "1.7976931348623159e308", "9" * 400, "1" + "0" * 308, "0." + "0" * 330 + "1"),
    ]
)
numbers = st.one_of(finite.map(repr), finite.map("{:.30e}".format), st.integers().map(str), odd_numbers)
junk = st.lists(
    st.sampled_from([b"\xff", b"\xef\xbb\xbf", "é".encode(), b"\\", b"\\ud800", b"NaN", b"[", b"[" * 150, b"null"])
    | st.sampled_from([bytes([c]) for c in b'"",,{}[]:.-+eE019 \t\r\n\r\n\0\x0c']),
    max_size=4,
)


@st.composite
def mutated(draw, records):
    """Records, most of them sound, the others with some bytes taken out and others put in."""
    record = draw(records)
    if draw(st.integers(0, 3)):
        return record
    at = draw(st.integers(0, len(record)))
    return record[:at] + b"".join(draw(junk)) + record[at + draw(st.integers(0, 3)) :]


cells = st.one_of(
    numbers, numbers.map('"{}"'.format), st.sampled_from(['""', '"a""b"', '"a,b"', '"a\nb"', 'a"b', '"a"b'])
)
csv_records = mutated(st.lists(cells, min_size=4, max_size=4).map(lambda row: (",".join(row) + "\n").encode()))
json_values = st.one_of(
    finite | st.integers() | st.booleans() | st.none() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    st.sampled_from([float("nan"), float("inf"), 10**308, 10**309, -(2**64), {"a": [{}]}]),
)
json_objects = st.dictionaries(st.sampled_from(["a", "b", "y", "c", "é", '"']), json_values).map(json.dumps)
json_numbers = st.builds('{{"a": {}, "c": {}, "a":{}, "y":0}}'.format, numbers, numbers, numbers)
json_records = mutated((json_objects | json_numbers).map(lambda text: (text + "\n").encode()))


def batch_of(records, format):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    columns = HEADER if format == "csv" else None
    return Batch(b"".join(records), ends, format, columns, "here", lambda i: {"offset": i}, {})


def exactly(batch):
    """What the exact path makes of each record."""
    rows, values, rejected = [], [], []
    for i in range(len(batch)):
        try:
            x, y = to_row(decoder(batch.format).names(batch, i), COLUMNS, TARGETS, text=batch.format == "csv")
            rows.append(i)
            values.append(x + y)
        except InvalidEvent as error:
            rejected.append((i, error.reason, str(error)))
    values = np.array(values).reshape(-1, 3)
    return Decoded(np.array(rows, np.int64), values[:, :2], values[:, 2:], rejected)


def assert_same(one, other):
    assert one.rejected == other.rejected
    assert one.rows.tolist() == other.rows.tolist()
    for a, b in ((one.X, other.X), (one.Y, other.Y)):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))


@settings(deadline=None)
@given(st.lists(csv_records, min_size=1, max_size=6))
def test_csv_blocks_decode_like_their_records(records):
    batch = batch_of(records, "csv")
    assert_same(decoder("csv").decode(batch, COLUMNS, TARGETS), exactly(batch))


@settings(deadline=None)
@given(st.lists(json_records, min_size=1, max_size=6))
def test_jsonl_blocks_decode_like_their_records(records):
    batch = batch_of(records, "jsonl")
    assert_same(decoder("jsonl").decode(batch, COLUMNS, TARGETS), exactly(batch))


@settings(deadline=None)
@given(st.lists(finite.map(repr) | numbers, min_size=1, max_size=8))
def test_one_number_a_record_agrees_without_company(texts):
    for text in texts:
        for name, record in (("csv", f"{text},,,\n"), ("jsonl", f'{{"a":{text}}}\n')):
            batch = batch_of([record.encode()], name)
            assert_same(decoder(name).decode(batch, COLUMNS, TARGETS), exactly(batch))


# --- cutting --------------------------------------------------------------------------------------------------------

lines = st.lists(
    st.sampled_from(
        [b"1,2", b'"a', b'b"', b'"a\nb",1', b'""', b"", b"  \t", b"\r", b"x" * 90, b'"' + b"z" * 70, b"\xc3\xa9"]
    ),
    max_size=40,
)


def write(folder, lines, format, line_end, closed):
    path = Path(folder) / f"data.{format}"
    body = line_end.join(lines) + (line_end if closed else b"")
    path.write_bytes((b"a,b\n" if format == "csv" else b"") + body)
    return path


def small(path, block_bytes, max_record_bytes):
    """A source with blocks smaller than the settings allow, so that small files are cut often."""
    sound = FileSource.Settings(kind="file", path=str(path))
    return FileSource(sound.model_copy(update={"block_bytes": block_bytes, "max_record_bytes": max_record_bytes}))


def read(source, position=None):
    """Everything from `position` on: records with their places, and the positions between."""
    source.seek(position)
    records, positions = [], []
    while not source.finished:
        batch = source.poll(0)
        if batch is not None:
            assert len(batch) > 0
            starts = [0, *batch.ends.tolist()]
            raw = [batch.block[start:stop] for start, stop in pairwise(starts)]
            assert b"".join(raw) == batch.block
            records += [(batch.place(i)["offset"], record) for i, record in enumerate(raw)]
            positions.append((len(records), json.loads(json.dumps(batch.end))))
    source.close()
    return records, positions


@settings(deadline=None)
@given(
    lines=lines,
    format=st.sampled_from(["csv", "jsonl"]),
    line_end=st.sampled_from([b"\n", b"\r\n"]),
    closed=st.booleans(),
    limit=st.sampled_from([4, 16, 64, 1 << 20]),
    block_bytes=st.integers(1, 200),
)
def test_records_depend_on_no_cut_and_every_position_resumes(lines, format, line_end, closed, limit, block_bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, lines, format, line_end, closed)
        whole, _ = read(small(path, 1 << 20, limit))
        cut, positions = read(small(path, block_bytes, limit))
        assert cut == whole
        content = path.read_bytes()
        for offset, record in whole:
            assert content[offset : offset + len(record)] == record
            assert len(record) <= limit
        for count, position in positions[:5] + positions[-2:]:
            assert read(small(path, 1 << 20, limit), position)[0] == whole[count:]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
@settings(deadline=None)
@given(lines=lines)
def test_nothing_but_blank_lines_and_the_header_gets_lost(format, lines):
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, lines, format, b"\n", closed=True)
        records, _ = read(small(path, 50, 128))  # longer than any line
        kept = b"".join(record for _, record in records)
        content = path.read_bytes().removeprefix(b"a,b\n" if format == "csv" else b"")
        assert kept.translate(None, b" \t\r\n") == content.translate(None, b" \t\r\n")
