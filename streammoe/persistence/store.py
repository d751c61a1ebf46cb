"""A store of the last few checkpoints, by generation."""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.persistence.durable import TEMPORARY_SUFFIX, make_folder, path_of, replace, reporting, sync_folder
from streammoe.persistence.format import Checkpoint, NewerCheckpointError, decode, pieces
from streammoe.persistence.lock import FolderLock
from streammoe.types import AnyArray

logger = logging.getLogger(__name__)

CONFIRMED = "confirmed"
"""Name of the file with the last generation whose predictions are committed; only with transactional predictions."""

STATUS = "status.json"
"""Name of the file that says what the daemon is doing."""

_MAKE_ROOM = "make room on the disk or correct its permissions"
_NAME = re.compile(r"checkpoint-(\d{12,})\.safetensors", re.ASCII)


class CheckpointStore:
    """Checkpoints in one folder, numbered by generation; a restart resumes from the newest sound one.

    Hold a `FolderLock` on the folder while preparing it or saving to it; reading needs none.

    Args:
        folder: holds the checkpoints.
        keep: number of generations to keep.
        lock: renewed at each save, so that a removed folder is created and locked again.
    """

    def __init__(self, folder: str | Path, keep: int = 3, lock: FolderLock | None = None) -> None:
        self.folder = Path(folder)
        self.keep = keep
        self._unsound: set[int] = set()  # generations that could not be loaded and do not count towards `keep`
        self._stuck: set[Path] = set()  # those that could not be removed; each is warned of once
        self._lock = lock

    def prepare(self) -> None:
        """Create the folder, check that it is writable, and remove temporary files of killed processes.

        Raises:
            CheckpointError: the folder cannot be created or written.
        """
        advice = "make it a folder that this user may write, on a disk with room, or set checkpoint.dir to one"
        with reporting(f"checkpoint folder {self.folder}: cannot be written", advice):
            make_folder(self.folder)
            for stale in self.folder.glob(f".checkpoint-*{TEMPORARY_SUFFIX}"):
                stale.unlink()
                logger.warning("removed %s, left half written by an interrupted process", stale)
            probe = self.folder / "checkpoint-probe"
            replace(probe, b"streammoe can write here")  # permissions alone do not reveal a full or read-only disk
            probe.unlink()

    def generations(self) -> list[int]:
        """Return the numbers of the checkpoints in the folder, sound or not, oldest first.

        Raises:
            RetriableCheckpointError: the folder cannot be listed for now.
        """
        numbers: list[int | None] = []
        what, advice = f"{self.folder}: cannot be listed", "name a folder that this user may read"
        with reporting(what, advice, RetriableCheckpointError), suppress(FileNotFoundError):
            numbers = list(map(generation_of, self.folder.iterdir()))
        return sorted(number for number in numbers if number is not None)

    def path(self, generation: int) -> Path:
        """Return the path of the checkpoint of a generation."""
        return self.folder / f"checkpoint-{generation:012d}.safetensors"

    def save(self, arrays: Mapping[str, AnyArray], metadata: Mapping[str, Any], *, after: int = 0) -> int:
        """Write the next generation durably, then remove those beyond the newest `keep`; return its number.

        Args:
            arrays, metadata: see `streammoe.persistence.encode`.
            after: a generation that may have been removed, whose number is not used again.

        Raises:
            RetriableCheckpointError: it cannot be written for now; the older generations are untouched.
            CheckpointError: another process has locked the folder.
        """
        if self._lock is not None:
            with reporting(f"{self.folder}: cannot be written", _MAKE_ROOM, RetriableCheckpointError):
                self._lock.renew()
        generation = max([after, *self.generations()]) + 1
        path = self.path(generation)
        with reporting(f"{path}: cannot be written", _MAKE_ROOM, RetriableCheckpointError):
            replace(path, *pieces(arrays, metadata))
        self._unsound.discard(generation)  # numbers are reused after `set_aside`
        self._stuck.discard(path)
        self._prune()
        return generation

    def load(self, generation: int) -> Checkpoint:
        """Read one generation; raise `CheckpointError` if it is missing, unreadable or not sound."""
        path = self.path(generation)
        return decode(_content(path, "move it away, or correct its permissions"), str(path))

    def latest(self) -> tuple[int, Checkpoint] | None:
        """Return the newest sound checkpoint with its generation, or ``None`` if the folder has no checkpoint.

        Unsound ones are skipped, each logged as an error: what they held is learned again from the source.

        Raises:
            CheckpointError: there are checkpoints but none is sound, since only the user may decide to start over; or
                the newest has a newer format, since going back would undo it.
        """
        generations: list[int] | None = None
        while generations != (there := self.generations()):  # or the daemon has removed those that were there
            generations = there
            for generation in reversed(generations):
                try:
                    return generation, self.load(generation)
                except NewerCheckpointError:
                    raise
                except CheckpointError as error:
                    if os.path.lexists(self.path(generation)):
                        self._unsound.add(generation)
                        # Without a traceback, which would make a handled error look like a bug.
                        logger.error("checkpoint rejected, going back to the one before: %s", error)  # noqa: TRY400
        if not generations:
            return None
        names = ", ".join(self.path(generation).name for generation in generations)
        raise CheckpointError(
            f"checkpoint folder {self.folder}: no checkpoint is sound ({names}); "
            "restore a copy, or move these files away to learn from the beginning"
        )

    def discard(self, after: int) -> None:
        """Remove checkpoints of generations after `after`; raise `CheckpointError` if they cannot be removed."""
        what = f"checkpoint folder {self.folder}: its checkpoints after generation {after} cannot be removed"
        with reporting(what, "remove them by hand"):
            # The newest last: after a kill in between it is still there, and the next start discards it, too.
            for generation in self.generations():
                if generation > after:
                    self.path(generation).unlink()
            sync_folder(self.folder)

    def set_aside(self, after: int = 0) -> Path | None:
        """Move checkpoints of generations after `after` to a sub-folder, so that nothing resumes from them.

        Returns the sub-folder, which is never removed, or ``None`` if there were none; raises `CheckpointError` if they
        cannot be moved.
        """
        generations = [generation for generation in self.generations() if generation > after]
        if not generations:
            return None
        if self.confirmed > after:
            self.confirm(after)  # later numbers will be reused
        advice = "move them away by hand, or set checkpoint.dir to another folder"
        with reporting(f"checkpoint folder {self.folder}: its checkpoints cannot be set aside", advice):
            aside = Path(tempfile.mkdtemp(prefix="set-aside-", dir=self.folder))
            sync_folder(self.folder)  # or a power cut could lose the folder with what was moved there
            # The newest last, so that it is still the newest after a kill in between.
            for generation in generations:
                path = self.path(generation)
                path.rename(aside / path.name)
            sync_folder(aside)
            sync_folder(self.folder)
        which = "the checkpoints that were" if not after else f"the checkpoints after generation {after} that were"
        logger.warning("%s in %s are now in %s", which, self.folder, aside)
        return aside

    @property
    def confirmed(self) -> int:
        """The last confirmed generation, or 0."""
        try:
            return int((self.folder / CONFIRMED).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return 0

    def confirm(self, generation: int) -> None:
        """Record durably that this generation's transaction is committed; raise `CheckpointError` if that fails."""
        path = self.folder / CONFIRMED
        with reporting(f"{path}: cannot be written", _MAKE_ROOM):
            replace(path, f"{generation}\n".encode())

    def _prune(self) -> None:
        try:
            generations = self.generations()
        except RetriableCheckpointError as error:  # the new checkpoint is safe; a surplus file must not stop learning
            logger.warning("old checkpoints cannot be removed: %s", error)
            return
        # Unsound checkpoints must not displace those that can be restored.
        kept = [generation for generation in generations if generation not in self._unsound][-self.keep :]
        if not kept:  # the folder was removed since the new checkpoint was written
            return
        for path in (self.path(generation) for generation in generations if generation < kept[0]):
            if path in self._stuck:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                self._stuck.add(path)
                logger.warning("an old checkpoint cannot be removed: %s", error)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint file, or the newest sound one of a folder.

    Raises:
        CheckpointError: there is none, it is damaged, or it needs a newer version.
    """
    path = path_of(path)
    if path.is_dir():
        found = CheckpointStore(path).latest()
        if found is None:
            raise CheckpointError(
                f"{path}: there is no checkpoint in this folder; give a daemon's checkpoint.dir, or the folder of "
                "global models"
            )
        return found[1]
    return decode(_content(path, "give a saved model or a daemon's checkpoint.dir"), str(path))


def generation_of(path: Path) -> int | None:
    """Parse the generation from the name of a checkpoint file; ``None`` for any other file.

    >>> generation_of(Path("state/checkpoint-000000000042.safetensors"))
    42
    """
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def _content(path: Path, advice: str) -> bytes:
    """Read a regular file; raise `CheckpointError` for others, such as pipes, since reading might never end."""
    with reporting(f"{path}: cannot be read", advice):
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(f"{path}: is not a regular file; {advice}")
        return path.read_bytes()
