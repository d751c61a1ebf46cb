"""The fast path of the decoders of text, next to the exact one."""

import numpy as np
import pytest

from streammoe.pipeline.decoders import FieldRoles, decoder
from streammoe.ports import Batch, Locations

ROLES = FieldRoles(("a", "b"), ("y",), weight="w")
CSV = ("a", "b", "other", "y", "w")
CSV_LINES = [
    "1.5,2,9,3,1",
    ",2e1,9,3,",
    "1,2,text,3,1",
    '"1",2,9,3,1',
    "true,2,9,3,1",
    "1,2,9,3",
    "x,2,9,3,1",
    "1,2,9,3,-1",
]
CSV_LINES += ["1,2,9,,1", "1e999,2,9,3,1", "+1,.5,9,007,1", "1,2,9,3,1\r", "1,2,9,3,1e7"]
JSON_LINES = [
    '{"a": 1.5, "b": 2, "y": 3, "w": 1}',
    '{"a": null, "b": 2e1, "y": 3, "w": null}',
    '{"a": 1,"b": 2, "y": 3, "w": 1}',
    '{"b": 1, "a": 2, "y": 3, "w": 1}',
    '{"a": 1, "b": 2, "y": 3}',
    '{"a": 1, "b": 2, "y": 3, "w": -1}',
    '{"a": 1, "b": 2, "y": null, "w": 1}',
    '{"a": NaN, "b": 2, "y": 3, "w": 1}',
    '{"a": 1e999, "b": 2, "y": 3, "w": 1}',
    '{"a": true, "b": "2", "y": 3, "w": 1}',
    '{"a": 1, "b": 2, "y": 3, "w": 1} {}',
    '{"a": 1, "b": 2, "y": 3, "w": 1, "z": 1}',
    '{"a": -0, "b": -0.0, "y": 3, "w": 1}',
]


def batch(lines, format, **others):
    """Return lines as a batch."""
    records = [line.encode() + b"\n" for line in lines]
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    columns = CSV if format == "csv" else None
    locations = Locations({}, {"offset": np.arange(len(ends))})
    return Batch(b"".join(records), ends, format, columns, "origin", locations, {}, **others)


def decoded(lines, format, roles=ROLES, **others):
    """Return what a decoder makes of lines, as values that compare bit by bit."""
    found = decoder(format).decode(batch(lines, format), roles, **others)
    arrays = (found.rows, found.X, found.Y, found.weights)
    return [each.tobytes() for each in arrays], found.texts, found.labels, found.rejected, found.first_new


@pytest.mark.parametrize(("format", "lines"), [("csv", CSV_LINES), ("jsonl", JSON_LINES)])
@pytest.mark.parametrize("others", [{}, {"ignore": {"other"}}, {"awaited": ["z"]}], ids=str)
def test_the_exact_path_says_the_same(monkeypatch, format, lines, others):
    orders = [[*lines[i:], *lines[:i]] for i in range(len(lines))] + [[lines[0], line, lines[0]] for line in lines]
    found = [decoded(order, format, **others) for order in orders]
    monkeypatch.setattr("streammoe.pipeline.decoders.csv.CsvDecoder._fill", lambda *_: False)
    monkeypatch.setattr("streammoe.pipeline.decoders.jsonl.is_for_parser", lambda *_, **__: False)
    assert found == [decoded(order, format, **others) for order in orders]
