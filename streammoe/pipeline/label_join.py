"""Labels that come later: what waits for its other half, and events made of both.

A stage between source and pipeline. What becomes of a record depends on the records before it and on nothing else, so
batches may be cut anywhere, and a restart goes on from what a checkpoint holds of the buffer.
"""

from __future__ import annotations

import copy
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, is_count, require
from streammoe.errors import InvalidEvent, SourceError
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import state_digest
from streammoe.pipeline.decoders.jsonl import is_for_parser, object_of
from streammoe.pipeline.decoders.values import LONGEST_TEXT, TooLarge, label
from streammoe.pipeline.pipeline import Processed, Schema
from streammoe.ports import Batch, Place, Unreadable
from streammoe.text import shown
from streammoe.types import AnyArray, IntArray

LOGGER = logging.getLogger("streammoe.joining")
NO_KEY = "no_key"
"""The reason for refusing a record that cannot find its other half."""


class Limits(NamedTuple):
    """How much may wait, and how long."""

    max_pending: int
    expire_events: int | None = None
    """Records that may come until the one that completes an event, that one included."""
    expire_seconds: float | None = None
    """The same in the records' own time."""


@dataclass(slots=True)
class _Waiting:
    """A record that waits for its other half."""

    key: str
    record: bytes
    is_label: bool
    place: bytes
    """As JSON: the collector of garbage, and checkpoints, need not look at each of them."""
    record_key: bytes | None
    """The key that the source gave to the record."""
    number: int
    """Of the record, counted from the first one of all."""
    time: int
    """The stream's time when it came."""
    refused: bool = False
    """Whether the pipeline has refused it, so that it is counted already."""


class LabelJoin:
    """Makes events of features and of labels that come later, or earlier, under the same key.

    Features, which are records with the key and without target, pass as they are, so that they are predicted when they
    come; the label makes the event that is learned. The features' place is that of the event; a value that both records
    hold is that of the features, which is what was known for the prediction, but for targets and weight.

    What waits is bounded: beyond `Limits` the oldest expires. Time is the largest time of any record so far, never that
    of a clock, so that reading again gives the same.

    Args:
        key: the field that both records hold.
        schema: which of the other fields mean what.
        limits: of what waits.
    """

    def __init__(self, key: str, schema: Schema, limits: Limits) -> None:
        self.key = key
        self.limits = limits
        self._others = {key, *schema.others}
        self._features = None if schema.features is None else set(schema.features) - {key}
        self._targets = schema.targets
        self._of_label = {*schema.targets, *((schema.weight,) if schema.weight else ())}
        self._parse = _parser(key, schema.targets)
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        """By key, the oldest first."""
        self._seen = 0
        """Records so far."""
        self._now = _UNKNOWN
        """The stream's time, in milliseconds."""
        self._refused = 0
        """How many of those that wait have been refused."""
        self._passed: list[tuple[int, _Waiting]] = []
        """Of the latest batch: which features passed as which record."""
        self._expired: list[_Waiting] = []
        """The same: what has expired."""
        self._warned = False

    @property
    def pending(self) -> int:
        """How many events wait for a half; those that have been refused are no longer waited for."""
        return len(self._waiting) - self._refused

    def join(self, batch: Batch) -> Batch:
        """The events of a batch, for the pipeline; may be empty. To be settled before the next one.

        Raises:
            SourceError: the records are no JSON Lines.
        """
        if batch.format != "jsonl":
            message = (
                f"{batch.origin} holds {batch.format}, and labels.key = {self.key!r} joins records of JSON Lines only; "
                "convert it, or take labels.key out where features and target come in the same record"
            )
            raise SourceError(message)
        if batch.timestamps is None and self.limits.expire_seconds is not None and not self._warned:
            self._warned = True
            LOGGER.warning(
                "%s: records have no times, so labels.expire_seconds lets nothing expire; set labels.expire_events",
                batch.origin,
            )
        self._passed, self._expired = [], []
        if batch.too_long:
            self._pass_time(_UNKNOWN if batch.timestamps is None else int(batch.timestamps[0]))
            return batch
        return self._joined(batch)

    def copy(self) -> LabelJoin:
        """One that a later `join` of this one does not change; only one of the two may go on."""
        other = copy.copy(self)
        waiting = self._waiting.copy()
        if self._now == _UNKNOWN:  # the first time that comes is the time of all that wait
            waiting = OrderedDict((key, replace(each)) for key, each in waiting.items())
        vars(other).update(_waiting=waiting)
        return other

    def settle(self, processed: Processed) -> Processed:
        """Count events instead of records, once the pipeline is through with the latest batch.

        Features that wait are `pending` and not predicted only. Those that were refused count as that, and neither as
        pending nor as expired later; an event that they become part of counts by itself.
        """
        refused = [waiting for at, waiting in self._passed if processed.bad[at]]
        for waiting in refused:
            waiting.refused = True
            self._refused += self._waiting.get(waiting.key) is waiting
        outcomes = processed.outcomes.copy()
        outcomes["predicted_only"] -= len(self._passed) - len(refused)
        outcomes["expired"] = sum(not waiting.refused for waiting in self._expired)
        self._passed, self._expired = [], []
        return processed._replace(outcomes=outcomes)

    def arrays(self) -> dict[str, AnyArray]:
        """What a checkpoint keeps of it."""
        waiting = self._waiting.values()
        return {
            "labels.records": np.frombuffer(b"".join([each.record for each in waiting]), np.uint8),
            "labels.ends": np.cumsum([len(each.record) for each in waiting], dtype=np.int64),
            "labels.numbers": np.array([each.number for each in waiting], np.int64),
            "labels.times": np.array([each.time for each in waiting], np.int64),
            "labels.clock": np.array([self._seen, self._now], np.int64),
            "labels.places": np.frombuffer(b"[%s]" % b",".join([each.place for each in waiting]), np.uint8),
            "labels.keys": np.frombuffer(msgspec.json.encode([each.record_key for each in waiting]), np.uint8),
            "labels.refused": np.array([each.refused for each in waiting], np.bool_),
        }

    def restore(self, arrays: Mapping[str, AnyArray]) -> None:
        """The inverse of `arrays`, into a new one with the same key and schema.

        Raises:
            CheckpointError: they hold what no buffer can; `streammoe.checked` says the same of other errors.
        """
        records = array_of(arrays, "labels.records", "uint8", (None,)).tobytes()
        ends = array_of(arrays, "labels.ends", "int64", (None,), least=0.0)
        each = (len(ends),)
        numbers = array_of(arrays, "labels.numbers", "int64", each, least=0.0, most=LARGEST_COUNT)
        times = array_of(arrays, "labels.times", "int64", each, least=_UNKNOWN)
        refused = array_of(arrays, "labels.refused", "bool", each)
        self._seen, self._now = array_of(arrays, "labels.clock", "int64", (2,), least=_UNKNOWN).tolist()
        require(is_count(self._seen), f"array labels.clock counts {self._seen} records")
        require(
            (np.diff(ends, prepend=0) > 0).all() and (int(ends[-1]) if len(ends) else 0) == len(records),
            f"array labels.ends does not divide the {len(records)} bytes of labels.records",
        )
        for (start, stop), number, time, place, record_key, was_refused in zip(
            pairwise([0, *ends.tolist()]),
            numbers.tolist(),
            times.tolist(),
            _PLACES.decode(array_of(arrays, "labels.places", "uint8", (None,)).tobytes()),
            _KEYS.decode(array_of(arrays, "labels.keys", "uint8", (None,)).tobytes()),
            refused.tolist(),
            strict=True,
        ):
            record = records[start:stop]
            value, is_label = self._read(record)
            key = label(self.key, value, text=False)
            require(key not in {None, *self._waiting}, f"labels.records holds {shown(record)} without a key of its own")
            _PLACE.decode(place)
            waiting = _Waiting(str(key), record, is_label, bytes(place), record_key, number, time, was_refused)
            self._waiting[waiting.key] = waiting
        self._refused = int(refused.sum())

    def _joined(self, batch: Batch) -> Batch:
        found = _Found(batch)
        ascii_only = batch.block.isascii()
        waiting = self._waiting
        times = None if batch.timestamps is None else batch.timestamps.tolist()
        for i, (start, stop) in enumerate(pairwise([0, *batch.ends.tolist()])):
            self._pass_time(_UNKNOWN if times is None else times[i])
            if i in batch.unreadable:
                found.refuse(i, batch.unreadable[i])
                continue
            record = batch.block[start:stop]
            try:
                value, is_label = self._read(record, ascii_only=ascii_only)
            except InvalidEvent:
                found.take(i, record)  # the decoder says why it is refused
                continue
            try:
                key = label(self.key, value, text=False)
            except InvalidEvent as error:
                key, problem = None, (error.reason, str(error))
            else:
                text = record[:_SHOWN].decode(errors="replace").strip()
                problem = NO_KEY, f"record {shown(text)} has no {self.key!r}, which labels.key names"
            if key is None:
                if is_label and self._has_features(record):
                    found.take(i, record)
                else:
                    found.refuse(i, Unreadable(*problem, batch.record(i)))
                continue
            other = waiting.get(key)
            if other is not None and other.is_label != is_label:
                self._remove(other)
                if is_label:
                    found.take(i, self._event(other.record, record), other)
                else:
                    found.take(i, self._event(record, other.record))
            elif is_label:
                if self._has_features(record):
                    found.take(i, record)
                else:
                    self._keep(found.waiting(i, record, key, is_label, self._seen, self._now), other)
            elif other is not None and not self._has_features(record):
                found.take(i, record)  # such as a label that is not known yet; it must not replace features
            else:
                features = found.waiting(i, record, key, is_label, self._seen, self._now)
                self._keep(features, other)
                self._passed.append((found.take(i, record), features))
        return found.batch()

    def _pass_time(self, time: int) -> None:
        """A record has come, at its own time; what it is too late for expires."""
        self._seen += 1
        if time > self._now:
            if self._now == _UNKNOWN:
                for each in self._waiting.values():
                    each.time = time
            self._now = time
        _, events, seconds = self.limits
        while (events is not None or seconds is not None) and self._waiting:
            oldest = next(iter(self._waiting.values()))
            if (events is None or self._seen - oldest.number <= events) and (
                seconds is None or self._now - oldest.time <= 1e3 * seconds
            ):
                return
            self._expire(oldest)

    def _keep(self, waiting: _Waiting, before: _Waiting | None) -> None:
        """Let a record wait; of two halves alike the newer one waits on."""
        if before is not None:
            self._expire(before)
        self._waiting[waiting.key] = waiting
        while len(self._waiting) > self.limits.max_pending:
            self._expire(next(iter(self._waiting.values())))

    def _remove(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.key]
        self._refused -= waiting.refused

    def _expire(self, waiting: _Waiting) -> None:
        self._remove(waiting)
        self._expired.append(waiting)

    def _read(self, record: bytes, *, ascii_only: bool = False) -> tuple[Any, bool]:
        """The raw value of the key, and whether there is a target.

        Raises:
            InvalidEvent: the record is malformed.
        """
        if is_for_parser(record, ascii_only=ascii_only):
            try:
                value, *targets = self._parse(record)
            except msgspec.MsgspecError:
                pass  # the exact path says why, or accepts it
            else:
                return value, any(target not in _MISSING for target in targets)
        values = object_of(record.rstrip(b"\r\n"))
        return values.get(self.key), any(values.get(target) not in (None, "") for target in self._targets)

    def _has_features(self, record: bytes) -> bool:
        """Whether a record that has been read holds a feature, not null."""
        held = {name for name, value in _fields(record).items() if value != _NULL}
        return not held <= self._others if self._features is None else not held.isdisjoint(self._features)

    def _event(self, features: bytes, found: bytes) -> bytes:
        """Features and their label as one record."""
        values = _fields(features)
        for name, value in _fields(found).items():
            if name not in values or (name in self._of_label and value != _NULL):
                values[name] = value
        return _written(values)


def digest_with(model: MixtureOfExperts, labels: Mapping[str, AnyArray]) -> str:
    """The fingerprint of a model and of what waits for its other half beside it.

    Args:
        model: the model.
        labels: what `LabelJoin.arrays` gave; nothing where labels are not joined.
    """
    return fingerprint(model.arrays(), labels)


def fingerprint(model: Mapping[str, AnyArray], labels: Mapping[str, AnyArray]) -> str:
    """`digest_with` of a model's arrays, or of copies of them."""
    shaping = {name: array for name, array in model.items() if not name.startswith("diagnostics.")}
    return state_digest(shaping | {name: array for name, array in labels.items() if name not in _BESIDE})


def label_arrays(arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Those of a checkpoint that are from `LabelJoin.arrays`."""
    return {name: array for name, array in arrays.items() if name.startswith("labels.")}


class _Found:
    """The records that go on to the pipeline."""

    def __init__(self, batch: Batch) -> None:
        self._from = batch
        self._records: list[bytes] = []
        self._rows: list[int] = []
        """Of each the record of the source's batch at which it goes on."""
        self._origins: list[_Waiting | None] = []
        """Of each the features that came before."""
        self._unreadable: dict[int, Unreadable] = {}

    def take(self, i: int, record: bytes, features: _Waiting | None = None) -> int:
        """Let a record go on, as that of earlier features or of the i-th one; returns which one it is there."""
        self._records.append(record)
        self._rows.append(i)
        self._origins.append(features)
        return len(self._records) - 1

    def refuse(self, i: int, unreadable: Unreadable) -> None:
        """Let the i-th record be refused."""
        self._unreadable[self.take(i, b"\n")] = unreadable

    def waiting(self, i: int, record: bytes, key: str, is_label: bool, number: int, time: int) -> _Waiting:
        """The i-th record as one that waits."""
        batch = self._from
        place = msgspec.json.encode(batch.place(i))
        record_key = None if batch.keys is None else batch.keys[i]
        return _Waiting(key, record.rstrip(b"\r\n"), is_label, place, record_key, number, time)

    def batch(self) -> Batch:
        """All of them."""
        batch, rows, origins = self._from, self._rows, self._origins

        def place(i: int) -> Place:
            features = origins[i]
            return batch.place(rows[i]) if features is None else _PLACE.decode(features.place)

        ends: IntArray = np.cumsum([len(record) for record in self._records], dtype=np.int64)
        return replace(
            batch,
            block=b"".join(self._records),
            ends=ends,
            place=place,
            timestamps=None if batch.timestamps is None else batch.timestamps[np.array(rows, np.int64)],
            keys=self._keys(),
            unreadable=self._unreadable,
        )

    def _keys(self) -> Sequence[bytes | None] | None:
        own = self._from.keys
        if own is None and not any(features and features.record_key is not None for features in self._origins):
            return None
        return [
            features.record_key if features is not None else None if own is None else own[i]
            for i, features in zip(self._rows, self._origins, strict=True)
        ]


_UNKNOWN = -1
"""No time; Kafka writes it so, too."""
_SHOWN = 400
"""Bytes of a record that a message is made from; more characters than it shows."""
_BESIDE = {"labels.places", "labels.keys", "labels.refused"}
"""What is kept for messages, rows and counts, and shapes nothing that is learned."""
_NULL = msgspec.Raw(b"null")
_MISSING = (msgspec.Raw(), _NULL, msgspec.Raw(b'""'))
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PLACE = msgspec.json.Decoder(Place)
_PLACES = msgspec.json.Decoder(list[msgspec.Raw])
_KEYS = msgspec.json.Decoder(list[bytes | None])
_Key = Annotated[str, msgspec.Meta(max_length=LONGEST_TEXT)] | int | float | bool | None


def _parser(key: str, targets: Sequence[str]) -> Callable[[bytes], tuple[Any, ...]]:
    """A compiled parser from a record to the values of its key and, as they were written, of its targets."""
    names = [key, *targets]
    fields: list[tuple[str, Any, Any]] = [("f0", _Key, None)]
    fields += [(f"f{j}", msgspec.Raw, msgspec.Raw()) for j in range(1, len(names))]
    try:
        rename = {f"f{j}": name for j, name in enumerate(names)}
        decode = msgspec.json.Decoder(msgspec.defstruct("Record", fields, rename=rename)).decode
    except ValueError:  # a name that needs escapes in JSON
        return _refuse
    astuple = msgspec.structs.astuple
    return lambda record: astuple(decode(record))


def _refuse(record: bytes) -> tuple[Any, ...]:
    raise msgspec.ValidationError(record)


def _fields(record: bytes) -> dict[str, msgspec.Raw]:
    """All fields of a record that has been read."""
    if is_for_parser(record):
        try:
            return _FIELDS.decode(record)
        except msgspec.MsgspecError:
            pass  # it holds what only the exact path takes, such as NaN
    values = object_of(record.rstrip(b"\r\n"))
    return {name: msgspec.Raw(_literal(value).encode()) for name, value in values.items()}


def _literal(value: object) -> str:
    return str(value) if isinstance(value, TooLarge) else json.dumps(value)


def _written(values: Mapping[str, msgspec.Raw]) -> bytes:
    """A record with these fields."""
    try:
        return msgspec.json.encode(values)
    except UnicodeEncodeError:  # half a surrogate pair in a name
        return b"{%s}" % b",".join(b"%s:%s" % (json.dumps(name).encode(), values[name]) for name in values)
