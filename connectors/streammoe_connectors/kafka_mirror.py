"""What stands beside a group's committed offsets: whose they are, and of which checkpoint."""

from __future__ import annotations

import json
from typing import NamedTuple


class Mirror(NamedTuple):
    """Metadata of committed offsets."""

    owner: str
    generation: int
    at: float
    """Seconds since 1970."""


def mirror_metadata(owner: str, generation: int, at: float) -> str:
    """What to commit beside the offsets."""
    return json.dumps({"owner": owner, "generation": generation, "at": round(at, 3)})


def parse_mirror(metadata: str | None) -> Mirror | None:
    """What was committed beside offsets; ``None`` if that was somebody else's."""
    try:
        found = json.loads(metadata or "")
        return Mirror(str(found["owner"]), int(found["generation"]), float(found["at"]))
    except (ValueError, TypeError, LookupError):
        return None
