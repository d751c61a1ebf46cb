"""Files that hold no records, or nothing that is text."""

import gzip
import io
import logging
import tempfile

import pytest

from streammoe.errors import SourceError
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.reading import drain, read, records


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def from_stdin(content, format):
    with tempfile.TemporaryFile() as stream:  # a pipe holds less, and would wait for a reader
        stream.write(content)
        stream.seek(0)
        opened = StdinSource(StdinSource.Settings(kind="stdin", format=format), descriptor=stream.fileno())
        opened.seek(None)
        return drain(opened)


def compressed(content):
    held = io.BytesIO()
    with gzip.GzipFile(fileobj=held, mode="wb") as stream:
        stream.write(content)
    return held.getvalue()


WAYS = {
    "plain": lambda write, content, kind: read(write(f"a.{kind}", content)),
    "gzip": lambda write, content, kind: read(write(f"a.{kind}.gz", compressed(content))),
    "stdin": lambda _, content, kind: from_stdin(content, kind),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("format", "content", "columns"),
    [
        ("csv", b"", None),
        ("csv", b"a,y\n", ("a", "y")),
        ("csv", b"a,y", ("a", "y")),
        ("csv", b"a,y\n\n \n", ("a", "y")),
        ("jsonl", b"", None),
        ("jsonl", b"\n\n", None),
    ],
)
def test_a_stream_without_records_ends_well_with_a_warning_and_its_header(write, caplog, way, format, content, columns):
    batches = WAYS[way](write, content, format)
    assert records(batches) == []
    assert [batch.columns for batch in batches if batch.columns is not None] == ([columns] if columns else [])
    assert sum(batch.skipped for batch in batches) == max(content.count(b"\n") - (columns is not None), 0)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("content", [bytes(100_000), b"a\0b\n1\n", "a,y\n1,2\n".encode("utf-16-le")])
def test_a_header_that_is_no_text_is_an_error(write, way, content):
    with pytest.raises(SourceError):
        WAYS[way](write, content, "csv")


def test_records_of_nuls_are_records(write, caplog):
    """They are refused one by one: a crash may leave a hole in a sound file."""
    assert len(records(read(write("a.jsonl", b"\0\0\0\n{}\n")))) == 2
    assert not warnings(caplog)
