"""Contract suites: inherit one in a test class, and pytest holds your implementation to `streammoe.ports`.

They need no pytest to be imported. For the values behind a failing ``assert``, have pytest rewrite them:
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
from streammoe.ports import Batch, Place, Position, Source

PATIENCE = 100
"""Polls in a row that may give nothing, before a source with records left counts as stuck."""
PREPARE_SECONDS = 60.0
"""How long a source may take until reading can begin."""


class SourceContract(ABC):
    r"""What a finite source promises.

    Give it a dozen records or more, in several batches, and whatever is special about the source: several files,
    blank lines, records with line ends inside. A class that needs pytest's fixtures gets them in a fixture of its own:

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
    """What the source holds, in order, without line ends; rows of a table as `Batch.record` writes them."""
    skipped: int = 0
    """Blank lines and the like among them; the last record stands behind them all."""

    @abstractmethod
    def make_source(self) -> Source:
        """A new source over the same content, on which nothing has been called yet."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def test_every_record_comes_once_and_in_order(self) -> None:
        assert _records(self._read()) == list(self.records)

    def test_the_suite_sees_several_batches(self) -> None:
        assert len(self._read()) > 1, "the content fits into one batch, so that most of this suite would show nothing"

    def test_every_batch_has_records_or_blank_lines_or_a_header(self) -> None:
        for batch in self._read():
            assert len(batch) > 0 or batch.skipped > 0 or batch.columns is not None

    def test_records_follow_each_other_and_cover_their_block(self) -> None:
        for batch in self._read():
            ends = batch.ends.tolist()
            if batch.table is not None:
                assert (batch.format, batch.block, ends) == ("arrow", b"", [])
                continue
            assert all(start < stop for start, stop in pairwise([0, *ends]))
            assert [0, *ends][-1] == len(batch.block)

    def test_what_carries_nothing_is_counted_once(self) -> None:
        assert sum(batch.skipped for batch in self._read()) == self.skipped

    def test_reading_twice_gives_the_same_records_at_the_same_places(self) -> None:
        assert _placed(self._read()) == _placed(self._read())

    # --- places -----------------------------------------------------------------------------------------------------

    def test_no_two_records_have_the_same_place(self) -> None:
        places = [json.dumps(place, sort_keys=True) for place, _ in _placed(self._read())]
        assert len(set(places)) == len(self.records)

    def test_a_place_is_names_with_texts_and_numbers(self) -> None:
        for place, _ in _placed(self._read()):
            assert place
            for name, value in place.items():
                assert isinstance(name, str)
                assert isinstance(value, str | int)

    # --- positions --------------------------------------------------------------------------------------------------

    def test_every_position_continues_with_exactly_the_remaining_records(self) -> None:
        batches = self._read()
        placed = _placed(batches)
        skipped = count = 0
        for batch in batches:
            count += len(batch)
            skipped += batch.skipped
            rest = self._read(_through_json(batch.end))
            assert _placed(rest) == placed[count:]
            assert sum(left.skipped for left in rest) == self.skipped - skipped

    def test_positions_of_a_resumed_source_are_as_good(self) -> None:
        position: Position | None = None
        found: list[bytes] = []
        for _ in range(len(self.records) + 1):  # a new source for each batch, as if a restart came after each
            with _opened(self.make_source(), position) as source:
                batch = next(_batches(source), None)
            if batch is None:
                break
            found += _records([batch])
            position = _through_json(batch.end)
        assert found == list(self.records)

    def test_a_position_stays_what_it_was_while_reading_goes_on(self) -> None:
        with _opened(self.make_source()) as source:
            seen = [(batch.end, _through_json(batch.end)) for batch in _batches(source)]
        assert all(now == then for now, then in seen)

    def test_seeking_does_not_change_the_position_it_was_given(self) -> None:
        position = self._read()[0].end
        before = _through_json(position)
        self._read(position)
        assert position == before

    def test_a_position_of_another_kind_is_refused(self) -> None:
        refused = None
        source = self.make_source()
        try:
            source.seek({"kind": "some other kind of source"})
        except SourceError as error:
            refused = error
        finally:
            source.close()
        assert refused is not None, "it accepted a position that cannot be its own"
        assert "some other kind of source" in str(refused)

    # --- the end ----------------------------------------------------------------------------------------------------

    def test_it_is_finished_after_its_last_record_and_not_before(self) -> None:
        with _opened(self.make_source()) as source:
            count = 0
            for batch in _batches(source):
                count += len(batch)
                assert not source.finished or count == len(self.records)
            assert source.finished

    def test_a_finished_source_gives_nothing_more(self) -> None:
        with _opened(self.make_source()) as source:
            list(_batches(source))
            assert source.poll(0.0) is None
            assert source.finished

    def test_the_last_position_has_nothing_left(self) -> None:
        assert self._read(_through_json(self._read()[-1].end)) == []

    # --- beside reading ---------------------------------------------------------------------------------------------

    def test_commits_change_nothing(self) -> None:
        with _opened(self.make_source()) as source:
            found = []
            for batch in _batches(source):
                found.append(batch)
                source.commit(batch.end, 1)
        assert _placed(found) == _placed(self._read())

    def test_progress_never_goes_back_and_reaches_the_whole(self) -> None:
        with _opened(self.make_source()) as source:
            seen = [source.progress(), *(source.progress() for _ in _batches(source))]
        known = [progress for progress in seen if progress is not None]
        assert known == sorted(known)
        assert all(0 <= done <= total for done, total in known)
        if known:
            done, total = known[-1]
            assert done == total

    def test_it_can_be_closed_before_anything_was_read(self) -> None:
        self.make_source().close()
        with _opened(self.make_source()):
            pass

    def test_the_tail_of_a_batch_is_its_last_records_at_their_places(self) -> None:
        for batch in self._read()[:3]:
            whole = _placed([batch])
            for first in range(len(batch) + 1):
                tail = batch.tail(first)
                assert len(tail) == len(batch) - first
                assert _placed([tail]) == whole[first:]
                assert (tail.end, tail.columns, tail.format) == (batch.end, batch.columns, batch.format)
            halved = batch.tail(1).tail(len(batch) // 2)
            assert _placed([halved]) == whole[1 + len(batch) // 2 :]

    def _read(self, position: Position | None = None) -> list[Batch]:
        with _opened(self.make_source(), position) as source:
            return list(_batches(source))


class EndlessSourceContract(ABC):
    r"""What a source without an end promises, to which others add while it is read.

    Give it a dozen records or more; what is special about the source goes into `add`, such as rotation.

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
    """What is added, in order, without line ends."""
    patience_seconds: float = 10.0
    """How long something that was added may take to come."""

    @abstractmethod
    def make_source(self) -> Source:
        """A new source over what has been added so far, on which nothing has been called yet."""

    @abstractmethod
    def add(self, data: bytes) -> None:
        """Add bytes behind all others: whole records, or parts of one."""

    # --- what comes -------------------------------------------------------------------------------------------------

    def test_what_is_added_comes_once_and_in_order(self) -> None:
        with _opened(self.make_source()) as source:
            found: list[tuple[Place, bytes]] = []
            for i, record in enumerate(self.records):
                self.add(record + b"\n")
                if i % 3 == 2:  # some alone and some together
                    found += self._take(source, i + 1 - len(found))
            found += self._take(source, len(self.records) - len(found))
            assert [record for _, record in found] == list(self.records)
            assert source.poll(0.1) is None

    def test_what_was_there_before_comes_first(self) -> None:
        half = len(self.records) // 2
        self._add_all(self.records[:half])
        with _opened(self.make_source()) as source:
            first = self._take(source, half)
            self._add_all(self.records[half:])
            rest = self._take(source, len(self.records) - half)
        assert [record for _, record in first + rest] == list(self.records)

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

    def test_no_two_records_have_the_same_place(self) -> None:
        with _opened(self.make_source()) as source:
            places = []
            for record in self.records:
                self.add(record + b"\n")
                places += [json.dumps(place, sort_keys=True) for place, _ in self._take(source, 1)]
        assert len(set(places)) == len(self.records)

    # --- positions --------------------------------------------------------------------------------------------------

    def test_every_position_continues_with_exactly_the_remaining_records(self) -> None:
        seen: list[tuple[int, Position]] = []
        with _opened(self.make_source()) as source:
            placed: list[tuple[Place, bytes]] = []
            for i, record in enumerate(self.records):
                self.add(record + b"\n")
                while len(placed) <= i:
                    batch = self._next(source)
                    placed += _placed([batch])
                    seen.append((len(placed), _through_json(batch.end)))
        for count, position in seen:
            with _opened(self.make_source(), position) as source:
                assert self._take(source, len(placed) - count) == placed[count:]
                assert source.poll(0.0) is None

    def test_what_is_added_between_two_runs_is_read_by_the_second(self) -> None:
        position: Position | None = None
        found: list[bytes] = []
        for record in self.records:
            with _opened(self.make_source(), position) as source:
                if not found:  # a source need not exist before anything is in it
                    self.add(record + b"\n")
                batch = self._next(source)
                found += _records([batch])
                position = _through_json(batch.end)
            if len(found) < len(self.records):
                self.add(self.records[len(found)] + b"\n")
        assert found == list(self.records)

    def test_a_position_stays_what_it_was_while_reading_goes_on(self) -> None:
        with _opened(self.make_source()) as source:
            seen = []
            for record in self.records:
                self.add(record + b"\n")
                end = self._next(source).end
                seen.append((end, _through_json(end)))
        assert all(now == then for now, then in seen)

    # --- time -------------------------------------------------------------------------------------------------------

    def test_it_is_never_finished(self) -> None:
        with _opened(self.make_source()) as source:
            assert not source.finished
            for record in self.records:
                self.add(record + b"\n")
                self._take(source, 1)
                assert not source.finished
                assert source.progress() is None

    def test_a_poll_waits_as_long_as_it_may_and_sleeps_meanwhile(self) -> None:
        self.add(self.records[0] + b"\n")
        with _opened(self.make_source()) as source:
            self._take(source, 1)
            source.poll(0.0)
            for timeout in (0.0, 0.2):
                began, worked = time.monotonic(), time.thread_time()
                assert source.poll(timeout) is None
                assert timeout * 0.9 <= time.monotonic() - began < timeout + self.patience_seconds
                assert time.thread_time() - worked < 0.05 + timeout / 2

    def _add_all(self, records: Sequence[bytes]) -> None:
        for record in records:
            self.add(record + b"\n")

    def _next(self, source: Source) -> Batch:
        deadline = time.monotonic() + self.patience_seconds
        while time.monotonic() < deadline:
            batch = source.poll(0.1)
            if batch is not None:
                assert len(batch) > 0
                return batch
        raise AssertionError(f"{self.patience_seconds} seconds passed without a batch, and there is something to read")

    def _take(self, source: Source, count: int) -> list[tuple[Place, bytes]]:
        """The next `count` records, and no more."""
        found: list[tuple[Place, bytes]] = []
        while len(found) < count:
            found += _placed([self._next(source)])
        assert len(found) == count
        return found


@contextmanager
def _opened(source: Source, position: Position | None = None) -> Iterator[Source]:
    try:
        source.seek(position)
        deadline = time.monotonic() + PREPARE_SECONDS
        while not source.prepare(0.5):
            assert time.monotonic() < deadline, f"{PREPARE_SECONDS} seconds passed, and reading cannot begin"
        yield source
    finally:
        source.close()


def _batches(source: Source) -> Iterator[Batch]:
    """All batches up to the end."""
    waits = 0
    while not source.finished:
        batch = source.poll(0.1)
        if batch is None:
            waits += 1
            assert waits < PATIENCE, f"{PATIENCE} polls in a row gave nothing, and it is not finished"
        else:
            waits = 0
            yield batch


def _records(batches: Sequence[Batch]) -> list[bytes]:
    return [batch.record(i) for batch in batches for i in range(len(batch))]


def _placed(batches: Sequence[Batch]) -> list[tuple[Place, bytes]]:
    return [(batch.place(i), batch.record(i)) for batch in batches for i in range(len(batch))]


def _through_json(position: Position) -> Position:
    copy: Position = json.loads(json.dumps(position))
    return copy
