"""Records that are nothing but numbers between the same texts: decoded by one kernel, whatever their format.

Of what it reads, the exact path of the format would say the same; all else it leaves to others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from streammoe.kernels.decimals import powers_of_ten, read_rows
from streammoe.pipeline.decoders.rows import Sheet
from streammoe.ports import Batch
from streammoe.types import AnyArray, BoolArray

_MEMBER = re.compile(rb'([ \t]*[{,][ \t]*"([^"\\\x00-\x1f]*)"[ \t]*:[ \t]*)(?:-?[0-9][^ \t,}]*|null)')
_END = re.compile(rb"[ \t]*\}[ \t]*\r?\n?")
_LINE_END = re.compile(rb"\r?\n?\Z")


class Pattern(NamedTuple):
    """What records have in common."""

    texts: Sequence[bytes]
    """Before, between and after their numbers."""
    names: Sequence[str]
    """Of the numbers, all different."""
    takes_null: bool
    """Whether a missing number is ``null``, or else nothing."""


def csv_pattern(batch: Batch, header: Sequence[str]) -> Pattern | None:
    """Return the pattern of csv records of numbers that end as the first one does, if they can have one."""
    if not len(batch) or batch.decimal != ".":
        return None
    end = _LINE_END.search(batch.block, 0, int(batch.ends[0]))
    if not end or not end.group():
        return None
    mark = batch.delimiter.encode()
    width = batch.block.count(mark, 0, end.start()) + 1
    texts, names, text = [], [], b""
    for j, name in enumerate([*header, *[""] * width][:width]):
        text += mark if j else b""
        if name:  # columns without one hold nothing
            texts.append(text)
            names.append(name)
            text = b""
    if not names or len(set(names)) != len(names) or width == 1 < len(header):
        return None
    return Pattern([*texts, text + end.group()], names, takes_null=False)


def json_pattern(batch: Batch) -> Pattern | None:
    """Return the pattern of the first record, if it is an object of numbers and nulls with a plain name for each."""
    record = batch.block[: int(batch.ends[0])] if len(batch) else b""
    texts: list[bytes] = []
    names: list[str] = []
    at = 0
    while match := _MEMBER.match(record, at):
        text, name = match.group(1, 2)
        if (b"{" in text[: match.start(2) - at]) != (not texts):
            return None
        try:
            names.append(name.decode())
        except UnicodeDecodeError:
            return None
        texts.append(text)
        at = match.end()
    if not texts or not _END.fullmatch(record, at) or len(set(names)) != len(names):
        return None
    return Pattern([*texts, record[at:]], names, takes_null=True)


def fill(sheet: Sheet, batch: Batch, pattern: Pattern | None) -> BoolArray:
    """Store the numbers of records that follow a pattern; return which ones do, (n,), none if the first does not."""
    columns = {slot.name: j for j, slot in enumerate(sheet.slots)}
    if pattern is None or len(columns) != len(sheet.slots) or any(slot.kind != "number" for slot in sheet.slots):
        return np.zeros(len(batch), np.bool_)
    arguments = (
        np.frombuffer(b"".join(pattern.texts), np.uint8),
        np.fromiter(accumulate(map(len, pattern.texts)), np.int64, len(pattern.texts)),
        np.array([columns.get(name, -1) for name in pattern.names], np.int64),
        pattern.takes_null,
        _powers(),
    )
    octets = np.frombuffer(batch.block, np.uint8)
    ends = np.ascontiguousarray(batch.ends, np.int64)
    if not read_rows(octets, ends[:1], *arguments, sheet.numbers)[0]:
        return np.zeros(len(batch), np.bool_)
    is_read = read_rows(octets, ends, *arguments, sheet.numbers)
    sheet.check_rows(0, len(batch))
    return is_read


@cache
def _powers() -> AnyArray:
    return powers_of_ten()
