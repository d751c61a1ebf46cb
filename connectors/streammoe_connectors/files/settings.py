"""The ``[source]`` section for files."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from streammoe_connectors.formats.events import RecordPath
from streammoe_connectors.formats.records import MAX_BLOCK_BYTES, Dialect, is_like_ascii

FORMATS = {"csv": "CSV files", "jsonl": "JSON Lines", "parquet": "Parquet files"}
"""Names of the formats in messages."""
MEANT_FOR = {
    **dict.fromkeys(("delimiter", "decimal", "header", "skip_lines", "comment"), ("csv",)),
    "encoding": ("csv", "jsonl"),
    "record": ("jsonl",),
}
"""The formats in which a setting has a meaning."""
_BY_EXTENSION = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}


class TextSettings(BaseModel):
    """How text is written, in the ``[source]`` section of files and of the standard input.

    Attributes:
        delimiter: separates two values.
        decimal: decimal mark of numbers; those that contain the delimiter must be quoted.
        header: ``True`` if the first line names the columns; else their names, and every line is a record.
        skip_lines: lines to leave out before the header, or before the first record.
        comment: lines of csv that begin with this are left out.
        encoding: of csv and JSON Lines, by its name in Python.
        record: names that lead from an object of JSON Lines to the one that is the record, such as ``payload.after``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    delimiter: Literal[",", ";", "\t", "|"] = ","
    decimal: Literal[".", ","] = "."
    header: Literal[True] | list[str] = True
    skip_lines: int = Field(default=0, ge=0)
    comment: str | None = None
    encoding: str = "utf-8"
    record: RecordPath | None = None

    @field_validator("delimiter", mode="before")
    @classmethod
    def _parse_tab(cls, delimiter: Any) -> Any:
        return "\t" if delimiter == "\\t" else delimiter  # as a shell passes it

    @field_validator("header", mode="before")
    @classmethod
    def _check_names(cls, header: Any) -> Any:
        names = header if isinstance(header, list) and all(isinstance(name, str) for name in header) else []
        if header is not True and not (names and all(map(str.strip, names)) and len(set(names)) == len(names)):
            raise ValueError('must be true, or name every column once, such as ["a", "b", "y"]')
        return header

    @field_validator("comment")
    @classmethod
    def _check_comment(cls, comment: str | None) -> str | None:
        if comment is not None and not re.fullmatch(r"[!-~]+", comment.replace('"', " ")):
            raise ValueError('must be a mark such as "#", of ASCII characters without quotes and blanks')
        return comment

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, encoding: str) -> str:
        try:
            name = codecs.lookup(encoding).name.removesuffix("-sig")  # a byte order mark is skipped anyway
            is_known = is_like_ascii(name)
        except (LookupError, ValueError):
            raise ValueError(
                f'must be the name of an encoding, such as "latin-1" or "cp1252", not {encoding!r}'
            ) from None
        if not is_known:
            raise ValueError(
                f"must be one that extends ASCII byte by byte, since records are cut at bytes, and {encoding!r} does "
                f"not; convert the file, such as with iconv -f {encoding.upper()} -t UTF-8, and leave the setting out"
            )
        return name

    @field_validator("format", check_fields=False)
    @classmethod
    def _check_dialect(cls, format: str, info: ValidationInfo) -> str:
        known = format
        if format == "auto":
            suffixes = Path(str(info.data.get("path", "")).lower()).suffixes
            known = next((_BY_EXTENSION[suffix] for suffix in suffixes[-2:] if suffix in _BY_EXTENSION), "csv")
        for name, formats in MEANT_FOR.items():
            if known not in formats and info.data.get(name, default := cls.model_fields[name].default) != default:
                raise ValueError(
                    f"must be {' or '.join(formats)} if source.{name} is set, which {FORMATS[known]} do not have"
                )
        return format

    @property
    def dialect(self) -> Dialect:
        """The same, for readers of records."""
        names = None if self.header is True else tuple(self.header)
        return Dialect(
            self.delimiter, self.decimal, names, self.skip_lines, self.comment, self.encoding, self.record or ()
        )


class FileSettings(TextSettings):
    """The ``[source]`` section for files.

    Attributes:
        path: a path or a glob; ``**`` matches any number of folders.
        format: ``auto`` goes by each file's extension.
        block_bytes: bytes of a csv or jsonl file to read and decode at once.
        block_rows: rows of a Parquet file to read and decode at once; fewer take less memory if rows are wide.
        max_record_bytes: a longer record is cut and rejected.
        follow: whether to wait for ever for appended records and new files; plain csv and jsonl only.
        on_truncate: what to do when a followed file lost content before it was read: ``stop`` with an error, or
            ``restart`` at the beginning of its current content.
    """

    kind: Literal["file"]
    path: str = Field(min_length=1)
    format: Literal["auto", "csv", "jsonl", "parquet"] = Field(default="auto", validate_default=True)
    block_bytes: int = Field(default=1 << 20, ge=4096, le=MAX_BLOCK_BYTES)
    block_rows: int = Field(default=1 << 14, ge=1, le=1 << 20)
    max_record_bytes: int = Field(default=1 << 20, ge=1, le=MAX_BLOCK_BYTES)
    follow: bool = False
    on_truncate: Literal["stop", "restart"] = "stop"

    @field_validator("follow")
    @classmethod
    def _check_follow(cls, follow: bool, info: ValidationInfo) -> bool:
        path = info.data.get("path", "").lower()
        if follow and (info.data.get("format") == "parquet" or path.endswith((".gz", ".parquet", ".pq"))):
            raise ValueError("must be false for compressed and Parquet files, which do not grow record by record")
        return follow

    @field_validator("on_truncate")
    @classmethod
    def _check_on_truncate(cls, on_truncate: str, info: ValidationInfo) -> str:
        if on_truncate == "restart" and info.data.get("follow") is False:
            raise ValueError('must be "stop" unless source.follow is true')
        return on_truncate
