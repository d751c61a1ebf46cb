"""The ``[source]`` section for files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from streammoe_connectors.formats.records import LARGEST_BYTES


class FileSettings(BaseModel):
    """The ``[source]`` section for files.

    Attributes:
        path: a path or a glob; ``**`` matches any number of folders.
        format: ``auto`` goes by each file's extension.
        block_bytes: how much of a csv or jsonl file is read and decoded at once.
        block_rows: how many rows of a Parquet file are read and decoded at once; fewer take less memory where rows
            are wide.
        max_record_bytes: a longer record is cut and refused.
        follow: whether to wait for ever for what is appended, and for new files; plain csv and jsonl only.
        on_truncate: what to do when a followed file no longer holds what was to be read: ``stop`` with an error, or
            ``restart`` at the beginning of what is there instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["file"]
    path: str = Field(min_length=1)
    format: Literal["auto", "csv", "jsonl", "parquet"] = "auto"
    block_bytes: int = Field(default=1 << 20, ge=4096, le=LARGEST_BYTES)
    block_rows: int = Field(default=1 << 14, ge=1, le=1 << 20)
    max_record_bytes: int = Field(default=1 << 20, ge=1, le=LARGEST_BYTES)
    follow: bool = False
    on_truncate: Literal["stop", "restart"] = "stop"

    @field_validator("follow")
    @classmethod
    def _grows(cls, follow: bool, info: ValidationInfo) -> bool:
        path = info.data.get("path", "").lower()
        if follow and (info.data.get("format") == "parquet" or path.endswith((".gz", ".parquet", ".pq"))):
            raise ValueError("must be false for compressed and Parquet files, which do not grow record by record")
        return follow

    @field_validator("on_truncate")
    @classmethod
    def _followed(cls, on_truncate: str, info: ValidationInfo) -> str:
        if on_truncate == "restart" and info.data.get("follow") is False:
            raise ValueError('must be "stop" unless source.follow is true')
        return on_truncate
