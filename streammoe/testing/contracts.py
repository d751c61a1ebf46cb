"""Contract suites: inherit one in a test class to check your implementation against `streammoe.ports`.

Importing them does not require pytest. To see the values behind a failing ``assert``, let pytest rewrite them by
``pytest.register_assert_rewrite("streammoe.testing.contracts")`` in a ``conftest.py``.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from streammoe.errors import SourceError
from streammoe.ports import Batch, Location, Position, Source

PATIENCE_SECONDS = 60.0
"""How long a source may take until reading can begin, or until the next batch."""


class SourceContract(ABC):
    r"""The contract of a finite source.

    Provide a dozen records or more, in several batches, and include what is special about the source: several files,
    blank lines, records with line ends inside. A class that needs pytest's fixtures defines a fixture:

        class TestMySource(SourceContract):
            records = [b"1", b"2", b"3"]

            @pytest.fixture(autouse=True)
            def content(self, tmp_path):
                self.path = tmp_path / "content"
                self.path.write_bytes(b"1\n2\n3\n")

            def make_source(self):
                return MySource(self.path)
    """

    records: Sequence[bytes]
    """The records of the source, in order, without line ends; rows of a table as `Batch.record` returns them."""
    skipped: int = 0
    """Blank lines and the like among them; the last record comes after all of them."""

    @abstractmethod
    def make_source(self) -> Source:
        """Create a source over the same content, on which nothing has been called yet."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def test_every_record_comes_once_and_in_order_whatever_is_committed(self) -> None:
        with _opened(self.make_source()) as source:
            found, ends = [], []
            for batch in _batches(source):
                found.append(batch)
                ends.append(_through_json(batch.end))
                source.commit(batch.end, 1)
        assert [batch.end for batch in found] == ends, "a position changed while reading continued"
        assert _records(found) == list(self.records)
        assert sum(batch.skipped for batch in found) == self.skipped
        assert len(found) > 1, "the content fits into one batch, so most of this suite would prove nothing"
        assert _located(found) == _located(self._read()), "reading twice differs"

    def test_batches_hold_records_that_follow_each_other_or_blank_lines_or_a_header(self) -> None:
        for batch in self._read():
            assert len(batch) > 0 or batch.skipped > 0 or batch.columns is not None
            ends = batch.ends.tolist()
            if batch.table is not None:
                assert (batch.format, batch.block, ends) == ("arrow", b"", [])
                continue
            assert all(start < stop for start, stop in pairwise([0, *ends]))
            assert [0, *ends][-1] == len(batch.block)

    # --- locations and positions ------------------------------------------------------------------------------------

    def test_locations_are_names_with_texts_and_numbers_and_differ(self) -> None:
        locations = [location for location, _ in _located(self._read())]
        assert all(locations)
        _check_locations(locations)

    def test_every_position_continues_with_exactly_the_remaining_records(self) -> None:
        batches = self._read()
        placed = _located(batches)
        skipped = count = 0
        for batch in batches:
            count += len(batch)
            skipped += batch.skipped
            before = _through_json(batch.end)
            rest = self._read(batch.end)
            assert batch.end == before, "seeking changed the position that it was given"
            assert _located(rest) == placed[count:]
            assert sum(left.skipped for left in rest) == self.skipped - skipped
        assert rest == []

    def test_positions_of_a_resumed_source_are_valid(self) -> None:
        position: Position | None = None
        found: list[bytes] = []
        while True:  # a new source for each batch, as if a restart came after each
            with _opened(self.make_source(), position) as source:
                batch = next(_batches(source), None)
            if batch is None:
                break
            found += _records([batch])
            position = _through_json(batch.end)
        assert found == list(self.records)

    def test_a_position_of_another_kind_is_rejected(self) -> None:
        rejected = None
        source = self.make_source()
        try:
            source.seek({"kind": "some other kind of source"})
        except SourceError as error:
            rejected = error
        finally:
            source.close()
        assert rejected is not None, "it accepted a position that cannot be its own"
        assert "some other kind of source" in str(rejected)

    # --- the end ----------------------------------------------------------------------------------------------------

    def test_it_is_finished_after_its_last_record_and_progress_reaches_the_total(self) -> None:
        with _opened(self.make_source()) as source:
            count, seen = 0, [source.progress()]
            for batch in _batches(source):
                count += len(batch)
                seen.append(source.progress())
                assert not source.finished or count == len(self.records)
            assert source.finished
            assert source.poll(0.0) is None
        known = [progress for progress in seen if progress is not None]
        assert known == sorted(known)
        assert all(0 <= done <= total for done, total in known)
        assert not known or known[-1][0] == known[-1][1]

    def test_it_can_be_closed_before_the_first_read(self) -> None:
        self.make_source().close()
        with _opened(self.make_source()):
            pass

    def _read(self, position: Position | None = None) -> list[Batch]:
        with _opened(self.make_source(), position) as source:
            return list(_batches(source))


class EndlessSourceContract(ABC):
    r"""The contract of an endless source, to which others add while it is read.

    Provide a dozen records or more; put what is special about the source, such as rotation, into `add`.

        class TestMySource(EndlessSourceContract):
            records = [b"1", b"2", b"3"]

            @pytest.fixture(autouse=True)
            def content(self, tmp_path):
                self.path = tmp_path / "content"
                self.path.touch()

            def make_source(self):
                return MySource(self.path)

            def add(self, data):
                with self.path.open("ab") as stream:
                    stream.write(data)
    """

    records: Sequence[bytes]
    """The records to add, in order, without line ends."""
    patience_seconds: float = 10.0
    """How long an added record may take to arrive."""

    @abstractmethod
    def make_source(self) -> Source:
        """Create a source over everything added so far, on which nothing has been called yet."""

    @abstractmethod
    def add(self, data: bytes) -> None:
        """Append bytes: whole records, or parts of one."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def test_records_come_once_and_in_order_first_those_that_are_there(self) -> None:
        half = len(self.records) // 2
        for record in self.records[:half]:
            self.add(record + b"\n")
        with _opened(self.make_source()) as source:
            found = self._take(source, half)
            assert not source.finished
            for i, record in enumerate(self.records[half:], half):
                self.add(record + b"\n")
                if i % 3 == 2:  # some alone and some together
                    found += self._take(source, i + 1 - len(found))
            found += self._take(source, len(self.records) - len(found))
            assert source.poll(0.1) is None
            assert (source.finished, source.progress()) == (False, None)
        assert [record for _, record in found] == list(self.records)
        _check_locations([location for location, _ in found])

    def test_a_record_waits_until_it_is_complete(self) -> None:
        first, second, *_ = self.records
        with _opened(self.make_source()) as source:
            self.add(first + b"\n" + second[:1])
            assert [record for _, record in self._take(source, 1)] == [first]
            assert source.poll(0.1) is None
            self.add(second[1:])
            assert source.poll(0.1) is None
            self.add(b"\n")
            assert [record for _, record in self._take(source, 1)] == [second]

    # --- positions --------------------------------------------------------------------------------------------------

    def test_every_position_continues_with_exactly_the_remaining_records(self) -> None:
        seen: list[tuple[int, Position, Position]] = []
        with _opened(self.make_source()) as source:
            placed: list[tuple[Location, bytes]] = []
            for i, record in enumerate(self.records):
                self.add(record + b"\n")
                while len(placed) <= i:
                    batch = self._next(source)
                    placed += _located([batch])
                    seen.append((len(placed), batch.end, _through_json(batch.end)))
        for count, now, then in seen:
            assert now == then, "a position changed while reading continued"
            with _opened(self.make_source(), then) as source:
                assert self._take(source, len(placed) - count) == placed[count:]
                assert source.poll(0.0) is None

    def test_records_added_between_two_runs_are_read_by_the_second(self) -> None:
        position: Position | None = None
        found: list[bytes] = []
        for record in self.records:
            with _opened(self.make_source(), position) as source:
                if not found:  # a source need not exist before its first record
                    self.add(record + b"\n")
                batch = self._next(source)
                found += _records([batch])
                position = _through_json(batch.end)
            if len(found) < len(self.records):
                self.add(self.records[len(found)] + b"\n")
        assert found == list(self.records)

    # --- time -------------------------------------------------------------------------------------------------------

    def test_a_poll_sleeps_until_its_timeout(self) -> None:
        self.add(self.records[0] + b"\n")
        with _opened(self.make_source()) as source:
            self._take(source, 1)
            source.poll(0.0)
            for timeout in (0.0, 0.2):
                began, worked = time.monotonic(), time.thread_time()
                assert source.poll(timeout) is None
                assert timeout * 0.9 <= time.monotonic() - began < timeout + self.patience_seconds
                assert time.thread_time() - worked < 0.05 + timeout / 2

    def _next(self, source: Source) -> Batch:
        deadline = time.monotonic() + self.patience_seconds
        while time.monotonic() < deadline:
            batch = source.poll(0.1)
            if batch is not None and len(batch):
                return batch
        raise AssertionError(f"{self.patience_seconds} seconds passed without a batch, but there are records to read")

    def _take(self, source: Source, count: int) -> list[tuple[Location, bytes]]:
        """Read the next `count` records, and no more."""
        found: list[tuple[Location, bytes]] = []
        while len(found) < count:
            found += _located([self._next(source)])
        assert len(found) == count
        return found


@contextmanager
def _opened(source: Source, position: Position | None = None) -> Iterator[Source]:
    try:
        source.seek(position)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not source.prepare(0.5):
            assert time.monotonic() < deadline, f"{PATIENCE_SECONDS} seconds passed, but reading cannot start"
        yield source
    finally:
        source.close()


def _check_locations(locations: Sequence[Location]) -> None:
    for location in locations:
        for name, value in location.items():
            assert isinstance(name, str)
            assert isinstance(value, str | int)
    assert len({json.dumps(location, sort_keys=True) for location in locations}) == len(locations)


def _batches(source: Source) -> Iterator[Batch]:
    """Yield all batches up to the end."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not source.finished:
        batch = source.poll(0.1)
        if batch is not None:
            yield batch
            deadline = time.monotonic() + PATIENCE_SECONDS
        assert time.monotonic() < deadline, f"{PATIENCE_SECONDS} seconds passed without a batch, and it is not finished"


def _records(batches: Sequence[Batch]) -> list[bytes]:
    return [batch.record(i) for batch in batches for i in range(len(batch))]


def _located(batches: Sequence[Batch]) -> list[tuple[Location, bytes]]:
    return [(batch.location(i), batch.record(i)) for batch in batches for i in range(len(batch))]


def _through_json(position: Position) -> Position:
    copy: Position = json.loads(json.dumps(position))
    return copy
