"""Join of features with labels that arrive later.

A stage between source and pipeline. The outcome of a record depends only on the records before it, so batches may be
cut anywhere, and a restart resumes with the buffer from the checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, is_count, require
from streammoe.columns.values import MAX_TEXT_LENGTH, category
from streammoe.engine.interruption import FitCancelled, uncancellable
from streammoe.errors import InvalidEvent, SourceError
from streammoe.notation import VERBATIM
from streammoe.pipeline.decoders.jsonl import is_for_parser, object_of
from streammoe.pipeline.pipeline import BatchResult, Pipeline, joined_results
from streammoe.pipeline.schema import Schema
from streammoe.ports import EXPIRED, Batch, DeadLetter, Headers, Location, Unreadable, enveloped
from streammoe.settings import Labels
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

LOGGER = logging.getLogger("streammoe.joining")
NO_KEY = "no_key"
"""Reason for rejecting a record that cannot be joined."""
JOIN = "join"
"""Stage of dead letters of records that waited in vain."""


@dataclass(slots=True)
class _WaitingRecord:
    """A record that waits for its other half."""

    key: str
    record: bytes
    is_label: bool
    location: bytes
    """As JSON, to spare the garbage collector and checkpoints an object per record."""
    record_key: bytes | None
    """The key of the record in the source."""
    headers: Headers
    """Its headers there."""
    number: int
    """Number of the record, counted over the whole stream."""
    time: int
    """Stream time when it arrived."""
    rejected: bool = False
    """Whether the pipeline has rejected it, so that it is already counted."""
    lags: FloatArray | None = None
    """The lags that it was predicted with, see `Batch.lags`."""


class _Half(NamedTuple):
    """A record as the join reads it."""

    fields: Mapping[str, msgspec.Raw]
    is_label: bool
    """Whether there is a target."""
    key: str | None
    problem: Unreadable | None = None
    """Why there is no key, if there is none."""


class LabelJoin:
    """A join of features with labels that arrive later, or earlier, under the same key.

    Features, that is, records with the key and without a target, pass unchanged so that they are predicted on arrival;
    the label completes the event that is learned. The event has the location of the features. If both records hold a
    field, the value of the features wins, since it was known at the time of the prediction; except for targets and
    weight.

    The buffer is bounded: beyond the limits in the settings the oldest record expires. Time is the largest timestamp of
    any record so far, never wall-clock time, so that replays give the same result.

    Args:
        settings: the section ``[labels]`` with a key; an attribute that may be set, except for its key.
        schema: the roles of the other fields.
        n_lags: number of lags that a prediction sees; its event is learned with the same ones.
    """

    def __init__(self, settings: Labels, schema: Schema, n_lags: int = 0) -> None:
        self.settings = settings
        self._key = key = str(settings.key)
        self._n_lags = n_lags
        self._others = {key, *schema.others}
        self._features = None if schema.features is None else set(schema.features) - {key}
        self._targets = schema.targets
        self._label_fields = {*schema.targets, *((schema.weight,) if schema.weight else ())}
        self._waiting: OrderedDict[str, _WaitingRecord] = OrderedDict()  # by key, the oldest first
        self._seen = 0  # records so far
        self._now = _UNKNOWN  # stream time in milliseconds
        self._rejected = 0  # number of waiting records that have been rejected
        self._passed: list[tuple[int, _WaitingRecord]] = []
        """Features that passed in the latest batch, each with its index in the joined batch."""
        self._expired: list[tuple[int, _WaitingRecord, str]] = []
        """Those that expired in the latest batch, after so many records of the joined one, and why."""
        self._n_passed = 0  # records of the latest joined batch so far
        self._warned = False
        self._n_taken = 0  # records of the latest batch that were joined

    @property
    def pending(self) -> int:
        """Number of events that wait for their other half, without rejected ones."""
        return len(self._waiting) - self._rejected

    def process(self, batch: Batch, pipeline: Pipeline) -> BatchResult:
        """Have a pipeline learn the events of a batch, and count them.

        Raises:
            FitCancelled: a stop was requested during a fit; everything is as it was before the batch.
        """
        before = vars(self) | {"_waiting": self._waiting.copy()} if pipeline.may_fit else {}
        if before and self._now == _UNKNOWN:  # the first timestamp will be set on all waiting records
            before["_waiting"] = OrderedDict((key, replace(each)) for key, each in self._waiting.items())
        results: list[BatchResult] = []
        try:
            for part in self.parts(batch):
                # Only the first part can be given up as if the batch had never come.
                with uncancellable() if results else nullcontext():
                    results.append(self.settle(pipeline.process(part)))
        except FitCancelled:
            vars(self).update(before)
            raise
        return joined_results(results)

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the events of a batch, in one part unless there are lags; call `settle` before the next part.

        Which lags a prediction sees is known once its part was processed. A label whose features have passed in a part
        therefore begins the next one.
        """
        part, first = batch, 0
        while True:
            yield self.join(part)
            first += self._n_taken
            if first == len(batch):
                return
            part = replace(batch.tail(first), skipped=0)  # of the whole batch: a tail of a tail keeps both in memory

    def join(self, batch: Batch) -> Batch:
        """Return the events of a batch, maybe none; call `settle` before the next batch. With lags, see `parts`.

        Raises:
            SourceError: the records are not JSON Lines.
        """
        if batch.format != "jsonl":
            message = (
                f"{batch.origin} holds {batch.format}, and labels.key = {self._key!r} joins only JSON Lines; "
                "convert it, or remove labels.key if features and target come in the same record"
            )
            raise SourceError(message)
        if batch.timestamps is None and self.settings.expire_seconds is not None and not self._warned:
            self._warned = True
            LOGGER.warning(
                "%s: records have no timestamps, so labels.expire_seconds has no effect; set labels.expire_events",
                batch.origin,
            )
        self._passed, self._expired, self._n_passed = [], [], 0
        self._n_taken = len(batch)
        if batch.too_long:
            self._advance_time(_UNKNOWN if batch.timestamps is None else int(batch.timestamps[0]))
            return batch
        return self._join_records(batch)

    def settle(self, processed: BatchResult) -> BatchResult:
        """Count events instead of records, after the pipeline has processed the latest batch.

        Waiting features count as `pending` and not as predicted only. Rejected ones count as rejected, and neither as
        pending nor later as expired; an event that they become part of counts separately. Expired ones are added to the
        letters, if wanted.
        """
        rejected = [waiting for at, waiting in self._passed if processed.bad[at]]
        for waiting in rejected:
            waiting.rejected = True
            self._rejected += self._waiting.get(waiting.key) is waiting
        for at, waiting in self._passed:
            waiting.lags = processed.lags.get(at)
        outcomes = processed.outcomes.copy()
        outcomes["predicted_only"] -= len(self._passed) - len(rejected)
        expired = [each for each in self._expired if not each[1].rejected]
        outcomes["expired"] = len(expired)
        letters = processed.letters
        if self.settings.keep_expired and expired:
            # In the order of the stream, wherever it was cut: before the record at which they expired.
            kept = [(before, 0, self._letter(waiting, why)) for before, waiting, why in expired]
            kept += [(at, 1, own) for at, own in zip(np.flatnonzero(processed.bad).tolist(), letters, strict=True)]
            letters = [letter for *_, letter in sorted(kept, key=lambda each: each[:2])]
        self._passed, self._expired = [], []
        return processed._replace(outcomes=outcomes, letters=letters)

    def arrays(self) -> dict[str, AnyArray]:
        """Return the buffer as arrays for a checkpoint."""
        waiting = self._waiting.values()
        learned = [
            (each.record, each.number, each.time, None if each.lags is None else each.lags.tolist()) for each in waiting
        ]
        origins = [(each.location, each.record_key, each.headers) for each in waiting]
        return {
            "labels.clock": np.array([self._seen, self._now], np.int64),
            "labels.waiting": np.frombuffer(msgspec.msgpack.encode(learned), np.uint8),
            "labels.origins": np.frombuffer(msgspec.msgpack.encode(origins), np.uint8),
            "labels.refused": np.array([each.rejected for each in waiting], np.bool_),
        }

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """Restore the result of `arrays` into a new join with the same key and schema.

        Call within `streammoe.checked.restoring`.
        """
        self._seen, self._now = array_of(arrays, "labels.clock", "int64", (2,), least=_UNKNOWN).tolist()
        require(is_count(self._seen), f"array labels.clock counts {self._seen} records")
        learned = _LEARNED.decode(array_of(arrays, "labels.waiting", "uint8", (None,)).tobytes())
        origins = _ORIGINS.decode(array_of(arrays, "labels.origins", "uint8", (None,)).tobytes())
        refused = array_of(arrays, "labels.refused", "bool", (len(learned),)).tolist()
        for (record, number, time, lags), origin, is_refused in zip(learned, origins, refused, strict=True):
            _LOCATION.decode(origin[0])
            half = self._read(record)
            is_sound = half.key not in {None, *self._waiting} and (lags is None or len(lags) == self._n_lags)
            require(is_sound, f"labels.waiting holds {shown(record)} without a key of its own, or with other lags")
            waiting = _WaitingRecord(str(half.key), record, half.is_label, *origin, number, time, is_refused)
            waiting.lags = None if lags is None else np.array(lags)
            self._waiting[waiting.key] = waiting
            self._rejected += is_refused

    def _join_records(self, batch: Batch) -> Batch:
        joined: list[_Joined] = []
        times = None if batch.timestamps is None else batch.timestamps.tolist()
        first = self._seen
        for i, (start, stop) in enumerate(pairwise([0, *batch.ends.tolist()])):
            record, half = batch.block[start:stop], None
            if i not in batch.unreadable:
                with suppress(InvalidEvent):
                    half = self._read(record)
            if self._n_lags and half is not None and self._completes(half, after=first):
                self._n_taken = i
                break
            self._n_passed = len(joined)
            self._advance_time(_UNKNOWN if times is None else times[i])
            if half is not None:
                joined += self._join_half(batch, i, record, half)
            else:  # the decoder will reject it with the reason
                joined.append(_Joined(i, record, unreadable=batch.unreadable.get(i)))
        return _joined_batch(batch, joined)

    def _join_half(self, batch: Batch, i: int, record: bytes, half: _Half) -> Iterator[_Joined]:
        """Yield what the i-th record passes on: itself, or the event that it completes; nothing if it is to wait."""
        fields, is_label, key, problem = half
        has_features = self._has_features(fields)
        if key is None:
            is_event = is_label and has_features
            yield _Joined(i, record, unreadable=None if is_event else problem)
            return
        other = self._waiting.get(key)
        if other is not None and other.is_label != is_label:
            self._remove(other)
            theirs = _fields(other.record)
            yield (
                _Joined(i, self._event(theirs, fields), other) if is_label else _Joined(i, self._event(fields, theirs))
            )
            return
        if has_features if is_label else other is not None and not has_features:
            yield _Joined(i, record)  # the latter such as a label without a value yet; it must not replace features
            return
        waiting = _WaitingRecord(
            key,
            record.rstrip(b"\r\n"),
            is_label,
            msgspec.json.encode(batch.location(i)),
            None if batch.keys is None else batch.keys[i],
            () if batch.headers is None else batch.headers[i],
            self._seen,
            self._now,
        )
        self._buffer(waiting, other)
        if not is_label:
            self._passed.append((self._n_passed, waiting))
            yield _Joined(i, record)

    def _completes(self, half: _Half, *, after: int) -> bool:
        """Whether a record is the label of waiting features that came after the first so many records."""
        other = None if half.key is None else self._waiting.get(half.key)
        return half.is_label and other is not None and not other.is_label and other.number > after

    def _advance_time(self, time: int) -> None:
        """Advance the stream by one record with its timestamp, and expire records that have waited too long."""
        self._seen += 1
        if time > self._now:
            if self._now == _UNKNOWN:
                for each in self._waiting.values():
                    each.time = time
            self._now = time
        events, seconds = self.settings.expire_events, self.settings.expire_seconds
        while (events is not None or seconds is not None) and self._waiting:
            oldest = next(iter(self._waiting.values()))
            if events is not None and self._seen - oldest.number > events:
                self._expire(oldest, f"labels.expire_events = {events} records have passed")
            elif seconds is not None and self._now - oldest.time > 1e3 * seconds:
                self._expire(oldest, f"labels.expire_seconds = {seconds:g} have passed, by timestamps")
            else:
                return

    def _buffer(self, waiting: _WaitingRecord, before: _WaitingRecord | None) -> None:
        """Add a record to the buffer; it replaces an earlier half of the same kind."""
        if before is not None:
            self._expire(before, "another record of its kind has come under that key")
        self._waiting[waiting.key] = waiting
        while len(self._waiting) > self.settings.max_pending:
            why = f"labels.max_pending = {self.settings.max_pending} others wait that came later"
            self._expire(next(iter(self._waiting.values())), why)

    def _remove(self, waiting: _WaitingRecord) -> None:
        del self._waiting[waiting.key]
        self._rejected -= waiting.rejected

    def _expire(self, waiting: _WaitingRecord, why: str) -> None:
        self._remove(waiting)
        self._expired.append((self._n_passed, waiting, why))

    def _letter(self, waiting: _WaitingRecord, why: str) -> DeadLetter:
        """Return the dead letter of a record, which no decoder is named for since it is half of an event."""
        half, other = ("a label", "features") if waiting.is_label else ("features", "their label")
        detail = f"{half} with {self._key} = {shown(waiting.key)} waited in vain for {other}: {why}"
        letter = DeadLetter(_LOCATION.decode(waiting.location), JOIN, EXPIRED, detail, waiting.record)
        return enveloped(letter, waiting.record_key, waiting.headers)

    def _read(self, record: bytes) -> _Half:
        """Read a record.

        Raises:
            InvalidEvent: it is malformed.
        """
        fields = _fields(record)
        is_label = any(fields.get(target, _NULL) not in _MISSING for target in self._targets)
        raw = fields.get(self._key, _NULL)
        try:
            value = _KEY.decode(raw)
        except msgspec.MsgspecError:  # the exact path accepts it or gives the reason
            value = object_of(b'{"":%s}' % raw)[""]
        try:
            key = category(value, self._key, VERBATIM)
        except InvalidEvent as error:
            return _Half(fields, is_label, None, Unreadable(error.reason, str(error), record.rstrip(b"\r\n")))
        if key is None:
            detail = (
                f"record {shown(record.decode(errors='replace').strip())} has no {self._key!r}, which labels.key names"
            )
            return _Half(fields, is_label, None, Unreadable(NO_KEY, detail, record.rstrip(b"\r\n")))
        return _Half(fields, is_label, key)

    def _has_features(self, fields: Mapping[str, msgspec.Raw]) -> bool:
        """Whether a record holds a feature that is not null."""
        names = {name for name, value in fields.items() if value != _NULL}
        return not names <= self._others if self._features is None else not names.isdisjoint(self._features)

    def _event(self, features: Mapping[str, msgspec.Raw], labelled: Mapping[str, msgspec.Raw]) -> bytes:
        """Merge features and their label into one record."""
        values = dict(features)
        for name, value in labelled.items():
            if name not in values or (name in self._label_fields and value != _NULL):
                values[name] = value
        return _encode_record(values)


class _Joined(NamedTuple):
    """A record that is passed on to the pipeline."""

    i: int
    """The index of the one in the source's batch that caused it."""
    record: bytes
    features: _WaitingRecord | None = None
    """Those that came before the record that completes them, whose place it has."""
    unreadable: Unreadable | None = None
    """Why it is to be rejected."""


def _joined_batch(batch: Batch, joined: Sequence[_Joined]) -> Batch:
    """Return a batch of these records, with the location of their features."""
    own = batch.select(np.array([each.i for each in joined], np.int64))
    n, locations = len(own), list(own.locations)
    keys, headers = list(own.keys or [None] * n), list(own.headers or [()] * n)
    completed = {at: each.features for at, each in enumerate(joined) if each.features is not None}
    for at, features in completed.items():
        locations[at] = _LOCATION.decode(features.location)
        keys[at], headers[at] = features.record_key, features.headers
    records = [each.record if each.unreadable is None else b"\n" for each in joined]
    return replace(
        own,
        block=b"".join(records),
        ends=np.cumsum(list(map(len, records)), dtype=np.int64),
        locations=locations,
        keys=keys if any(key is not None for key in keys) else None,
        headers=headers if any(headers) else None,
        unreadable={at: each.unreadable for at, each in enumerate(joined) if each.unreadable is not None},
        lags={at: features.lags for at, features in completed.items() if features.lags is not None},
    )


_UNKNOWN = -1  # no timestamp, as in Kafka
_Time = Annotated[int, msgspec.Meta(ge=_UNKNOWN, le=(1 << 63) - 1)]
_NULL = msgspec.Raw(b"null")
_MISSING = (_NULL, msgspec.Raw(b'""'))
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LOCATION = msgspec.json.Decoder(Location)
_LEARNED = msgspec.msgpack.Decoder(
    list[tuple[bytes, Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)], _Time, list[float] | None]]
)
"""Waiting records: bytes, number, time and lags."""
_ORIGINS = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None, Headers]])
"""Where they came from, which does not affect learning: location, key and headers."""
_KEY = msgspec.json.Decoder(Annotated[str, msgspec.Meta(max_length=MAX_TEXT_LENGTH)] | int | float | bool | None)


def _fields(record: bytes) -> dict[str, msgspec.Raw]:
    """Return all fields of a well-formed record."""
    if is_for_parser(record):
        try:
            return _FIELDS.decode(record)
        except msgspec.MsgspecError:
            pass  # it holds values that only the exact path accepts, such as NaN
    values = object_of(record.rstrip(b"\r\n"))
    return {
        name: msgspec.Raw((str(value) if isinstance(value, Decimal) else json.dumps(value, default=str)).encode())
        for name, value in values.items()
    }


def _encode_record(values: Mapping[str, msgspec.Raw]) -> bytes:
    """Encode a record with these fields."""
    try:
        return msgspec.json.encode(values)
    except UnicodeEncodeError:  # half a surrogate pair in a name
        return b"{%s}" % b",".join(b"%s:%s" % (json.dumps(name).encode(), values[name]) for name in values)
