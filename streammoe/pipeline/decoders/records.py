"""Records as texts, and the error for those that cannot be parsed."""

from __future__ import annotations

from streammoe.errors import InvalidEvent
from streammoe.ports import Batch
from streammoe.text import shown


def is_utf8(data: bytes) -> bool:
    """Whether `data` is well-formed UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def readable(batch: Batch, i: int) -> bytes:
    """Return the i-th record of `batch`; raise `InvalidEvent` if the source could not decode it."""
    if i in batch.unreadable:
        reason, detail, _ = batch.unreadable[i]
        raise InvalidEvent(detail, reason=reason)
    return batch.record(i)


_NOT_UTF8 = 'must be UTF-8, and byte {} is not; name the encoding of files by source.encoding, such as "latin-1"'


def text_of(record: bytes) -> str:
    """Decode a record as UTF-8; raise `InvalidEvent` if it is not."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise malformed(record, _NOT_UTF8.format(error.start)) from None


def malformed(record: str | bytes, rule: str) -> InvalidEvent:
    """Return the error for a record that cannot be parsed."""
    return InvalidEvent(f"record {shown(record)} {rule}", reason="malformed")
