"""Decoders from the records of a batch to arrays.

Each format has two paths. The fast one takes what a compiled parser accepts unambiguously; all else goes record by
record through the exact one (`to_row`), which alone decides what is rejected and why. Both give the same floats and
texts, so what is learned does not depend on the other records of a batch.
"""

from __future__ import annotations

from functools import cache

from streammoe.errors import ConfigError
from streammoe.pipeline.decoders.rows import DecodedBatch, Decoder, FieldRoles, Row, Values, require_targets, to_row

__all__ = ["DecodedBatch", "Decoder", "FieldRoles", "Row", "Values", "decoder", "require_targets", "to_row"]


@cache
def decoder(format: str) -> Decoder:
    """Return the decoder for `format`; raise `ConfigError` if there is none."""
    # Imported on demand: all of them import Arrow.
    from streammoe.pipeline.decoders.arrow import ArrowDecoder
    from streammoe.pipeline.decoders.csv import CsvDecoder
    from streammoe.pipeline.decoders.jsonl import JsonlDecoder

    decoders: dict[str, type[Decoder]] = {"csv": CsvDecoder, "jsonl": JsonlDecoder, "arrow": ArrowDecoder}
    if format not in decoders:
        raise ConfigError(f"there is no decoder for format {format!r}; choose one of {', '.join(decoders)}")
    return decoders[format]()
