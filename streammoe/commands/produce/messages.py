"""Turn the records of a file into messages, which have no header and must name their values themselves."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from streammoe.errors import ConfigError, InvalidEvent
from streammoe.notation import BOOLEANS
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.decoders.values import seconds
from streammoe.ports import Batch, Message

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""Numbers as JSON writes them: such text is sent unchanged, to the last digit."""
_NUMBER_LIKE = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
"""Other notations in CSV files; but not with leading zeros, which identifiers have."""


class MessageConverter:
    """Converter of batches to messages.

    Args:
        form: ``json``: CSV records and table rows become JSON objects; ``raw``: lines are sent unchanged.
        key: field whose text becomes the key, if any.
        timestamp: field whose time becomes the timestamp, if any.
    """

    def __init__(self, *, form: str = "json", key: str | None = None, timestamp: str | None = None) -> None:
        self._raw = form == "raw"
        self._key = key
        self._timestamp = timestamp
        self.troubles: Counter[str] = Counter()
        """Number of records that were not sent as requested, by problem."""
        self.records = 0
        """Number of records up to the latest message."""
        self.too_long: list[int] = []
        """Numbers, from 1, of records that were too long to read and gave no message."""
        self._unseen = {f"--{name}": field for name, field in (("key", key), ("timestamp", timestamp)) if field}
        """Options whose field no record has had so far."""

    def from_batch(self, batch: Batch) -> Iterator[Message]:
        """Yield the messages of a batch, in order.

        A record that cannot be parsed is sent unchanged, without key and timestamp: its reader will reject it.

        Raises:
            ConfigError: table rows have no raw form; or the first file lacks the column of key or timestamp.
        """
        if not self.records:
            columns = batch.columns if batch.table is None else tuple(batch.table.schema.names)
            for option, field in self._unseen.items():
                if columns is not None and field not in columns:
                    raise ConfigError(
                        f"{option} {field!r}: {batch.origin} has no such column, nothing was sent; it has "
                        f"{', '.join(filter(None, columns))}"
                    )
        if batch.too_long:
            self.records += 1
            self.too_long.append(self.records)
            return
        for message in self._from_batch(batch):
            self.records += 1
            yield message

    def check_fields(self) -> None:
        """Check, at the end, that the fields of key and timestamp exist.

        Raises:
            ConfigError: no record has had one of them.
        """
        if self.records and self._unseen:
            raise ConfigError(
                *(
                    f"{option} {field!r}: none of the {self.records:,} records has this field, and they were sent "
                    "without it; correct its name"
                    for option, field in self._unseen.items()
                )
            )

    def _from_batch(self, batch: Batch) -> Iterator[Message]:
        if batch.table is not None:
            if self._raw:
                raise ConfigError("--format raw: a Parquet file has no lines; omit the option to send rows as JSON")
            for row in _rows(batch.table):
                yield self._message(row, _ENCODER.encode(row), text=False)
        elif batch.format == "csv":
            yield from self._from_csv(batch)
        else:
            yield from self._from_lines(batch)

    def _from_csv(self, batch: Batch) -> Iterator[Message]:
        names = decoder("csv").names
        for i in range(len(batch)):
            try:
                # An empty cell is a missing value, which is best left out in JSON.
                row = {name: str(value) for name, value in names(batch, i).items() if value != ""}
                value = batch.record(i) if self._raw else _ENCODER.encode({k: literal(v) for k, v in row.items()})
            except (InvalidEvent, UnicodeEncodeError):
                yield self._unchanged(batch.record(i))
            else:
                yield self._message(row, value, text=True)

    def _from_lines(self, batch: Batch) -> Iterator[Message]:
        for i in range(len(batch)):
            record = batch.record(i)
            if self._key is None and self._timestamp is None:
                yield Message(record)
                continue
            try:
                row = _DECODER.decode(record)
            except (msgspec.DecodeError, UnicodeDecodeError):
                row = None
            yield self._message(row, record, text=False) if isinstance(row, dict) else self._unchanged(record)

    def _unchanged(self, record: bytes) -> Message:
        self.troubles["that could not be parsed, sent unchanged"] += 1
        return Message(record)

    def _message(self, row: dict[str, Any], value: bytes, *, text: bool) -> Message:
        key, timestamp = None, None
        if self._key is not None:
            held = row.get(self._key)
            if held is None:
                self.troubles[f"without {self._key!r}, sent without key"] += 1
            else:
                self._unseen.pop("--key", None)
                key = held.encode() if isinstance(held, str) else _ENCODER.encode(held)
        if self._timestamp is not None:
            if row.get(self._timestamp) is not None:
                self._unseen.pop("--timestamp", None)
            try:
                at = seconds(self._timestamp, row.get(self._timestamp), text)
            except InvalidEvent:
                at = math.nan
            if at >= 0.0:
                timestamp = round(at * 1000.0)
            else:
                self.troubles[f"without a time since 1970 in {self._timestamp!r}, sent with the time of sending"] += 1
        return Message(value, key, timestamp)


def literal(text: str) -> Any:
    """Convert a CSV cell for JSON: numbers and booleans as such, everything else as text.

    >>> msgspec.json.encode([literal(cell) for cell in ("1.50", "+2", " .5", "007", "True", "nan", "a")])
    b'[1.50,2.0,0.5,"007",true,"nan","a"]'
    """
    if _NUMBER.fullmatch(text):
        return msgspec.Raw(text.encode())
    if text.lower() in BOOLEANS:
        return text.lower() == "true"
    bare = text.strip(" \t")
    if _NUMBER_LIKE.fullmatch(bare) and math.isfinite(float(bare)):
        return msgspec.Raw(bare.encode()) if _NUMBER.fullmatch(bare) else float(bare)
    return text


# --- rows of tables --------------------------------------------------------------------------------------------------


_ENCODER = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
_DECODER = msgspec.json.Decoder()


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    """Yield rows without null values."""
    names = table.schema.names
    for values in zip(*(_values(table.column(j)) for j in range(len(names))), strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _values(column: Any) -> list[Any]:
    """Convert a column's values to types that JSON has; ``None`` for null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _values(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        utc = column.cast(pa.timestamp(kind.unit)) if kind.tz else column  # exact, and without the time zone database
        return [None if text is None else f"{text}Z" for text in utc.cast(pa.string()).to_pylist()]
    if pa.types.is_date(kind):
        return list(column.cast(pa.date32()).cast(pa.string()).to_pylist())
    try:
        values = list(column.to_pylist())
    except (ValueError, LookupError, UnicodeDecodeError):
        return [f"a value of type {kind}" if value.is_valid else None for value in column]
    if pa.types.is_floating(kind) and not np.isfinite(column.to_numpy(zero_copy_only=False)).all():
        # As text: JSON has no such numbers, and null would mean that the value is missing.
        return [value if value is None or math.isfinite(value) else str(value) for value in values]
    return values
