"""Warnings of columns whose first values may mean something else than is read: dates, codes, thousands."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import time_advice
from streammoe.errors import InvalidEvent
from streammoe.notation import ISO, NUMBER, SWAPPED, formats_besides_seconds, formats_of, in_thousands
from streammoe.pipeline.decoders import Values, decoder
from streammoe.pipeline.schema import Schema
from streammoe.ports import Batch
from streammoe.text import shown, some_of

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
    _warn_of_dates(batch, kinds, {name: each[0] for name, each in held.items() if each}, schema)
    if batch.format == "csv":
        _warn_of_codes(batch, kinds, held, schema)
        _warn_of_thousands(batch, [*others, *(name for name in kinds if kinds[name] == "number")], held, schema)


def _warn_of_dates(batch: Batch, kinds: Mapping[str, ColumnKind], values: Values, schema: Schema) -> None:
    """Warn of columns of categories or numbers by their first values, and of seconds, which may hold dates."""
    others: dict[ColumnKind, tuple[str, Collection[str], str]] = {
        "category": ("categories", schema.categorical, "categorical"),
        "number": ("numbers", schema.numeric, "numeric"),
    }
    for name, kind in kinds.items():
        value = values.get(name)
        if kind == "time":
            _warn_of_seconds(batch, name, value, schema)
        if kind not in others or name in others[kind][1] or not isinstance(value, str | int):
            continue
        if forms := formats_of(str(value)):
            LOGGER.warning(
                "%s: column %s is one of %s by its first value, %s, and looks like one of dates: to read "
                "it as times, %s; else list it in schema.%s",
                batch.origin,
                shown(name),
                others[kind][0],
                shown(value),
                time_advice(name, forms),
                others[kind][2],
            )


def _warn_of_seconds(batch: Batch, name: str, value: object, schema: Schema) -> None:
    """Warn of a column of times without a format whose first value is a number that hardly counts seconds."""
    text = str(value).translate(SWAPPED) if batch.decimal == "," else str(value)
    if schema.notations.of(name).time != ISO or not NUMBER.fullmatch(text):
        return
    if (forms := formats_besides_seconds(float(text))) is not None:
        convert = "convert it (a spreadsheet's days are (days - 25569) * 86400 seconds), or where it counts them "
        LOGGER.warning(
            "%s: column %s is one of times and holds %s, which is read as seconds since 1970 and hardly counts "
            "them: %s%s",
            batch.origin,
            shown(name),
            shown(value),
            "" if forms else convert,
            time_advice(name, [*forms, "s"]),
        )


def _warn_of_codes(
    batch: Batch, kinds: Mapping[str, ColumnKind], held: Mapping[str, Sequence[object]], schema: Schema
) -> None:
    """Warn of columns of numbers by their first values that hold some with leading zeros."""
    for name in sorted(name for name, kind in kinds.items() if kind == "number" and not schema.given_kinds.kind(name)):
        if code := next((each for each in held[name] if _CODE.fullmatch(str(each))), None):
            LOGGER.warning(
                "%s: column %s is one of numbers by its first value and holds %s, whose leading zeros are "
                "lost: for codes list it in schema.categorical, else in schema.numeric",
                batch.origin,
                shown(name),
                shown(code),
            )


def _warn_of_thousands(
    batch: Batch, names: Iterable[str], held: Mapping[str, Sequence[object]], schema: Schema
) -> None:
    """Warn of columns of numbers whose points may separate thousands."""
    if schema.notations.thousands or batch.decimal == ",":
        return
    found = {name: example for name in sorted(names) if (example := in_thousands(map(str, held[name])))}
    if found:
        LOGGER.warning(
            "%s: all numbers with a point in %s have three decimals, such as %s, and the others have up to three "
            'digits; if it separates thousands, set source.decimal = "," and schema.thousands = "."',
            batch.origin,
            some_of(found),
            shown(next(iter(found.values()))),
        )
