"""Records that hold their event at some path, or several events."""

import json

import pytest
from pydantic import ValidationError

from streammoe.ports import Unreadable
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.formats.events import events_of
from tests.unit.connectors.kafka_records import batch_of, record, values_of
from tests.unit.connectors.reading import placed, read, records, source, through_json

A, B = b'{"a":1,"y":2}', b'{"a":3.50,"y":1e1}'
ENVELOPE = b'{"schema":{"fields":[{"x":"}"}]},"payload":{"before":null,"after":%b,"op":"u"}}'
OTHER = Unreadable("malformed", "for another reason", A)

HELD = {
    # record, path: events, or words of why it is rejected
    (A, ()): [A],
    (b" " + A, ()): [b" " + A],
    (b"[%b, %b]" % (A, B), ()): [A, B],
    (b"[]", ()): [],
    (b'[{"a":[1]}]', ()): [b'{"a":[1]}'],
    (b"[%b,[%b]]" % (A, A), ()): "array of objects",
    (b"[%b,null]" % A, ()): "array of objects",
    (b"[%b," % A, ()): "must be JSON",
    (ENVELOPE % B, ("payload", "after")): [B],
    (b' { "payload" : %b } ' % A, ("payload",)): [A],
    (b'{"payload":[%b,%b]}' % (A, B), ("payload",)): [A, B],
    (b'[{"p":%b},{"p":[%b]}]' % (A, B), ("p",)): [A, B],
    (b'[{"p":%b},{"q":%b}]' % (A, B), ("p",)): "must have the field 'p'",
    (ENVELOPE % b"null", ("payload", "after")): [],
    (b'{"payload":null}', ("payload", "after")): [],
    (A, ("payload",)): "must have the field 'payload', which source.record names; its fields are 'a' and 'y'",
    (b"{}", ("payload",)): "its fields are none",
    (b'{"payload":7}', ("payload",)): "an object in the field 'payload'",
    (b'{"payload":7}', ("payload", "after")): "with the field 'after'",
    (b"7", ("payload",)): "with the field 'payload'",
    (b"", ("payload",)): "with the field 'payload'",
    (b'{"p":%b,"p":%b}' % (A, B), ("p",)): [B],
    (b'{"a.b":%b,"a":{"b":1}}' % A, ("a.b",)): [A],
    (b'{"\\u0061":%b}' % A, ("a",)): [A],
    (b'{"p":%b' % A, ("p",)): "must be JSON",
    (b'{"p":%b}x' % A, ("p",)): "must be JSON",
    (b'[{"a":NaN,"y":-1.50},%b]' % A, ()): [b'{"a":NaN,"y":-1.50}', A],
    (b'{"q":-Infinity,"p":[{"a":1e400},{"a":NaN}]}', ("p",)): [b'{"a":1e400}', b'{"a":NaN}'],
    (b'{"q":nan,"p":%b}' % A, ("p",)): "must be JSON",
    (b'{"q":"\xff","p":[%b' % A, ("p",)): "must be JSON",
    (b'{"\xff":1,"p":%b}' % A, ("p",)): "must be JSON",
    (b'{"\\ud800":1,"p":%b}' % A, ("p",)): [A],
    (b'{"q":%b,"p":%b}' % (b"[" * 100_000, A), ("p",)): "must be JSON",
    (b'{"p":' * 100 + A + b"}" * 100, ("p",) * 100): [A],
}


def test_a_record_holds_the_objects_at_its_path_or_is_rejected_as_a_whole(write):
    for (value, path), expected in HELD.items():
        found = events_of([A, value, B], path, rejected={0: OTHER, 2: OTHER})
        if isinstance(expected, str):
            assert found.values == [A, value, B]
            assert expected in found.rejected[1].detail
            continue
        assert found.values == [A, *expected, B]
        assert found.rejected == {0: OTHER, len(found.values) - 1: OTHER}
        assert found.records == [0, *[1] * len(expected), 2]
        is_many = value.lstrip()[:1] == b"[" or b':[{"a"' in value
        assert found.numbers == [-1, *(range(len(expected)) if is_many else [-1] * len(expected)), -1]
        assert found.skipped == (not expected)


def test_a_path_is_names_with_points_or_a_list_of_names():
    for setting, path in (("payload.after", ("payload", "after")), (["payload", "a.b"], ("payload", "a.b"))):
        assert FileSource.Settings(kind="file", path="a.jsonl", record=setting).record == path
    for wrong in ("", ".", "a..b", "a.", ["a", ""], [1], 1):
        with pytest.raises(ValidationError):
            FileSource.Settings(kind="file", path="a.jsonl", record=wrong)
    with pytest.raises(ValidationError):
        FileSource.Settings(kind="file", path="a.csv", record="a")
    with pytest.raises(ValidationError):
        values_of(format="csv", columns=["a"], record="a")


def test_events_of_a_file_have_a_place_each_and_no_position_divides_a_record(write, tmp_path):
    lines = [A, b"[%b,%b]" % (A, B), b"[]", b"", b"[1]", b"[%b]" % B]
    content = b"\n".join(lines)
    path = write("a.jsonl", content)
    at = [content.index(line, n) for line, n in zip(lines, (0, 5, 40, 0, 40, 50), strict=True)]
    places = [(at[0], None), (at[1], 0), (at[1], 1), (at[4], None), (at[5], 0)]
    for block_bytes in (1, 30, 1 << 20):
        batches = read(path, block_bytes=block_bytes)
        assert [(place["offset"], place.get("record")) for place, *_ in placed(batches)] == places
        assert records(batches) == [A, A, B, b"[1]", B]
        bad = [batch.record(i) for batch in batches for i in batch.unreadable]
        assert bad == [b"[1]"]
        assert sum(batch.skipped for batch in batches) == 2
        for n, batch in enumerate(batches, 1):
            rest = read(path, through_json(batch.end), block_bytes=block_bytes)
            assert placed(rest) == placed(batches[n:])
    log = write("log.jsonl", content + b"\n")
    opened = source(log, follow=True, block_bytes=1)
    opened.seek(None)
    found = [batch for _ in range(20) if (batch := opened.poll(0)) is not None]
    opened.close()
    assert records(found) == [A, A, B, b"[1]", B]


def test_events_of_a_topic_repeat_what_their_record_has_and_a_path_suits_every_format_of_objects():
    values = values_of(key_field="k", record="p")
    given = [
        record(b'{"p":[%b,%b]}' % (A, B), key=b"1"),
        record(b'{"p":null}'),
        record(b'{"p":%b}\n{"q":1}' % A, key=b"2"),
    ]
    block = batch_of(values, *given)
    found = [json.loads(line) for line in block.block.split(b"\n")[:3]]
    assert found == [{"k": "1", "a": 1, "y": 2}, {"k": "1", "a": 3.5, "y": 10}, {"k": "2", "a": 1, "y": 2}]
    assert ([place["record"] for place in block.locations], block.skipped) == ([0, 1, 0, 1], 1)
    assert block.keys == [b"1", b"1", b"2", b"2"]
    ((at, (reason, detail, value)),) = block.unreadable.items()
    assert (at, reason, "field 'p'" in detail, value) == (3, "malformed", True, b'{"q":1}')
    csv = values_of(format="csv", columns=["a", "y"], timestamp_field="t")
    block = batch_of(csv, record(b'1,"2\n"\n\n3,4\n', timestamp=5000), record(b"5,6"))
    assert block.block == b'5.0,1,"2\n"\n5.0,3,4\n,5,6\n'
    assert [place.get("record") for place in block.locations] == [0, 1, None]
