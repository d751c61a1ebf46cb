import contextlib
import gzip
import os
import random
import zlib

import pytest

from streammoe.errors import SourceError
from streammoe_connectors.formats import records as records_module
from tests.unit.connectors.reading import drain, placed, read, records, source, through_json, warnings

LINES = [b"%d,%f" % (i, random.Random(i).gauss(0, 1)) for i in range(12_000)]
CONTENT = b"x,y\n" + b"\n".join(LINES) + b"\n"
COMPRESSED = gzip.compress(CONTENT)


def until_failure(path, position=None, **settings):
    """What is given before a failure, which is said again, and its message."""
    batches = []
    with contextlib.closing(source(path, **settings)) as opened:
        opened.seek(position)
        messages = []
        for _ in range(2):
            with pytest.raises(SourceError) as caught:
                drain(opened, batches)
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
    return batches, messages[0]


def sound_beginning(data):
    """All that can be decompressed of one member, taken byte by byte."""
    decoder = zlib.decompressobj(31)
    found = []
    with contextlib.suppress(zlib.error):
        for i in range(len(data)):
            found.append(decoder.decompress(data[i : i + 1]))  # noqa: PERF401 - `extend` would lose them all
    return b"".join(found)


def test_what_is_compressed_shows_by_extension_or_magic_and_members_may_be_padded_and_empty(write):
    data = gzip.compress(b"1\n") + b"\0" * 70_000 + gzip.compress(b"") + gzip.compress(b"2\n") + b"\0" * 9
    for name, form in [("a.json.gz", {}), ("A.JSONL.GZ", {}), ("log.3", {"format": "jsonl"})]:
        assert records(read(write(name, data), **form)) == [b"1", b"2"]
    assert records(read(write("misnamed.gz", b"1\n"), format="jsonl")) == [b"1"]
    for name in ("a.gz", "a.txt.gz", "a.parquet.gz"):
        with pytest.raises(SourceError):
            source(write(name, data)).seek(None)


def test_going_to_a_position_stops_at_the_timeout(write, monkeypatch):
    path = write("a.csv.gz", COMPRESSED)
    batches = read(path, block_bytes=4096)
    monkeypatch.setattr(records_module, "_SKIP_BYTES", 20_000)
    with contextlib.closing(source(path, block_bytes=4096)) as opened:
        opened.seek(through_json(batches[-2].end))
        waits = 0
        while (batch := opened.poll(0)) is None:
            waits += 1
        assert waits >= len(CONTENT) // 20_000 - 2
        assert placed([batch, *drain(opened)]) == placed(batches[-1:])


def test_a_finished_file_that_is_no_longer_the_same_is_noticed(write, caplog):
    path = write("a.csv.gz", COMPRESSED)
    end = through_json(read(path)[-1].end)
    assert read(path, end) == []
    write("a.csv.gz", COMPRESSED + gzip.compress(b"more\n"))
    assert read(path, end) == []
    assert len(warnings(caplog)) == 1
    os.truncate(path, 5000)
    with pytest.raises(SourceError):
        read(path, end)


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_what_comes_before_a_damage_is_given_and_then_the_byte_is_named(write, block_bytes):
    for at in (0, 3, 60, 66_001, len(COMPRESSED) - 5):
        damaged = bytearray(COMPRESSED)
        damaged[at : at + 3] = bytes(255 - octet for octet in damaged[at : at + 3])
        sound = sound_beginning(bytes(damaged))
        # As jsonl, where no quote in the rubbish before the damage means anything.
        batches, message = until_failure(write("a.jsonl.gz", bytes(damaged)), block_bytes=block_bytes)
        complete = sound[: sound.rfind(b"\n") + 1].split(b"\n")
        assert records(batches) == [line.rstrip(b"\r") for line in complete if line.strip()]
        assert f" byte {len(sound)} of its content" in message
    batches, message = until_failure(write("b.jsonl.gz", gzip.compress(b"1\n2\n") + b"no gzip"))
    assert records(batches) == [b"1", b"2"]
    assert " byte 4 " in message


def test_reading_resumes_once_a_truncated_file_is_complete(write):
    for length in (0, 9, 66_000, len(COMPRESSED) - 1):
        path = write("a.csv.gz", COMPRESSED[:length])
        batches, message = until_failure(path, block_bytes=4096)
        assert f" byte {len(sound_beginning(COMPRESSED[:length]))} of its content" in message
        write("a.csv.gz", COMPRESSED)
        rest = read(path, through_json(batches[-1].end) if batches else None)
        assert records(batches) + records(rest) == LINES


def test_a_position_beyond_the_content_is_an_error(write):
    path = write("a.jsonl.gz", gzip.compress(b"1\n2\n3\n"))
    (batch,) = read(path)
    file = {**batch.end["files"][0], "done": False, "offset": 9}
    assert until_failure(path, {"kind": "file", "files": [file]})[0] == []
