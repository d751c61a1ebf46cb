"""The last few checkpoints of a folder, by generation."""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.persistence.durable import TEMPORARY_SUFFIX, make_folder, path_of, replace, sync_folder
from streammoe.persistence.format import Checkpoint, NewerCheckpointError, decode, pieces
from streammoe.persistence.lock import FolderLock
from streammoe.types import AnyArray

logger = logging.getLogger(__name__)

CONFIRMED = "confirmed"
"""A file that holds the last generation whose transaction is committed; only there with transactions."""

_NAME = re.compile(r"checkpoint-(\d{12,})\.safetensors", re.ASCII)


class CheckpointStore:
    """Checkpoints in one folder, numbered by generation; the newest sound one is where a restart goes on.

    Hold a `FolderLock` on the folder while preparing it or saving to it; reading needs none.

    Args:
        folder: of the checkpoints.
        keep: generations that stay.
        lock: looked after at each save: a folder that was removed is made and locked again.
    """

    def __init__(self, folder: str | Path, keep: int = 3, lock: FolderLock | None = None) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self._refused: set[int] = set()
        """Generations that were not sound, and count as none where old ones are removed."""
        self._stuck: set[int] = set()
        """Generations that could not be removed, of which one warning is enough."""
        self._lock = lock

    def prepare(self) -> None:
        """Create the folder, prove that it can be written, and clear away what a killed process left half written.

        Raises:
            CheckpointError: the folder cannot be created or written.
        """
        try:
            make_folder(self.folder)
            for stale in self.folder.glob(f".checkpoint-*{TEMPORARY_SUFFIX}"):
                stale.unlink()
                logger.warning("removed %s, which an interrupted process left half written", stale)
            probe = self.folder / "checkpoint-probe"
            replace(probe, b"streammoe can write here")  # permissions alone do not tell of a full or read-only disk
            probe.unlink()
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {self.folder}: cannot be written ({error.strerror}); "
                "make it a folder that this user may write, on a disk with room, or set checkpoint.dir to one"
            ) from error

    def generations(self) -> list[int]:
        """Numbers of the checkpoints in the folder, sound or not, oldest first."""
        if not self.folder.is_dir():
            return []
        numbers = map(generation_of, self.folder.iterdir())
        return sorted(number for number in numbers if number is not None)

    def path(self, generation: int) -> Path:
        """Where the checkpoint of a generation is."""
        return self.folder / f"checkpoint-{generation:012d}.safetensors"

    def save(self, arrays: Mapping[str, AnyArray], metadata: Mapping[str, Any]) -> int:
        """Write the next generation, durably, and only then remove those beyond the newest `keep`; return its number.

        Raises:
            RetriableCheckpointError: it cannot be written for now; the older generations are untouched.
            CheckpointError: another process has taken the folder.
        """
        path = self.folder
        try:
            if self._lock is not None:
                self._lock.renew()
            generation = max(self.generations(), default=0) + 1
            path = self.path(generation)
            replace(path, *pieces(arrays, metadata))
        except OSError as error:
            raise RetriableCheckpointError(
                f"{path}: cannot be written ({error.strerror}); make room on the disk or mend its permissions"
            ) from error
        self._refused.discard(generation)  # its number may be given anew once what had it is set aside
        self._stuck.discard(generation)
        self._prune()
        return generation

    def load(self, generation: int) -> Checkpoint:
        """Read one generation.

        Raises:
            CheckpointError: it is missing, unreadable or not sound.
        """
        path = self.path(generation)
        return decode(_content(path, "move it away, or mend its permissions"), str(path))

    def latest(self) -> tuple[int, Checkpoint] | None:
        """Read the newest sound checkpoint and say its generation, or ``None`` from a folder without any.

        Unsound ones are passed over, each logged as an error: what they held is learned again from the source.

        Raises:
            CheckpointError: there are checkpoints but none is sound, since starting afresh must be the user's wish; or
                the newest was written in a newer format, since going back would undo it.
        """
        generations = self.generations()
        for generation in reversed(generations):
            try:
                return generation, self.load(generation)
            except NewerCheckpointError:
                raise
            except CheckpointError as refused:
                self._refused.add(generation)
                # Without a traceback, which would make a handled fault look like a bug
                logger.error("checkpoint refused, going back to the one before: %s", refused)  # noqa: TRY400
        if not generations:
            return None
        names = ", ".join(self.path(generation).name for generation in generations)
        raise CheckpointError(
            f"checkpoint folder {self.folder}: no checkpoint is sound ({names}); "
            "restore a copy, or move these files away to learn from the beginning"
        )

    def set_aside(self, after: int = 0) -> Path | None:
        """Move checkpoints to a new sub-folder, so that nothing goes on from them; return it if there were any.

        Args:
            after: move those of later generations only.

        Raises:
            CheckpointError: they cannot be moved.
        """
        generations = [generation for generation in self.generations() if generation > after]
        if not generations:
            return None
        if self.confirmed > after:
            self.confirm(after)  # numbers above are given anew
        try:
            aside = Path(tempfile.mkdtemp(prefix="set-aside-", dir=self.folder))
            sync_folder(self.folder)  # a power cut must not keep a move into a folder that it has lost
            # The newest last: whatever is left when a process is killed in between, the newest is still the newest.
            for generation in generations:
                path = self.path(generation)
                path.rename(aside / path.name)
            sync_folder(aside)
            sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {self.folder}: its checkpoints cannot be set aside ({error.strerror}); "
                "move them away by hand, or set checkpoint.dir to another folder"
            ) from error
        which = "the checkpoints that were" if not after else f"the checkpoints after generation {after} that were"
        logger.warning("%s in %s are in %s now", which, self.folder, aside)
        return aside

    @property
    def confirmed(self) -> int:
        """The last generation that was told by `confirm`, or 0."""
        try:
            return int((self.folder / CONFIRMED).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0

    def confirm(self, generation: int) -> None:
        """Keep, durably, that what belongs to this generation elsewhere is done: its transaction is committed.

        Raises:
            CheckpointError: it cannot be written.
        """
        path = self.folder / CONFIRMED
        try:
            replace(path, f"{generation}\n".encode())
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be written ({error.strerror}); make room on the disk or mend its permissions"
            ) from error

    def _prune(self) -> None:
        try:
            generations = self.generations()
        except OSError as error:  # the new checkpoint is safe; a file too many must not stop the learning
            logger.warning("old checkpoints stay: %s", error)
            return
        # Those that nobody could go back to must not push out those that are left.
        kept = [generation for generation in generations if generation not in self._refused][-self.keep :]
        if not kept:  # somebody has taken the folder away since the new one was written
            return
        for generation in generations:
            if generation >= kept[0] or generation in self._stuck:
                continue
            try:
                self.path(generation).unlink(missing_ok=True)
            except OSError as error:
                self._stuck.add(generation)
                logger.warning("an old checkpoint stays: %s", error)


def read_checkpoint(place: str | os.PathLike[str]) -> Checkpoint:
    """Read one checkpoint file, or the newest sound one of a folder.

    Raises:
        CheckpointError: there is none, it is damaged, or it needs a newer version.
    """
    path = path_of(place)
    if path.is_dir():
        found = CheckpointStore(path).latest()
        if found is None:
            raise CheckpointError(f"{path}: there is no checkpoint in this folder; give a daemon's checkpoint.dir")
        return found[1]
    return decode(_content(path, "give a saved model or a daemon's checkpoint.dir"), str(path))


def generation_of(path: Path) -> int | None:
    """The generation that a file in a checkpoint folder holds, by its name; ``None`` for any other file.

    >>> generation_of(Path("state/checkpoint-000000000042.safetensors"))
    42
    """
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def _content(path: Path, advice: str) -> bytes:
    """The bytes of a file.

    Raises:
        CheckpointError: it cannot be read. A pipe or a device, from which reading might never end, is no file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path}: is no regular file; {advice}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {advice}") from error
