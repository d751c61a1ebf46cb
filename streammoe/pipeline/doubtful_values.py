"""Warnings of columns whose first values may mean something else than is read: dates, codes, thousands."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import time_advice
from streammoe.errors import InvalidEvent
from streammoe.notation import ISO, NUMBER, formats_besides_seconds, formats_of, in_thousands
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.schema import Schema
from streammoe.ports import Batch
from streammoe.text import shown

LOGGER = logging.getLogger("streammoe.pipeline")
EXAMINED = 100
"""Number of records whose values are looked at."""
_CODE = re.compile(r"[ \t]*0[0-9]+[ \t]*")


def warn_of_values(
    batch: Batch, i: int, kinds: Mapping[str, ColumnKind], others: Sequence[str], schema: Schema
) -> None:
    """Warn of columns whose values in the first records, from the i-th on, may mean something else than is read.

    Args:
        batch: of records.
        i: index of the first one.
        kinds: of the columns that are new.
        others: further fields that hold numbers.
        schema: says how values are written, and what is known of columns.
    """
    held: dict[str, list[object]] = {name: [] for name in (*kinds, *others)}
    for at in range(i, min(i + EXAMINED, len(batch))):
        with suppress(InvalidEvent):
            values = decoder(batch.format).names(batch, at)
            for name in held.keys() & values.keys():
                if not schema.notations.of(name).is_missing(values[name]):
                    held[name].append(values[name])
    for name, found in held.items():
        for doubt in _doubts(batch, name, kinds.get(name), found, schema) if found else ():
            LOGGER.warning("%s: column %s %s", batch.origin, shown(name), doubt)


def _doubts(
    batch: Batch, name: str, kind: ColumnKind | None, values: Sequence[object], schema: Schema
) -> Iterator[str]:
    """Yield what may be wrong with how a column is read; `kind` is None for a target or weight, which hold numbers."""
    first, notation = values[0], schema.notations.of(name)._replace(decimal=batch.decimal)
    texts = list(map(notation.with_point, map(str, values)))
    given = schema.given_kinds.kind(name)
    listed = {"category": ("categories", "categorical"), "number": ("numbers", "numeric")}
    if kind in listed and given != kind and isinstance(first, str | int) and (forms := formats_of(str(first))):
        words, setting = listed[kind]
        yield (
            f"is one of {words} by its first value, {shown(first)}, and looks like one of dates: to read it as times, "
            f"{time_advice(name, forms)}; else list it in schema.{setting}"
        )
    besides = formats_besides_seconds(float(texts[0])) if NUMBER.fullmatch(texts[0]) else None
    if kind == "time" and notation.time == ISO and besides is not None:
        convert = "convert it (a spreadsheet's days are (days - 25569) * 86400 seconds), or where it counts them "
        yield (
            f"is one of times and holds {shown(first)}, which is read as seconds since 1970 and hardly counts them: "
            f"{'' if besides else convert}{time_advice(name, [*besides, 's'])}"
        )
    if batch.format != "csv":
        return
    if kind == "number" and not given and (code := next(filter(_CODE.fullmatch, map(str, values)), None)):
        yield (
            f"is one of numbers by its first value and holds {shown(code)}, whose leading zeros are lost: for codes "
            "list it in schema.categorical, else in schema.numeric"
        )
    is_number = kind in {None, "number"} and batch.decimal == "." and not notation.thousands
    if is_number and (example := in_thousands(texts)):
        yield (
            f"has three decimals in all numbers with a point, such as {shown(example)}, and up to three digits in the "
            'others; if it separates thousands, set source.decimal = "," and schema.thousands = "."'
        )
