"""Validation of positions, common to all sources."""

from __future__ import annotations

from streammoe.errors import SourceError
from streammoe.ports import Position


def check_kind(position: Position, kind: str) -> None:
    """Raise `SourceError` if a position belongs to another kind of source."""
    if position.get("kind") != kind:
        raise SourceError(
            f"the checkpoint's position is of kind {position.get('kind')!r}, but source.kind is {kind!r}; "
            "go back to that source, or start with a fresh checkpoint folder"
        )


def invalid(kind: str, rule: str) -> SourceError:
    """Return the error for a position that breaks a rule of its kind."""
    return SourceError(
        f"the checkpoint's position is not valid for source.kind {kind!r}: {rule}; go back to an earlier checkpoint, "
        "or start with a fresh checkpoint folder"
    )
