import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from streammoe.commands.produce.messages import Message, MessageConverter, literal
from streammoe.errors import ConfigError
from tests.unit.connectors.reading import read


@pytest.fixture
def batches(tmp_path):
    """The batches of a file with this content."""

    def batches(name, content):
        path = tmp_path / name
        if isinstance(content, pa.Table):
            pa.parquet.write_table(content, path)
        else:
            path.write_bytes(content)
        return read(path)

    return batches


def sent(batches, **arguments):
    messages = MessageConverter(**arguments)
    return [message for batch in batches for message in messages.from_batch(batch)], messages.troubles


def values(batches, **arguments):
    return [json.loads(message.value) for message in sent(batches, **arguments)[0]]


def test_a_csv_record_becomes_an_object_of_numbers_texts_and_what_is_there(batches):
    found = batches("a.csv", b'a,b,c,d\n1,2.5e3,"x, ""y""",\n-0.10,,007,TRUE\n')
    assert values(found) == [{"a": 1, "b": 2500.0, "c": 'x, "y"'}, {"a": -0.1, "c": "007", "d": True}]
    [message], _ = sent(batches("a.csv", b"a,b\n0.10000000000000000555,12345678901234567890\n"))
    assert message.value == b'{"a":0.10000000000000000555,"b":12345678901234567890}'  # with every digit


NUMBERS = {"+1": 1, ".5": 0.5, " 7 ": 7, "1E3": 1000.0, "1e999": float("inf"), "True": True}
TEXTS = ["00", "+1e999", "NaN", "1_0", "0x1", "2020-01-02", "-", "\u0661"]


def test_a_cell_is_a_number_if_it_looks_like_one():
    for cell, meant in [*NUMBERS.items(), *zip(TEXTS, TEXTS, strict=True)]:
        read = json.loads(msgspec.json.encode(literal(cell)))
        assert (read, isinstance(read, str)) == (meant, isinstance(meant, str)), cell


def test_lines_of_jsonl_and_raw_ones_of_csv_are_sent_as_they_are(batches):
    lines = [b'{"b": 1.0,  "a": 2}', b"no json", b'{"b": NaN}']
    assert sent(batches("a.jsonl", b"\n".join(lines) + b"\n")) == ([Message(line) for line in lines], {})
    found, _ = sent(batches("a.csv", b"a,b\r\n1,\r\n2,x\r\n"), form="raw")
    assert found == [Message(b"1,"), Message(b"2,x")]
    with pytest.raises(ConfigError):
        sent(batches("a.parquet", pa.table({"a": [1]})), form="raw")


KEYS = [
    ("a.csv", b"k,x\n7,1\ncar,2\n,3\n", [b"7", b"car", None], [1]),
    (
        "a.jsonl",
        b'{"k": "\xc3\xa9"}\n{"k": null}\n{"k": [1, 2]}\n{\n',
        ["\u00e9".encode(), None, b"[1,2]", None],
        [1, 1],
    ),
    ("a.parquet", pa.table({"k": [1.5, None]}), [b"1.5", None], [1]),
]
TIMES = [
    ("a.csv", b't\n1970-01-01T00:00:01.5Z\n2.25\nsoon\n1969-12-31\n""\n', [1_500, 2_250, None, None, None], [3]),
    ("a.jsonl", b'{"t": "1970-01-02"}\n{"t": 3}\n', [86_400_000, 3_000], []),
    ("a.parquet", pa.table({"t": pa.array([1_250, None], pa.timestamp("ms"))}), [1_250, None], [1]),
]


def test_keys_are_the_text_of_their_field_and_timestamps_milliseconds(batches):
    for name, content, keys, counts in KEYS:
        found, troubles = sent(batches(name, content), key="k")
        assert ([message.key for message in found], list(troubles.values())) == (keys, counts), name
    for name, content, times, counts in TIMES:
        found, troubles = sent(batches(name, content), timestamp="t")
        assert ([message.timestamp for message in found], list(troubles.values())) == (times, counts), name


def test_a_record_with_an_extra_cell_is_sent_for_its_reader_to_reject_and_a_truncated_one_is_not(batches):
    found, troubles = sent(batches("a.csv", b"a,b\n1,2,3\n4,5\n\xff,6\n"), key="a")
    assert found == [Message(b"1,2,3"), Message(b'{"a":4,"b":5}', b"4"), Message(b"\xff,6")]
    assert list(troubles.values()) == [2]
    [batch] = batches("a.jsonl", b'{"a": 1}\n')
    messages = MessageConverter()
    found = [message for each in (batch, replace(batch, too_long=True), batch) for message in messages.from_batch(each)]
    assert found == [Message(b'{"a": 1}')] * 2
    assert (messages.records, messages.too_long) == (3, [2])


PARQUET = {
    "n": (pa.array([1, None]), 1, None),
    "f": (pa.array([0.1, np.nan]), 0.1, "nan"),
    "d": (pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)), 1.5, None),
    "c": (pa.array(["red", "red"]).dictionary_encode(), "red", "red"),
    "b": (pa.array([True, False]), True, False),
    "day": (pa.array([date(2024, 1, 2), None]), "2024-01-02", None),
    "ns": (pa.array([1_700_000_000_000_000_001, None], pa.timestamp("ns")), "2023-11-14 22:13:20.000000001Z", None),
    "many": (pa.array([[1, 2], None]), [1, 2], None),
}
"""By column two values, and what becomes of them. JSON has no number NaN; null would be taken for missing."""


def test_rows_of_parquet_become_objects(batches):
    noon = datetime(2024, 1, 2, 12, 0, 0, 250_000, UTC)
    columns = {name: column for name, (column, _, _) in PARQUET.items()}
    zoned = pa.array([noon, None], pa.timestamp("ms", "Europe/Paris"))
    first, second = values(batches("a.parquet", pa.table(columns | {"zoned": zoned})))
    assert datetime.fromisoformat(first.pop("zoned")) == noon
    assert first == {name: value for name, (_, value, _) in PARQUET.items()}
    assert second == {name: value for name, (_, _, value) in PARQUET.items() if value is not None}
