"""Decoders from the records of a batch to arrays.

A format gives columns of what a compiled parser accepts unambiguously, and any record by itself. Columns are read by
the same rules as single values (`streammoe.columns.values`), and what might be rejected is read record by record, which
alone decides whether it is and why; so what is learned does not depend on the other records of a batch.
"""

from __future__ import annotations

from functools import cache

from streammoe.errors import ConfigError
from streammoe.pipeline.decoders.csv import CsvDecoder
from streammoe.pipeline.decoders.decoder import Decoder
from streammoe.pipeline.decoders.jsonl import JsonlDecoder
from streammoe.pipeline.decoders.rows import DecodedBatch, FieldRoles, NewNames, Values, event_of

__all__ = ["DecodedBatch", "Decoder", "FieldRoles", "NewNames", "Values", "decoder", "event_of"]
_DECODERS: dict[str, Decoder] = {"csv": CsvDecoder(), "jsonl": JsonlDecoder()}


def decoder(format: str) -> Decoder:
    """Return the decoder for `format`; raise `ConfigError` if there is none."""
    if format == "arrow":
        return _arrow()
    if format not in _DECODERS:
        raise ConfigError(f"there is no decoder for format {format!r}; choose one of {', '.join(_DECODERS)}, arrow")
    return _DECODERS[format]


@cache
def _arrow() -> Decoder:
    from streammoe.pipeline.decoders.arrow import ArrowDecoder

    return ArrowDecoder()
