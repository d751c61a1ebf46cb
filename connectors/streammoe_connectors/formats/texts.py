"""How text is written, in the ``[source]`` section of files and of the standard input."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from streammoe_connectors.formats.events import RecordPath

_MAX_BYTES = 1 << 30  # decoders hold sizes of blocks in 32 bits
FORMATS = {"csv": "CSV files", "jsonl": "JSON Lines", "parquet": "Parquet files"}
"""Names of the formats in messages."""
MEANT_FOR = {
    **dict.fromkeys(("delimiter", "decimal", "header", "skip_lines"), ("csv",)),
    "encoding": ("csv", "jsonl"),
    "record": ("jsonl",),
}
"""The formats in which a setting has a meaning."""
LIKE_ASCII = re.compile(
    r"utf-8|ascii|iso8859-\d+|cp(125\d|437|775|85\d|86[0-35-9]|932|949|950|1125)|koi8-[ru]|kz1048|ptcp154|tis-620|"
    r"hp-roman8|mac-(cyrillic|greek|iceland|latin2|roman|turkish)|big5(hkscs)?|euc_\w+|gb\w+|johab|shift_jis"
)
"""Encodings whose texts can be cut at line ends and quotes as if they were ASCII: they have no escapes to others."""
PARQUET = "parquet"
ENDINGS = {".csv": "csv", ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": PARQUET, ".pq": PARQUET}
"""The formats of files by the ends of their names, without that of compressed ones."""


def by_extension(path: str) -> tuple[str, bool, str | None]:
    """Return the extension of a path, without one of gzip; whether there is that; and the format, if it is known."""
    extensions = [extension.lower() for extension in Path(path).suffixes]
    gzipped = extensions[-1:] == [".gz"]
    extension = (["", *extensions[:-1]] if gzipped else ["", *extensions])[-1]
    return extension, gzipped, ENDINGS.get(extension)


def _parse_tab(delimiter: Any) -> Any:
    return "\t" if delimiter == "\\t" else delimiter  # as a shell passes it


def _check_names(header: Any) -> Any:
    names = header if isinstance(header, list) and all(isinstance(name, str) for name in header) else []
    if header is not True and not (names and all(map(str.strip, names)) and len(set(names)) == len(names)):
        raise ValueError('must be true, or name every column once, such as ["a", "b", "y"]')
    return header


def _check_encoding(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name.removesuffix("-sig")  # a byte order mark is skipped anyway
    except (LookupError, ValueError):
        raise ValueError(f'must be the name of an encoding, such as "latin-1" or "cp1252", not {encoding!r}') from None
    if not LIKE_ASCII.fullmatch(name):
        raise ValueError(
            f"must be one that extends ASCII byte by byte, since records are cut at bytes, and {encoding!r} does "
            f"not; convert the file, such as with iconv -f {encoding.upper()} -t UTF-8, and leave the setting out"
        )
    return name


class TextSettings(BaseModel):
    """How text is written, in the ``[source]`` section of files and of the standard input.

    Attributes:
        delimiter: separates two values.
        decimal: decimal mark of numbers; those that contain the delimiter must be quoted.
        header: ``True`` if the first line names the columns; else their names, and every line is a record.
        skip_lines: lines to leave out before the header, or before the first record.
        encoding: of csv and JSON Lines, by its name in Python.
        block_bytes: bytes to read and decode at once.
        max_record_bytes: a longer record is cut and rejected.
        record: names that lead from an object of JSON Lines to the one that is the record, such as ``payload.after``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    delimiter: Annotated[Literal[",", ";", "\t", "|"], BeforeValidator(_parse_tab)] = ","
    decimal: Literal[".", ","] = "."
    header: Annotated[Literal[True] | list[str], BeforeValidator(_check_names)] = True
    skip_lines: int = Field(default=0, ge=0)
    encoding: Annotated[str, AfterValidator(_check_encoding)] = "utf-8"
    record: RecordPath | None = None
    block_bytes: int = Field(default=1 << 20, ge=4096, le=_MAX_BYTES)
    max_record_bytes: int = Field(default=1 << 20, ge=1, le=_MAX_BYTES)

    @field_validator("format", check_fields=False)
    @classmethod
    def _check_dialect(cls, format: str, info: ValidationInfo) -> str:
        known = format
        if format == "auto":
            known = by_extension(str(info.data.get("path", "")))[2] or "csv"
        for name, formats in MEANT_FOR.items():
            if known not in formats and info.data.get(name, default := cls.model_fields[name].default) != default:
                raise ValueError(
                    f"must be {' or '.join(formats)} if source.{name} is set, which {FORMATS[known]} do not have"
                )
        return format
