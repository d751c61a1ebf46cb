import os
import signal
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from streammoe.errors import SourceError
from streammoe_connectors.stdin import StdinSource
from tests.unit.connectors.reading import drain, placed, read, records, warnings


class Pipe:
    """A pipe with a source at its end."""

    def __init__(self, format="jsonl", **sizes):
        self.reading, self.writing = os.pipe()
        settings = StdinSource.Settings(kind="stdin", format=format).model_copy(update=sizes)
        self.source = StdinSource(settings, descriptor=self.reading)

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
        opened[-1].source.seek(None)
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def test_it_is_registered_and_its_settings_are_strict():
    (entry,) = entry_points(group="streammoe.connectors", name="stdin")
    assert entry.load() is StdinSource
    for wrong in ({"format": "auto"}, {"format": "parquet"}, {"path": "-"}, {"block_bytes": 1}):
        with pytest.raises(ValidationError):
            StdinSource.Settings(**({"kind": "stdin", "format": "csv"} | wrong))


# --- records --------------------------------------------------------------------------------------------------------


def test_header_records_places_and_the_end_without_a_line_end(pipe):
    it = pipe("csv")
    it.write(b'\xef\xbb\xbfx,y\r\n1,2\r\n\n3,"a\nb"\n5,6')
    it.end()
    (batch,) = drain(it.source)
    assert batch.columns == ("x", "y")
    assert records([batch]) == [b"1,2", b'3,"a\nb"', b"5,6"]
    assert [batch.place(i)["offset"] for i in range(3)] == [8, 14, 22]
    assert (batch.format, batch.origin, batch.skipped) == ("csv", "stdin", 1)
    assert batch.end == {"kind": "stdin", "offset": 25}
    assert it.source.finished
    assert it.source.poll(0) is None
    assert it.source.progress() is None


def test_places_of_two_runs_are_never_the_same(pipe):
    found = []
    for _ in range(2):
        it = pipe()
        it.write(b"1\n")
        found.append(it.source.poll(1).place(0))
    assert found[0] != found[1]
    assert all(isinstance(place["stdin"], str) for place in found)


def test_blank_lines_alone_count_in_the_next_batch_and_a_bad_header_is_an_error(pipe):
    it = pipe()
    it.write(b"\n\n")
    assert it.source.poll(0) is None
    it.write(b"1\n")
    assert it.source.poll(1).skipped == 2
    bad = pipe("csv")
    bad.write(b"x,x\n")
    with pytest.raises(SourceError):
        bad.source.poll(1)


def test_what_comes_after_a_record_that_is_too_long_does_not_wait(pipe):
    it = pipe(block_bytes=64, max_record_bytes=100)
    it.write(b"z" * 250 + b"\n1\n2\n")
    started = time.monotonic()
    first, *rest = [it.source.poll(10), it.source.poll(10), it.source.poll(0)]
    assert (first.too_long, len(first.record(0))) == (True, 100)
    assert records([batch for batch in rest if batch is not None]) == [b"1", b"2"]
    assert time.monotonic() - started < 5


@example(body=b"z" * 30, cuts=[34], format="csv", max_record_bytes=30)  # as long as it may be, and then the end
@given(
    body=st.lists(
        st.sampled_from([b"1,2\n", b"3,4\r\n", b"\n", b'5,"a\nb"\n', b'"', b"z" * 30, b"9"]), max_size=40
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    format=st.sampled_from(["csv", "jsonl"]),
    max_record_bytes=st.integers(8, 60),
)
def test_records_are_those_of_a_file_wherever_the_writer_pauses(tmp_path_factory, body, cuts, format, max_record_bytes):
    content = b"x,y\n" + body
    path = tmp_path_factory.mktemp("stdin") / "a"
    path.write_bytes(content)
    expected = read(path, format=format, block_bytes=64, max_record_bytes=max_record_bytes)
    it = Pipe(format, block_bytes=64, max_record_bytes=max_record_bytes)
    it.source.seek(None)
    batches, before = [], 0
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
        return [(place["offset"], *rest) for place, *rest in placed(batches)]

    assert seen(batches) == seen(expected)


# --- time -----------------------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_timeout_and_what_is_incomplete_waits(pipe):
    for there in (b"", b"x,", b"x,y\n", b"x,y\n1", b'x,y\n1,"a\n'):
        it = pipe("csv")
        it.write(there)
        started = time.monotonic()
        assert it.source.poll(0.05) is None
        assert time.monotonic() - started >= 0.04
        started = time.process_time()
        assert it.source.poll(0) is None
        assert time.process_time() - started < 0.1
        assert not it.source.finished


def test_complete_lines_do_not_wait_for_others(pipe):
    it = pipe()
    writer = threading.Timer(0.1, it.write, [b"1\n2\n3"])
    writer.start()
    started = time.monotonic()
    batch = it.source.poll(20)
    assert time.monotonic() - started < 10
    assert records([batch]) == [b"1", b"2"]
    writer.join()
    it.write(b"3\n")
    assert records([it.source.poll(1)]) == [b"33"]


def test_a_fast_producer_is_read_in_large_blocks(pipe):
    it = pipe()
    lines = [b"%07d" % i for i in range(200_000)]
    writer = threading.Thread(target=lambda: (it.write(b"\n".join(lines)), it.end()))
    writer.start()
    batches = drain(it.source)
    writer.join()
    assert records(batches) == lines
    assert len(batches) < 100


def test_a_signal_does_not_end_the_wait_or_lose_anything(pipe):
    it = pipe()
    caught = []
    before = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    writer = threading.Timer(0.3, it.write, [b"1\n"])
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        writer.start()
        batch = it.source.poll(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    writer.join()
    assert records([batch]) == [b"1"]
    assert len(caught) > 2


# --- positions ------------------------------------------------------------------------------------------------------


def test_after_a_restart_records_count_as_new(pipe, caplog):
    it = pipe()
    it.source.seek({"kind": "stdin", "offset": 25})
    assert len(warnings(caplog)) == 1
    it.write(b"1\n")
    assert it.source.poll(1).place(0)["offset"] == 0


def test_what_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    def opened(descriptor=0):
        return StdinSource(StdinSource.Settings(kind="stdin", format="csv"), descriptor=descriptor)

    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(SourceError):
        opened(reading).seek(None)
    folder = os.open(tmp_path, os.O_RDONLY)
    of_folder = opened(folder)
    with pytest.raises(SourceError):
        of_folder.seek({"kind": "file", "files": []})
    of_folder.seek(None)
    with pytest.raises(SourceError):
        of_folder.poll(1)
    os.close(folder)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SourceError):  # and not some file opened since
        opened().seek(None)


# --- the real one ---------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from streammoe_connectors.stdin import StdinSource
source = StdinSource(StdinSource.Settings(kind="stdin", format="csv"))
source.seek(None)
while not source.finished:
    batch = source.poll(0.1)
    for i in range(0 if batch is None else len(batch)):
        print(batch.record(i).decode(), flush=True)
print("end", flush=True)
"""


def test_a_process_reads_its_standard_input_as_it_comes(write):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        process.stdin.write(b"x\n")
        for record in (b"1", b"2"):
            process.stdin.write(record + b"\n")
            assert process.stdout.readline() == record + b"\n"  # while the pipe stays open
        process.stdin.write(b"3")
        process.stdin.close()
        assert process.stdout.read() == b"3\nend\n"
    with write("a.csv", b"x\n1\n2").open("rb") as stdin:  # a file may replace the pipe
        done = subprocess.run([sys.executable, "-c", PROGRAM], stdin=stdin, capture_output=True, check=True)
    assert done.stdout == b"1\n2\nend\n"
