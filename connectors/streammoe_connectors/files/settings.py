"""The ``[source]`` section for files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from streammoe_connectors.formats.texts import TextSettings


def _check_follow(follow: bool, info: ValidationInfo) -> bool:
    path = info.data.get("path", "").lower()
    if follow and (info.data.get("format") == "parquet" or path.endswith((".gz", ".parquet", ".pq"))):
        raise ValueError("must be false for compressed and Parquet files, which do not grow record by record")
    return follow


def _check_on_truncate(on_truncate: str, info: ValidationInfo) -> str:
    if on_truncate == "restart" and info.data.get("follow") is False:
        raise ValueError('must be "stop" unless source.follow is true')
    return on_truncate


class FileSettings(TextSettings):
    """The ``[source]`` section for files.

    Attributes:
        path: a path or a glob; ``**`` matches any number of folders.
        format: ``auto`` goes by each file's extension.
        block_rows: rows of a Parquet file to read and decode at once; fewer take less memory if rows are wide.
        follow: whether to wait for ever for appended records and new files; plain csv and jsonl only.
        on_truncate: what to do when a followed file lost content before it was read: ``stop`` with an error, or
            ``restart`` at the beginning of its current content.
    """

    kind: Literal["file"]
    path: str = Field(min_length=1)
    format: Literal["auto", "csv", "jsonl", "parquet"] = Field(default="auto", validate_default=True)
    block_rows: int = Field(default=1 << 14, ge=1, le=1 << 20)
    follow: Annotated[bool, AfterValidator(_check_follow)] = False
    on_truncate: Annotated[Literal["stop", "restart"], AfterValidator(_check_on_truncate)] = "stop"
