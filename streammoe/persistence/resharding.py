"""The mark in a checkpoint folder whose partitions were divided anew, by which a start knows whether it may go on.

Several folders cannot be changed at once. The marks make up for it: those that are left have one before those that
follow have a checkpoint, so that at no moment both may be read on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from streammoe.errors import CheckpointError
from streammoe.persistence.durable import replace
from streammoe.persistence.store import CheckpointStore
from streammoe.text import listed

NAME = "resharding"
"""Name of the file with the mark."""


@dataclass(frozen=True)
class Mark:
    """What was divided into what."""

    plan: str
    """Identifies the division: the same folders at the same positions."""
    is_left: bool
    """Whether the folder is one of those that are left; it may have been moved, so that its path does not tell."""
    left: list[str]
    """Folders of the shards that are not read on, by their absolute paths."""
    follow: list[str]
    """Those of the shards that go on where these have ended."""

    def write(self, folder: Path) -> None:
        """Write the mark durably.

        Raises:
            CheckpointError: it cannot be written.
        """
        path = folder / NAME
        try:
            replace(path, json.dumps(asdict(self)).encode())
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be written ({error.strerror}); make room on the disk or correct its permissions, and "
                "run the same command again"
            ) from error


def read_mark(folder: Path) -> Mark | None:
    """Return the mark of a folder; ``None`` if it has none.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = folder / NAME
    try:
        content: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, getattr(error, "strerror", None) or "it is not JSON") from error
    if not _is_mark(content):
        raise _unreadable(path, "it does not hold what streammoe reshard writes")
    return Mark(**content)


def _is_mark(content: Any) -> bool:
    if not isinstance(content, dict) or content.keys() != {field.name for field in fields(Mark)}:
        return False
    lists = [content["left"], content["follow"]]
    return (
        isinstance(content["plan"], str)
        and isinstance(content["is_left"], bool)
        and all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists)
    )


def check_mark(folder: Path) -> None:
    """Check that the daemon of a folder may go on from it.

    Raises:
        CheckpointError: its partitions belong to other daemons now, or are about to be this one's.
    """
    mark = read_mark(folder)
    if mark is None:
        return
    if mark.is_left:
        raise CheckpointError(
            f"checkpoint folder {folder}: its partitions were given to {listed(mark.follow, 'and')} by streammoe "
            "reshard; start the daemons of those. To go back, if none of them has run, remove their folders, and the "
            f"file {NAME} from the old ones"
        )
    if not CheckpointStore(folder).generations():
        raise CheckpointError(
            f"checkpoint folder {folder}: streammoe reshard was interrupted before it wrote the checkpoint to begin "
            "with; run it again, with the same folders"
        )


def _unreadable(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: cannot be read ({why}); correct its permissions, or remove the file if no other daemon reads the "
        "partitions of this folder"
    )
