"""Records with what is used of kafka-python's, and what becomes of their values in the daemon's decoders."""

import json
from typing import NamedTuple

import numpy as np

from streammoe.pipeline.decoders import decoder
from streammoe_connectors.kafka.contract import RECORD
from streammoe_connectors.kafka.settings import ValueSettings
from streammoe_connectors.kafka.values import Values
from tests.batches import roles_of


class Row(NamedTuple):
    offset: int
    value: bytes | None = b"{}"
    timestamp: int = 0
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def record(value, *, key=None, headers=(), timestamp=-1):
    return Row(0, value, timestamp, key, tuple(headers))


def columns(*rows):
    return np.array(
        [(row.offset, row.timestamp, row.value, row.key, row.headers, None, 0, 0.0) for row in rows], RECORD
    )


def values_of(**settings):
    return Values(ValueSettings.model_validate(settings))


def batch_of(values, *records):
    return values.batch(columns(*records), {}, "events")


def outcomes(values, records, wanted):
    """Of each record (x, texts, y) as they are read, or the reason for which it is rejected."""
    batch = batch_of(values, *records)
    decoded = decoder(batch.format).decode(batch, wanted)
    found = {bad.index: bad.reason for bad in decoded.rejected}
    for row, i in enumerate(decoded.rows.tolist()):
        texts = {wanted.fields[j]: column[row] for j, column in decoded.texts.items()}
        found[i] = (decoded.X[row].tobytes(), texts, decoded.Y[row].tobytes())
    return found | {i: each.reason for i, each in batch.unreadable.items()}


def numbers(values, records, *fields, **wanted):
    """Each record's features, or the reason for which it is rejected."""
    found = outcomes(values, records, roles_of(fields, ("y",), **wanted))
    each = [found[i] for i in range(len(found))]
    return [reason if isinstance(reason, str) else np.frombuffer(reason[0]).tolist() for reason in each]


def only(values, octets, **of_record):
    """The JSON object that one value becomes."""
    batch = batch_of(values, record(octets, **of_record))
    assert batch.unreadable == {}
    assert batch.ends.tolist() == [len(batch.block)]
    return json.loads(batch.block)


def refusal(values, octets):
    """Return where and why one value is rejected, which is passed on unchanged."""
    ((index, rejected),) = batch_of(values, record(octets)).unreadable.items()
    assert rejected.record == octets
    return index, rejected.reason
