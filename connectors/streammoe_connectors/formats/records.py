"""Split a stream of bytes into records.

Where a record ends depends only on the bytes from its beginning on, not on block boundaries, on where reading resumes,
or on pauses of the writer. So a restart resumes with exactly the remaining records, and a compressed or growing file
holds the same records as a plain one.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

import numpy as np

from streammoe.errors import SourceError
from streammoe.ports import INDEX_NAMES, Batch, Location, Locations, Unreadable
from streammoe.text import counted, cut, shown
from streammoe.types import IntArray
from streammoe_connectors.formats.events import events_of, numbered, packed
from streammoe_connectors.formats.texts import TextSettings

_LOGGER = logging.getLogger("streammoe.source")
_UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # those of UTF-32 contain them


class Stream(Protocol):
    """A stream of bytes."""

    at_eof: bool
    """Whether the end has been reached; possibly known only after a read that returned nothing."""
    raw_bytes: int
    """Bytes read so far, before they were decompressed."""

    def read(self, count: int) -> bytes:
        """Read at most `count` bytes; none only if there are no more, or no more for now.

        Raises:
            SourceError: reading failed. Bytes read before remain valid, and the next read fails in the same way.
        """
        ...

    def skip(self, count: int) -> int:
        """Skip at most `count` bytes and return how many; 0 only if there are no more."""
        ...


_LF = ord("\n")
_LINE = re.compile(rb"[^\n]*+\n?")
_QUOTED = re.compile(rb'[^"\n]*+(?:"[^"]*+"[^"\n]*+)*+\n?')


class RecordReader:
    """A reader of batches of whole records from a stream.

    A csv stream begins with a header that names the columns, unless their names are given; a name that is blank stands
    for a column without one. A byte order mark at the beginning is skipped. Lines of only white space and
    repetitions of the header are not records; they are counted in `Batch.skipped`. Batches are in UTF-8, whatever the
    encoding of the stream.

    In csv a line end inside quotes belongs to the record. A stray quote cannot swallow the stream: a record without an
    end within `max_record_bytes` (or before the end of the stream) is cut at its first line end, for the decoder to
    reject. If there is no line end within `max_record_bytes` either, the beginning of the record becomes a batch marked
    as too long, and the rest of the line is skipped.

    Args:
        stream: read from its beginning.
        settings: how it is written, and in which parts to read it.
        name: of the stream, for messages.
        format: ``csv`` or ``jsonl``.
        start: where the first record to return begins; the `offset` of an earlier reader, or 0.
        location: common part of all locations, to which each record adds its ``offset``.
    """

    def __init__(
        self,
        stream: Stream,
        settings: TextSettings,
        *,
        name: str,
        format: str,
        start: int,
        location: Location,
    ) -> None:
        self.offset = 0
        """Where the next record begins."""
        self.exhausted = False
        """Whether the stream has ended and all of it was returned."""
        self.needs_more_data = False
        """Whether the stream has to grow before the next record; valid after `next` returned nothing."""
        self._stream = stream
        self._name = name
        self._format = format
        self._start = start
        self._location = location
        self._settings = settings
        self._limit = settings.max_record_bytes
        self._columns = tuple(settings.header) if format == "csv" and settings.header is not True else None
        self._header = b""  # without its line end
        self._buffer = b""  # from `offset` on
        self._lines_to_skip = settings.skip_lines  # or the rest of a record that was too long
        self._has_records = start > 0
        self._preparations: list[Callable[[], bool]] = [self._skip_bom, self._skip_lines, self._read_header]
        self._preparations.append(self._go_to_start)

    def next(self) -> Batch | None:
        """Return the next batch, without its `end`; ``None`` if there is none, or none yet.

        A batch of only blank lines, or for a header without records, holds no records.

        Raises:
            SourceError: reading failed, after all complete records before were returned; or the header is invalid.
        """
        batch = self._next()
        self._has_records |= batch is not None and len(batch) > 0
        if not self.exhausted or self._has_records:
            return batch
        what = "not even a header" if self._format == "csv" and self._columns is None else "no record"
        n = self._settings.skip_lines
        after = f" after the {counted(n, 'line')} that source.skip_lines leaves out" if n else ""
        _LOGGER.warning("%s is empty: it holds %s%s", self._name, what, after)
        if batch is None and self._columns is not None:
            return Batch(b"", np.empty(0, np.int64), self._format, self._columns, self._name, (), {})
        return batch

    def _next(self) -> Batch | None:
        self.needs_more_data = False
        while self._preparations:
            if not self._preparations[0]():
                return None
            del self._preparations[0]
        if self._lines_to_skip:
            self._skip_lines()
            return None
        ends = self._read_record_ends()
        chunk, at_eof = self._buffer, self._stream.at_eof
        # The first piece of a record without a line end within the limit becomes a batch of its own, to be rejected;
        # the rest would look like records, so it is skipped.
        is_cut = ends.size > 0 and chunk[int(ends[-1]) - 1] != _LF and not (at_eof and ends[-1] == len(chunk))
        too_long = is_cut and ends.size == 1
        if is_cut and not too_long:
            ends = ends[:-1]
        offset, stop = self.offset, int(ends[-1]) if ends.size else 0
        self._lines_to_skip = int(too_long)
        self._discard(stop)
        self.exhausted = at_eof and stop == len(chunk)
        if not stop:
            return None
        block, ends, starts, blank = (
            (chunk[:stop], ends, np.zeros(1, np.int64), 0)
            if too_long
            else _without_blank_lines(chunk, ends, self._header)
        )
        batch = Batch(
            block=block,
            ends=ends,
            format=self._format,
            columns=self._columns,
            origin=self._name,
            locations=Locations(self._location, {"offset": starts + offset}),
            end={},
            skipped=blank,
            too_long=too_long,
            delimiter=self._settings.delimiter,
            decimal=self._settings.decimal,
        )
        return batch if too_long else _with_events(batch, self._settings)

    @property
    def raw_bytes(self) -> int:
        """Bytes on disk read so far."""
        return self._stream.raw_bytes

    # --- before the first record ------------------------------------------------------------------------------------

    def _skip_bom(self) -> bool:
        self._fill(len(codecs.BOM_UTF8))
        if self._buffer.startswith(_UTF16_BOMS):
            raise SourceError(
                f"{self._name} begins with the byte order mark of UTF-16 or UTF-32; records must be in UTF-8, so "
                "convert it, such as with iconv -f UTF-16 -t UTF-8"
            )
        if self._buffer == codecs.BOM_UTF8:
            if self._settings.encoding != "utf-8":
                raise SourceError(
                    f"{self._name} begins with the byte order mark of UTF-8, and source.encoding is "
                    f"{self._settings.encoding}; leave that setting out"
                )
            self._discard(len(self._buffer))
            return True
        self.needs_more_data = codecs.BOM_UTF8.startswith(self._buffer) and not self._stream.at_eof
        return not self.needs_more_data

    def _skip_lines(self) -> bool:
        """Skip lines, whatever quotes they hold, as far as they are there; return whether that is all.

        The rest of a record that was too long is one: without its beginning it is unknown whether quotes are open, and
        the following records must not be skipped with it.
        """
        if self._lines_to_skip and self._buffer.find(b"\n") < 0:
            self._discard(len(self._buffer))
            self._fill(self._settings.block_bytes)
        end = 0
        while self._lines_to_skip and (line_end := self._buffer.find(b"\n", end) + 1):
            end, self._lines_to_skip = line_end, self._lines_to_skip - 1
        self.needs_more_data = self._lines_to_skip > 0 and not self._buffer and not self._stream.at_eof
        self._discard(len(self._buffer) if self._lines_to_skip else end)
        self.exhausted = self._stream.at_eof and not self._buffer
        return not self._lines_to_skip

    def _read_header(self) -> bool:
        """Read the header; blank lines may precede it."""
        if self._format != "csv" or self._columns is not None:
            return True
        ends = self._read_record_ends()
        if not ends.size:
            if self._stream.at_eof:
                self.exhausted = True
            return False
        lines, line_ends, starts, _ = _without_blank_lines(self._buffer, ends, b"")
        if not starts.size:
            self._discard(int(ends[-1]))
            return False
        header = lines[: int(line_ends[0])]
        stop = int(starts[0]) + len(header)
        if not header.endswith(b"\n") and not (self._stream.at_eof and stop == len(self._buffer)):
            raise SourceError(
                f"{self._name} has a header longer than source.max_record_bytes = {self._limit}; raise that setting, "
                "or correct the header"
            )
        self._columns = _column_names(self._name, header, self._settings)
        self._header = header.rstrip(b"\r\n")
        self._discard(stop)
        return True

    def _go_to_start(self) -> bool:
        """Go to the start, and detect whether it is inside a record that was too long: not right after a line end."""
        before = self._start - 1
        if before < self.offset:
            return True
        if before >= self.offset + len(self._buffer):
            self.offset += len(self._buffer)
            self._buffer = b""
            self.offset += self._stream.skip(before - self.offset)
            if self.offset < before and not self._stream.at_eof:
                return False
        else:
            self._discard(before - self.offset)
        self._fill(1)
        if self.offset < before or not self._buffer:
            raise SourceError(
                f"{self._name} was truncated: it has {self.offset + len(self._buffer)} bytes, but {self._start} had "
                "been read; restore it, or start with a fresh checkpoint folder"
            )
        self._lines_to_skip = int(not self._buffer.startswith(b"\n"))
        self._discard(1)
        return True

    # --- reading ----------------------------------------------------------------------------------------------------

    def _discard(self, count: int) -> None:
        """Remove the first `count` bytes from the buffer."""
        self._buffer = self._buffer[count:]
        self.offset += count

    def _fill(self, count: int) -> None:
        """Read until the buffer holds `count` bytes, or there are no more for now."""
        pieces = [self._buffer]
        missing = count - len(self._buffer)
        try:
            while missing > 0 and (piece := self._stream.read(missing)):
                pieces.append(piece)
                missing -= len(piece)
        finally:
            if len(pieces) > 1:
                self._buffer = b"".join(pieces)

    def _read_record_ends(self) -> IntArray:
        """Read and return the ends of the records in the buffer: at least one, unless there are no more for now."""
        n_wanted = self._settings.block_bytes
        while True:
            failure = None
            try:
                self._fill(n_wanted + 1)  # one more, to know whether the stream continues
            except SourceError as error:
                failure = error
            at_eof = self._stream.at_eof and failure is None
            quoted = self._format == "csv"
            ends = record_ends(self._buffer, self._limit, quoted=quoted, at_eof=at_eof)
            if failure is not None and not ends.size:
                raise failure
            if ends.size or at_eof or len(self._buffer) <= n_wanted:
                self.needs_more_data = not ends.size and not at_eof
                return ends
            n_wanted = min(2 * n_wanted, max(n_wanted, self._limit))


def record_ends(chunk: bytes, limit: int, *, quoted: bool, at_eof: bool) -> IntArray:
    """Find the ends of the complete records in `chunk`.

    Args:
        chunk: begins with a record; an incomplete record at the end is left for the next chunk.
        limit: length at which records are cut. With more bytes, or with `at_eof`, there is at least one complete
            record. One without a line end within this length is the last that is found.
        quoted: whether a line end inside quotes is part of the record.
        at_eof: whether the stream ends with this chunk, which then ends a line.
    """
    octets = np.frombuffer(chunk, np.uint8)
    lines: IntArray = np.flatnonzero(octets == _LF) + 1
    if at_eof and chunk and not chunk.endswith(b"\n"):
        lines = np.append(lines, len(chunk))
    quotes = np.flatnonzero(octets == ord('"')) if quoted and b'"' in chunk else np.empty(0, np.int64)
    regular: IntArray = lines[np.searchsorted(quotes, lines) % 2 == 0]
    rest = len(chunk) - (int(regular[-1]) if regular.size else 0)
    if np.diff(regular, prepend=0).max(initial=0) <= limit and rest <= (0 if at_eof else limit):
        return regular
    ends, start, size, match = [], 0, len(chunk), (_QUOTED if quotes.size else _LINE).match
    while start < size:
        found = match(chunk, start, start + limit)
        end = found.end() if found else start
        if end == start or (chunk[end - 1] != _LF and not (at_eof and end == size)):
            if size - start <= limit and not at_eof:
                break
            end = chunk.find(b"\n", start, start + limit) + 1
            if not end:
                ends.append(min(start + limit, size))
                break
        ends.append(end)
        start = end
    return np.array(ends, np.int64)


def csv_lines(value: bytes) -> list[bytes]:
    """Return the records of csv in a text, without their line ends; the text itself if it is blank."""
    ends = record_ends(value, len(value), quoted=True, at_eof=True).tolist()
    found = [value[start:stop].rstrip(b"\r\n") for start, stop in pairwise([0, *ends])]
    return [line for line in found if line.strip()] or [value]


def _without_blank_lines(chunk: bytes, ends: IntArray, header: bytes) -> tuple[bytes, IntArray, IntArray, int]:
    """Return the block of records with content, their ends, their starts in `chunk`, and how many others there were.

    Those are blank, or the header once more.
    """
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    octets = np.frombuffer(chunk, np.uint8)[: ends[-1]]
    doubtful = octets[starts] <= ord(" ")
    if header:
        doubtful |= octets[starts] == header[0]
    keep = np.ones(len(ends), np.bool_)
    for i in np.flatnonzero(doubtful).tolist():
        record = chunk[starts[i] : ends[i]]
        keep[i] = not (record.isspace() or (header and record.rstrip(b"\r\n") == header))
    if keep.all():
        return chunk[: ends[-1]], ends, starts, 0
    lengths = ends - starts
    block = octets[np.repeat(keep, lengths)].tobytes()
    return block, np.cumsum(lengths[keep]), starts[keep], int(np.count_nonzero(~keep))


def _with_events(batch: Batch, settings: TextSettings) -> Batch:
    """Convert records to UTF-8, and replace them by the events that they hold; those that cannot be are unreadable."""
    starts = np.concatenate([[0], batch.ends[:-1]])[: len(batch)]
    first = np.frombuffer(batch.block, np.uint8)[starts]
    holds_many = batch.format == "jsonl" and bool(settings.record or ((first == ord("[")) | (first <= ord(" "))).any())
    if not holds_many and (settings.encoding == "utf-8" or batch.block.isascii()):
        return batch
    values, rejected = [batch.record(i) for i in range(len(batch))], {}
    for i, record in enumerate(values if settings.encoding != "utf-8" else ()):
        try:
            values[i] = record.decode(settings.encoding).encode()
        except UnicodeDecodeError as error:
            rule = f"must be in {settings.encoding}, as source.encoding says; byte {error.start} is not"
            rejected[i] = Unreadable("malformed", f"record {shown(record)} {rule}", record)
    events = events_of(values, settings.record or () if holds_many else None, rejected=rejected)
    block, ends = packed(events.values, events.rejected, batch.format)
    return replace(
        batch,
        block=block,
        ends=ends,
        locations=numbered(batch.locations_at(np.array(events.records, np.int64)), events.numbers),
        unreadable=events.rejected,
        skipped=batch.skipped + events.skipped,
    )


def _column_names(path: str, header: bytes, settings: TextSettings) -> tuple[str, ...]:
    """Return the names in a header, without blanks around them; an empty one for each column without a name.

    Only a first one is called as in pandas, which writes the index of a data frame there.
    """
    advice = (
        "the first line of a csv file must name its columns, with distinct names; others before it are left out by "
        "source.skip_lines"
    )
    try:
        rows = io.StringIO(header.rstrip(b"\r\n").decode(settings.encoding), newline="")
        lines = list(csv.reader(rows, delimiter=settings.delimiter, skipinitialspace=True, strict=True))
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{path} has a header that is not in {settings.encoding} (byte {error.start}); name the encoding of the "
            'file by source.encoding, such as "latin-1"'
        ) from error
    except csv.Error as error:
        raise SourceError(f"{path} has a header that cannot be read ({error}); {advice}") from error
    names = tuple(name.strip() for line in lines for name in line)
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    problem = ""
    if b"\0" in header:
        problem = "NUL bytes in its header: convert UTF-16, such as with iconv -f UTF-16 -t UTF-8"
    elif len(lines) > 1:
        problem = (
            f"a carriage return in its header after column {len(lines[0])}, {shown(lines[0][-1])}: convert line ends "
            "of old Macs, such as with tr '\\r' '\\n', or quote the name"
        )
    elif not any(names):
        problem = "a header without a single column name"
    elif repeated:
        apart = [
            each if names.index(each) == i and each else f"{each or 'column'}_{i + 1}" for i, each in enumerate(names)
        ]
        problem = (
            f"duplicate column names, {', '.join(map(repr, repeated))}: set source.header to "
            f"{cut(json.dumps(apart, ensure_ascii=False))} and source.skip_lines to {settings.skip_lines + 1}"
        )
    if problem:
        raise SourceError(f"{path} has {problem}; {advice}")
    unused = (name for name in INDEX_NAMES if name not in names)
    return (names[0] or next(unused, ""), *names[1:])
