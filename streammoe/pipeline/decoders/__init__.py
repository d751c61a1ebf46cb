"""Decoders from the records of a batch to arrays.

Each format has two paths. The fast one takes what a compiled parser accepts unambiguously; all else goes record by
record through the exact one (`to_row`), which alone decides what is rejected and why. Both give the same floats and
texts, so what is learned does not depend on the other records of a batch.
"""

from __future__ import annotations

from collections.abc import Callable

from streammoe.errors import ConfigError
from streammoe.pipeline.decoders.rows import Decoded, Decoder, Row, Values, Wanted, require_targets, to_row

__all__ = ["Decoded", "Decoder", "Row", "Values", "Wanted", "decoder", "require_targets", "to_row"]


def decoder(format: str) -> Decoder:
    """Create the decoder for `format`; raise `ConfigError` if there is none."""
    if format not in _DECODERS:
        raise ConfigError(f"there is no decoder for format {format!r}; choose one of {', '.join(_DECODERS)}")
    return _DECODERS[format]()


def _arrow() -> Decoder:
    from streammoe.pipeline.decoders.arrow import ArrowDecoder

    return ArrowDecoder()


def _csv() -> Decoder:
    from streammoe.pipeline.decoders.csv import CsvDecoder

    return CsvDecoder()


def _jsonl() -> Decoder:
    from streammoe.pipeline.decoders.jsonl import JsonlDecoder

    return JsonlDecoder()


_DECODERS: dict[str, Callable[[], Decoder]] = {"csv": _csv, "jsonl": _jsonl, "arrow": _arrow}
