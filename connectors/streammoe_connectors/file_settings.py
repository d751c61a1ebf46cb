"""The ``[source]`` section for files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from streammoe_connectors.records import LARGEST_BYTES


class FileSettings(BaseModel):
    """The ``[source]`` section for files.

    Attributes:
        path: a path or a glob; ``**`` matches any number of folders.
        format: ``auto`` goes by each file's extension.
        block_bytes: how much of a csv or jsonl file is read and decoded at once.
        block_rows: how many rows of a Parquet file are read and decoded at once; fewer take less memory where rows
            are wide.
        max_record_bytes: a longer record is cut and refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Literal["file"]
    path: str = Field(min_length=1)
    format: Literal["auto", "csv", "jsonl", "parquet"] = "auto"
    block_bytes: int = Field(default=1 << 20, ge=4096, le=LARGEST_BYTES)
    block_rows: int = Field(default=1 << 14, ge=1, le=1 << 20)
    max_record_bytes: int = Field(default=1 << 20, ge=1, le=LARGEST_BYTES)
