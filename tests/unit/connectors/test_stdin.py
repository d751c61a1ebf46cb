import os
import sys
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.reading import PIECES, drain, placed, read


class Pipe:
    """A pipe with a source at its end."""

    def __init__(self, format="jsonl", position=None, **sizes):
        reading, writing = os.pipe()
        self.reading, self.writing = os.fdopen(reading), os.fdopen(writing, "wb", buffering=0)
        settings = StdinSource.Settings(kind="stdin", format=format).model_copy(update=sizes)
        self.source = StdinSource(settings, descriptor=reading)
        self.source.seek(position)

    def __enter__(self):
        return self.source, self.writing

    def __exit__(self, *_):
        self.source.close()
        self.reading.close()
        self.writing.close()


@settings(max_examples=50)
@example(body=b"z" * 30, cuts=[34], format="csv", max_record_bytes=30)  # as long as it may be, and then the end
@given(
    body=PIECES,
    cuts=st.lists(st.integers(0, 300), max_size=6),
    format=st.sampled_from(["csv", "jsonl"]),
    max_record_bytes=st.integers(8, 60),
)
def test_records_are_those_of_a_file_wherever_the_writer_pauses(tmp_path_factory, body, cuts, format, max_record_bytes):
    content = b"x,y\n" + body
    path = tmp_path_factory.mktemp("stdin") / "a"
    path.write_bytes(content)
    sizes = {"block_bytes": 64, "max_record_bytes": max_record_bytes}
    batches, before = [], 0
    with Pipe(format, **sizes) as (source, writing):
        for cut in sorted(min(cut, len(content)) for cut in cuts):
            writing.write(content[before:cut])
            before = cut
            while (batch := source.poll(0)) is not None:
                batches.append(batch)
        writing.write(content[before:])
        writing.close()
        drain(source, batches)

    def seen(batches):
        columns = {batch.columns for batch in batches if len(batch)}
        return columns, [(place["offset"], *rest) for place, *rest in placed(batches)], sum(b.skipped for b in batches)

    assert seen(batches) == seen(read(path, format=format, **sizes))


@pytest.mark.parametrize("there", [b"", b"x,y\n1", b'x,y\n1,"a\n'])
def test_waiting_ends_with_the_timeout_and_what_is_incomplete_waits(there):
    with Pipe("csv") as (source, writing):
        writing.write(there)
        started = time.monotonic()
        assert source.poll(0.05) is None
        assert time.monotonic() - started >= 0.04
        assert not source.finished


def test_without_standard_input_no_file_opened_since_is_taken_for_it(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError):
        StdinSource(StdinSource.Settings(kind="stdin", format="csv")).seek(None)
