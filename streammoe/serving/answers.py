"""What a snapshot predicts for records of requests, read by the rules of the stream."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np

from streammoe.errors import StreammoeError
from streammoe.estimators import Explanation
from streammoe.pipeline.decoders import DecodedBatch, FieldRoles, decoder
from streammoe.pipeline.writing import predicted
from streammoe.ports import Batch, Predictions
from streammoe.rows import Row, rows_of
from streammoe.serving.snapshot import Snapshot
from streammoe.text import some_of

LINES = ("application/jsonl", "application/x-ndjson")
"""Types of JSON Lines."""
MOST_PROBLEMS = 100
"""Rows of a request whose problems an answer names."""
MOST_IGNORED, MOST_OF_A_NAME = 20, 60
"""Columns that an answer names as ignored, and characters of each."""
Said = TypeVar("Said")
"""What is said of a record."""
_TEXT_OR_NAN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|NaN', re.DOTALL)


class Problem(msgspec.Struct):
    """A row that the stream would reject, counted from 0, and why."""

    row: int
    reason: str
    detail: str


class Failure(msgspec.Struct, omit_defaults=True):
    """Why a request was not answered."""

    error: str
    problems: list[Problem] = []


class RequestError(StreammoeError):
    """A request that cannot be answered, with its HTTP status and its rows that are to blame."""

    def __init__(self, status: int, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.status, self.problems = status, [*problems]


def without_nan(body: bytes) -> bytes:
    """Replace NaN, which is no JSON but which many clients write for missing numbers, by null.

    >>> without_nan(b'{"NaN": NaN}')
    b'{"NaN": null}'
    """
    if b"NaN" not in body:
        return body
    return _TEXT_OR_NAN.sub(lambda found: b"null" if found[0] == b"NaN" else found[0], body)


def records_in(body: bytes, content_type: str) -> tuple[list[bytes], str]:
    """Return the records of a body, and its shape: ``object``, ``list`` or ``lines``.

    Raises:
        RequestError: it is neither.
    """
    body = without_nan(body)
    begin = body.lstrip()[:1]
    try:
        if content_type.partition(";")[0].strip().lower() not in LINES:
            if begin == b"[":
                return [bytes(each) for each in msgspec.json.decode(body, type=list[msgspec.Raw])], "list"
            msgspec.json.decode(body, type=msgspec.Raw)
            return [body], "object"
    except (msgspec.DecodeError, RecursionError) as error:
        if begin != b"{":
            raise RequestError(400, f"the body must be a JSON object, a list of them or JSON Lines: {error}") from None
    return [line for line in body.splitlines() if line.strip()], "lines"


def answers(
    snapshot: Snapshot, requests: Sequence[Sequence[bytes]], answer: Callable[[Snapshot, DecodedBatch], Sequence[Said]]
) -> list[list[Said] | RequestError]:
    """Answer several requests together, which takes little longer than one of them.

    An answer does not depend on the others. It is an error if one of its records would be rejected in the stream, or
    has none of the model's columns, which in a request is a mistake; else what `answer` says of each of its records.
    """
    fields, records = snapshot.model.fields, [record for request in requests for record in request]
    batch = Batch(
        b"".join(records), np.cumsum([len(each) for each in records]), "jsonl", None, "a request", [], {"kind": ""}
    )
    decoded, rejected = read(snapshot, batch)
    problems = {i: (reason, detail) for i, reason, detail in rejected}
    problems.update(_without_columns(fields, batch, decoded))
    rows = dict(zip(decoded.rows.tolist(), answer(snapshot, decoded), strict=True))
    found: list[list[Said] | RequestError] = []
    for start, stop in pairwise(accumulate(map(len, requests), initial=0)):
        bad = [i for i in range(start, stop) if i in problems] if problems else []
        named = [Problem(i - start, *problems[i]) for i in bad[:MOST_PROBLEMS]]
        first = f"row {named[0].row}: {named[0].detail}" if named else ""
        found.append(RequestError(422, first, problems=named) if bad else [rows[i] for i in range(start, stop)])
    return found


def ignored(snapshot: Snapshot, record: bytes) -> list[str]:
    """Return the first columns of a record, shortened, that neither the model nor the settings know."""
    try:
        names = msgspec.json.decode(record, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):  # another parser has read it
        return []
    known = {*map(str, snapshot.model.fields), *snapshot.schema.others}
    return [name[:MOST_OF_A_NAME] for name in names if name not in known][:MOST_IGNORED]


def read(snapshot: Snapshot, batch: Batch) -> tuple[DecodedBatch, list[tuple[int, str, str]]]:
    """Decode records without targets and weights; return also those that the stream would reject, in their order.

    Each of these with reason and detail.
    """
    roles = FieldRoles(snapshot.model.column_kinds, snapshot.schema._replace(targets=(), weight=None))
    decoded = decoder(batch.format).decode(batch, roles)
    refused = snapshot.model.refused(decoded.X).items()
    found = ((int(decoded.rows[at]), error.reason, str(error)) for at, error in refused)
    return decoded, sorted([*decoded.rejected, *found])


def explanations(snapshot: Snapshot, decoded: DecodedBatch) -> list[Explanation]:
    """Explain what is predicted for decoded records."""
    fields, found = snapshot.model.fields, []
    for i, row in enumerate(decoded.X.tolist()):
        x: dict[str, Any] = {name: value for name, value in zip(fields, row, strict=True) if not math.isnan(value)}
        x |= {fields[j]: column[i] for j, column in decoded.texts.items() if column[i] is not None}
        found.append(snapshot.model.explain_one(x))
    return found


def predicted_rows(snapshot: Snapshot, decoded: DecodedBatch, interval: float) -> list[Row]:
    """Return the rows that a sink of predictions would get for decoded records, without place and target."""
    model, n = snapshot.model, len(decoded.rows)
    texts = {model.fields[j]: column for j, column in decoded.texts.items()}
    unknown: Any = [None] * n if model.is_classifier else np.full((n, max(len(model.output_names), 1)), np.nan)
    outcome = model.score_rows(model.fields, decoded.X, unknown, texts=texts, traced=True)
    return rows_of(
        Predictions(
            locations=(),
            versions=np.full(n, snapshot.version),
            targets=None,
            outputs=snapshot.schema.targets,
            gate=outcome.gate,
            **predicted(model, outcome.predictions, outcome.trace, interval),
        )
    )


def _without_columns(
    fields: Sequence[str], batch: Batch, decoded: DecodedBatch
) -> Iterator[tuple[int, tuple[str, str]]]:
    """Find the records that have none of the columns."""
    lacks = np.isnan(decoded.X).all(axis=1) & bool(fields)
    for column in decoded.texts.values():
        lacks &= np.array([value is None for value in column], np.bool_)
    for i in decoded.rows[lacks].tolist():
        names = decoder(batch.format).names(batch, i)
        if not names.keys() & {*fields}:
            has = some_of(sorted(names)) if names else "nothing"
            detail = f"the record has none of the model's columns ({some_of(sorted(fields))}), but {has}"
            yield i, ("no_columns", detail)
