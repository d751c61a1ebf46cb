import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.reading import PIECES, drain, placed, read, records, warnings


class Pipe:
    """A pipe with a source at its end."""

    def __init__(self, format="jsonl", position=None, **sizes):
        self.reading, self.writing = os.pipe()
        settings = StdinSource.Settings(kind="stdin", format=format).model_copy(update=sizes)
        self.source = StdinSource(settings, descriptor=self.reading)
        self.source.seek(position)

    def write(self, data):
        while data:
            data = data[os.write(self.writing, data) :]

    def end(self):
        os.close(self.writing)
        self.writing = None

    def close(self):
        self.source.close()
        os.close(self.reading)
        if self.writing is not None:
            self.end()


@pytest.fixture
def pipe():
    opened = []

    def make(*args, **settings):
        opened.append(Pipe(*args, **settings))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_after_a_restart_records_count_as_new_and_have_other_places(pipe, caplog):
    found = []
    for position in (None, {"kind": "stdin", "offset": 25}):
        it = pipe(position=position)
        it.write(b"1\n")
        batch = it.source.poll(1)
        assert batch.end == {"kind": "stdin", "offset": 2}
        found.append(batch.place(0))
    assert [place["offset"] for place in found] == [0, 0]
    assert found[0]["stdin"] != found[1]["stdin"]
    assert len(warnings(caplog)) == 1


def test_what_comes_after_a_record_that_is_too_long_does_not_wait(pipe):
    it = pipe(block_bytes=64, max_record_bytes=100)
    it.write(b"z" * 250 + b"\n1\n2\n")
    started = time.monotonic()
    first, *rest = [it.source.poll(10), it.source.poll(10), it.source.poll(0)]
    assert (first.too_long, len(first.record(0))) == (True, 100)
    assert records([batch for batch in rest if batch is not None]) == [b"1", b"2"]
    assert time.monotonic() - started < 5


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
    it, batches, before = Pipe(format, **sizes), [], 0
    for cut in sorted(min(cut, len(content)) for cut in cuts):
        it.write(content[before:cut])
        before = cut
        while batch := it.source.poll(0):
            batches.append(batch)
    it.write(content[before:])
    it.end()
    drain(it.source, batches)
    it.close()

    def seen(batches):
        columns = {batch.columns for batch in batches if len(batch)}
        return columns, [(place["offset"], *rest) for place, *rest in placed(batches)], sum(b.skipped for b in batches)

    assert seen(batches) == seen(read(path, format=format, **sizes))


def test_waiting_ends_with_the_timeout_and_what_is_incomplete_waits(pipe):
    for there in (b"", b"x,y\n1", b'x,y\n1,"a\n'):
        it = pipe("csv")
        it.write(there)
        started = time.monotonic()
        assert it.source.poll(0.05) is None
        assert time.monotonic() - started >= 0.04
        started = time.process_time()
        assert it.source.poll(0) is None
        assert time.process_time() - started < 0.1
        assert not it.source.finished


def test_complete_lines_wait_neither_for_others_nor_for_signals(pipe):
    it = pipe()
    caught = []
    before = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    writer = threading.Timer(0.1, it.write, [b"1\n2\n3"])
    started = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        writer.start()
        batch = it.source.poll(20)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 10
    assert len(caught) > 2
    assert records([batch]) == [b"1", b"2"]
    writer.join()
    it.write(b"3\n")
    assert records([it.source.poll(1)]) == [b"33"]


def test_a_closed_descriptor_is_an_error(monkeypatch):
    closed = os.dup(1)
    os.close(closed)
    with pytest.raises(SourceError):
        StdinSource(StdinSource.Settings(kind="stdin", format="csv"), descriptor=closed).seek(None)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError):  # and not some file opened since
        StdinSource(StdinSource.Settings(kind="stdin", format="csv")).seek(None)


PROGRAM = """
from streammoe_connectors.stdin import StdinSource
source = StdinSource(StdinSource.Settings(kind="stdin", format="csv"))
source.seek(None)
while not source.finished:
    batch = source.poll(0.1)
    for i in range(0 if batch is None else len(batch)):
        print(batch.record(i).decode(), flush=True)
print("end", flush=True)
"""


def test_a_process_reads_its_standard_input_as_it_comes():
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write(b"x\n1\n")
        assert process.stdout.readline() == b"1\n"  # while the pipe stays open
        process.stdin.write(b"3")
        process.stdin.close()
        assert process.stdout.read() == b"3\nend\n"
