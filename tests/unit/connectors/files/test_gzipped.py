import contextlib
import gzip
import random
import re

import pytest

from streammoe.errors import SourceError
from tests.unit.connectors.reading import drain, read, records, source, through_json

LINES = [b"%d,%f" % (i, random.Random(i).gauss(0, 1)) for i in range(12_000)]
CONTENT = b"x,y\n" + b"\n".join(LINES) + b"\n"
COMPRESSED = gzip.compress(CONTENT)


def until_failure(path, **settings):
    """What is given before a failure, and its message."""
    batches = []
    with contextlib.closing(source(path, **settings)) as opened:
        opened.seek(None)
        with pytest.raises(SourceError) as caught:
            drain(opened, batches)
    return batches, str(caught.value)


def test_what_is_compressed_shows_by_extension_or_magic_and_members_may_be_padded_and_empty(write):
    data = gzip.compress(b"1\n") + b"\0" * 70_000 + gzip.compress(b"") + gzip.compress(b"2\n") + b"\0" * 9
    for name, form in [("a.json.gz", {}), ("A.JSONL.GZ", {}), ("log.3", {"format": "jsonl"})]:
        assert records(read(write(name, data), **form)) == [b"1", b"2"]
    assert records(read(write("misnamed.gz", b"1\n"), format="jsonl")) == [b"1"]
    assert until_failure(write("misnamed.jsonl.gz", b"1\n"))[0] == []


def test_a_damage_is_an_error_with_its_place_and_reading_resumes_once_the_file_is_restored(write):
    for at in (2, 66_001, len(COMPRESSED) - 5):
        damaged = bytearray(COMPRESSED)
        damaged[at : at + 3] = bytes(255 - octet for octet in damaged[at : at + 3])
        # As jsonl, where no quote in the rubbish before the damage means anything.
        path = write("a.jsonl.gz", bytes(damaged))
        batches, message = until_failure(path, block_bytes=4096)
        given = records(batches)
        expected = CONTENT.splitlines()
        assert int(re.search(r" byte (\d+) of its content", message)[1]) >= sum(len(line) + 1 for line in given)
        if at == 66_001:  # some rubbish may be decompressed before the damage shows
            good = next(i for i, (one, other) in enumerate(zip(given, expected, strict=False)) if one != other)
            assert 0 < good < len(given) < len(expected)
            continue
        assert given == expected[: len(given)]
        assert (at == 2) == (not given)
        write("a.jsonl.gz", COMPRESSED)
        assert given + records(read(path, through_json(batches[-1].end) if batches else None)) == expected


def test_reading_resumes_once_a_truncated_file_is_complete(write):
    for length in (0, 9, 66_000, len(COMPRESSED) - 1):
        path = write("a.csv.gz", COMPRESSED[:length])
        batches, message = until_failure(path, block_bytes=4096)
        assert "is truncated: its gzip data ends after byte" in message
        assert (length < 10) == (not batches)
        write("a.csv.gz", COMPRESSED)
        rest = read(path, through_json(batches[-1].end) if batches else None)
        assert records(batches) + records(rest) == LINES
