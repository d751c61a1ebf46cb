import gzip
import os
import random
import zlib
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe_connectors.files import gzipped
from streammoe_connectors.files.gzipped import GzipStream
from streammoe_connectors.formats import records as records_module
from tests.unit.connectors.reading import drain, placed, read, records, source, through_json, warnings

LINES = [b"%d,%f" % (i, random.Random(i).gauss(0, 1)) for i in range(12_000)]
CONTENT = b"x,y\n" + b"\n".join(LINES) + b"\n"
COMPRESSED = gzip.compress(CONTENT)


def until_failure(path, position=None, **settings):
    """What is given before a failure."""
    opened = source(path, **settings)
    batches = []
    with pytest.raises(SourceError) as caught:
        seek_and_drain(opened, position, batches)
    with pytest.raises(SourceError) as again:
        opened.poll(0)
    assert str(again.value) == str(caught.value)
    opened.close()
    return batches, str(caught.value)


def seek_and_drain(opened, position, batches):
    opened.seek(position)
    drain(opened, batches)


def sound_beginning(data):
    """All that can be decompressed of one member, taken byte by byte."""
    decoder = zlib.decompressobj(31)
    found = []
    try:
        for i in range(len(data)):
            found.append(decoder.decompress(data[i : i + 1]))  # noqa: PERF401 - `extend` would lose them all
    except zlib.error:
        pass
    return b"".join(found)


# --- the same as a plain file ---------------------------------------------------------------------------------------

pieces = st.lists(
    st.sampled_from(
        [b"1,2\n", b"3,4\r\n", b"\n", b" \t\n", b'5,"a\nb"\n', b'"', b"\xef\xbb\xbf", b"z" * 30, b"\0\x1f\x8b"]
    )
)


@given(
    head=st.sampled_from([b"x,y\n", b"\xef\xbb\xbfx,y\n"]),
    body=pieces.map(b"".join),
    cuts=st.lists(st.integers(0, 400), max_size=4),
    block_bytes=st.integers(1, 90),
    max_record_bytes=st.integers(8, 60),
    format=st.sampled_from(["csv", "jsonl"]),
)
def test_records_places_and_positions_are_those_of_the_plain_file(
    tmp_path_factory, head, body, cuts, block_bytes, max_record_bytes, format
):
    folder = tmp_path_factory.mktemp("gz")
    content = head + body
    members = [content[a:b] for a, b in pairwise([0, *sorted(min(cut, len(content)) for cut in cuts), len(content)])]
    (folder / "plain").write_bytes(content)
    (folder / "gz").write_bytes(b"".join(map(gzip.compress, members)))
    sizes = {"block_bytes": block_bytes, "max_record_bytes": max_record_bytes, "format": format}

    def seen(name, position=None):
        batches = read(folder / name, position, **sizes)
        found = [({**place, "path": "it"}, record, too_long) for place, record, too_long in placed(batches)]
        return batches, found, sum(batch.skipped for batch in batches)

    plain, compressed = seen("plain"), seen("gz")
    assert compressed[1:] == plain[1:]
    given_before = 0
    for batch in compressed[0]:
        given_before += len(batch)
        assert seen("gz", through_json(batch.end))[1] == plain[1][given_before:]


def test_extension_or_format_and_magic_tell_what_is_compressed(write):
    data = gzip.compress(b"x\n1\n")
    assert records(read(write("a.csv.gz", data))) == [b"1"]
    assert records(read(write("a.CSV.GZ", data))) == [b"1"]
    assert records(read(write("log.3", data), format="csv")) == [b"1"]
    assert records(read(write("a.json.gz", data))) == [b"x", b"1"]
    assert records(read(write("misnamed.gz", b"x\n1\n"), format="csv")) == [b"1"]
    for name in ("a.gz", "a.txt.gz", "a.parquet.gz"):
        with pytest.raises(SourceError):
            source(write(name, data)).seek(None)


def test_members_may_be_padded_and_empty(write):
    data = gzip.compress(b"1\n") + b"\0" * 70_000 + gzip.compress(b"") + gzip.compress(b"2\n") + b"\0" * 9
    assert records(read(write("a.jsonl.gz", data))) == [b"1", b"2"]


# --- positions ------------------------------------------------------------------------------------------------------


def test_the_offset_is_one_of_the_content_and_the_head_one_of_the_file(write):
    path = write("a.csv.gz", COMPRESSED)
    first = read(path, block_bytes=4096)[0]
    (file,) = first.end["files"]
    assert CONTENT[: file["offset"]].endswith(records([first])[-1] + b"\n")
    assert file["head_bytes"] == 4096
    last = read(path)[-1].end["files"][0]
    assert (last["offset"], last["size"], last["done"]) == (len(CONTENT), len(COMPRESSED), True)


def test_the_file_is_read_and_decompressed_once(write, monkeypatch):
    path = write("a.csv.gz", COMPRESSED)
    given_out = []
    decompress = GzipStream._decompress

    def counting(self, count):
        data = decompress(self, count)
        given_out.append(len(data))
        return data

    monkeypatch.setattr(GzipStream, "_decompress", counting)
    assert len(read(path, block_bytes=4096)) > 30
    assert sum(given_out) == len(CONTENT)


def test_going_to_a_position_stops_at_the_timeout(write, monkeypatch):
    path = write("a.csv.gz", COMPRESSED)
    batches = read(path, block_bytes=4096)
    end = through_json(batches[-2].end)
    monkeypatch.setattr(records_module, "_SKIP_BYTES", 20_000)
    opened = source(path, block_bytes=4096)
    opened.seek(end)
    waits = 0
    while (batch := opened.poll(0)) is None:
        waits += 1
    assert waits >= len(CONTENT) // 20_000 - 2
    assert placed([batch, *drain(opened)]) == placed(batches[-1:])


def test_a_finished_file_that_is_no_longer_the_same_is_noticed(write, caplog):
    path = write("a.csv.gz", COMPRESSED)
    end = through_json(read(path)[-1].end)
    assert read(path, end) == []
    with path.open("ab") as stream:
        stream.write(gzip.compress(b"more\n"))
    assert read(path, end) == []
    assert len(warnings(caplog)) == 1
    os.truncate(path, 5000)
    with pytest.raises(SourceError):
        read(path, end)


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_what_comes_before_a_damage_is_given_and_then_the_byte_is_named(write, block_bytes):
    for at in (0, 3, 60, 40_000, 66_001, len(COMPRESSED) - 5):
        damaged = bytearray(COMPRESSED)
        damaged[at : at + 3] = bytes(255 - octet for octet in damaged[at : at + 3])
        sound = sound_beginning(bytes(damaged))
        # As jsonl, where no quote in the rubbish before the damage means anything.
        batches, message = until_failure(write("a.jsonl.gz", bytes(damaged)), block_bytes=block_bytes)
        complete = sound[: sound.rfind(b"\n") + 1].split(b"\n")
        assert records(batches) == [line.rstrip(b"\r") for line in complete if line.strip()]
        assert f" byte {len(sound)} of its content" in message


def test_reading_resumes_once_a_truncated_file_is_complete(write):
    for length in (0, 9, 30, 66_000, len(COMPRESSED) - 1):
        path = write("a.csv.gz", COMPRESSED[:length])
        batches, message = until_failure(path, block_bytes=4096)
        assert f" byte {len(sound_beginning(COMPRESSED[:length]))} of its content" in message
        write("a.csv.gz", COMPRESSED)
        rest = read(path, through_json(batches[-1].end) if batches else None)
        assert records(batches) + records(rest) == LINES


def test_the_second_member_may_be_damaged_too_and_a_plain_file_is_no_gzip(write):
    batches, message = until_failure(write("a.jsonl.gz", gzip.compress(b"1\n2\n") + b"no gzip"))
    assert records(batches) == [b"1", b"2"]
    assert " byte 4 " in message
    assert until_failure(write("a.csv.gz", b"x\n1\n"))[0] == []


def test_a_position_beyond_the_content_is_an_error(write):
    path = write("a.jsonl.gz", gzip.compress(b"1\n2\n3\n"))
    (batch,) = read(path)
    file = {**batch.end["files"][0], "done": False, "offset": 9}
    assert until_failure(path, {"kind": "file", "files": [file]})[0] == []


def test_a_read_error_becomes_a_source_error(write, monkeypatch):
    opened = source(write("a.csv.gz", COMPRESSED), block_bytes=4096)
    opened.seek(None)

    class Broken:
        def read(self, count):
            raise OSError(5, "Input/output error")

    assert opened.poll(0) is not None
    with monkeypatch.context() as broken:
        broken.setattr(opened._files._reader._stream, "_raw", Broken())
        with pytest.raises(SourceError):
            drain(opened)
    opened.close()


# --- the exact end of what a damaged file still holds ---------------------------------------------------------------


class Counting:
    """A decoder that counts how many pieces it and its copies are given."""

    def __init__(self, decoder, fed):
        self.decoder = decoder
        self.fed = fed

    def copy(self):
        return Counting(self.decoder.copy(), self.fed)

    def decompress(self, data):
        self.fed.append(len(data))
        return self.decoder.decompress(data)


@settings(max_examples=20)
@given(level=st.sampled_from([0, 1, 9]), at=st.floats(0, 1), damage=st.binary(min_size=1, max_size=40))
@example(level=9, at=0.0, damage=b"\0")
@example(level=9, at=0.0, damage=b"\x1f\x8b\0")
def test_a_few_pieces_give_what_single_bytes_would(level, at, damage):
    data = bytearray(gzip.compress(CONTENT[:90_000], level)[: 1 << 16])
    at = int(at * (len(data) - len(damage)))
    data[at : at + len(damage)] = damage
    fed = []
    try:
        zlib.decompressobj(31).decompress(bytes(data))
    except zlib.error:
        found = gzipped._salvage(Counting(zlib.decompressobj(31), fed), bytes(data))
        assert found == sound_beginning(bytes(data))
        assert len(fed) <= 17
        assert sum(fed) <= len(data)
