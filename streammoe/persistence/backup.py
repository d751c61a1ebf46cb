"""Copies of checkpoints in another place, a folder or what fsspec can write to, and the way back."""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streammoe.catalogue import memory_limit
from streammoe.errors import CheckpointError, ConfigError, StreammoeError, not_installed
from streammoe.persistence.durable import make_folder, replace
from streammoe.persistence.format import Checkpoint, NewerCheckpointError, decode, encode
from streammoe.persistence.lock import FolderLock
from streammoe.persistence.store import CheckpointStore
from streammoe.secrets import masked
from streammoe.text import cut

LOGGER = logging.getLogger("streammoe.backup")
# Numbered by themselves, since generations begin again after `--fresh`, and are made again after a rollback.
_NAME = "backup-{:012d}-of-{:012d}.safetensors"
_PATTERN = re.compile(r"backup-(\d{12})-of-(\d{12})\.safetensors", re.ASCII)


class _Folder:
    """A folder, by the names that fsspec has for what its file systems do."""

    def ls(self, root: str, *, detail: bool) -> list[str]:
        return [path.name for path in Path(root).iterdir()]

    def info(self, path: str) -> dict[str, Any]:
        status = Path(path).lstat()
        return {"size": status.st_size, "type": "file" if stat.S_ISREG(status.st_mode) else "other"}

    def cat_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def makedirs(self, root: str, *, exist_ok: bool) -> None:
        make_folder(Path(root))

    def pipe_file(self, path: str, data: bytes) -> None:
        replace(Path(path), data)

    def rm_file(self, path: str) -> None:
        Path(path).unlink()


class Target:
    """Where backups are: a folder, or a URL of fsspec; every method raises `CheckpointError` if it fails.

    Only files with the name of a backup count, and only these are removed. The last one by name is the latest.
    """

    def __init__(self, address: str) -> None:
        self.name = masked(address).rstrip("/")
        self._fs: Any = _Folder()
        self._root = address.removeprefix("file://")
        if "::" in self._root or "://" in self._root:
            try:
                from fsspec.core import url_to_fs
            except ImportError:
                raise not_installed(self.name, "fsspec", "backup") from None
            with self._explained():
                self._fs, self._root = url_to_fs(address, use_listings_cache=False)

    def is_within(self, folder: Path) -> bool:
        """Return whether this is a folder in another one, or that itself."""
        return isinstance(self._fs, _Folder) and Path(self._root).resolve().is_relative_to(folder.resolve())

    def backups(self) -> list[str]:
        """Return the names of the backups, the latest last."""
        with self._explained():
            try:
                names = [path.rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]
            except FileNotFoundError:
                return []
            return sorted(filter(_PATTERN.fullmatch, names))

    def read(self, name: str) -> bytes:
        """Return the content of a backup, if memory has room for it and the copies that checking it makes."""
        with self._explained(name):
            found = self._fs.info(f"{self._root}/{name}")
            if found["type"] != "file" or found.get("islink"):
                raise OSError("it is not a regular file")
            if found["size"] > memory_limit() // 4:
                raise OSError(f"its {found['size']:,} bytes are more than a quarter of this machine's memory")
            return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def latest(self) -> tuple[str, Checkpoint, int]:
        """Return the latest sound backup with its name and size; those that are not are logged."""
        for name in reversed(self.backups()):
            try:
                data = self.read(name)
                return name, decode(data, f"backup {self.name}/{name}"), len(data)
            except NewerCheckpointError:
                raise
            except CheckpointError as error:
                LOGGER.error("going back to the one before: %s", error)  # noqa: TRY400 - it is handled
        raise CheckpointError(
            f"{self.name}: there is no sound backup; name a place to which `streammoe backup` has written"
        )

    def write(self, name: str, data: bytes) -> None:
        """Write a backup, and read it back."""
        with self._explained(name):
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(f"{self._root}/{name}", data)
            if self.read(name) != data:
                raise OSError("it is not what was written")

    def prune(self, keep: int) -> None:
        """Remove all but the latest backups."""
        for name in self.backups()[:-keep]:
            with self._explained(name):
                self._fs.rm_file(f"{self._root}/{name}")

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except (StreammoeError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - file systems of fsspec have exceptions of their own
            reason = cut(masked(getattr(error, "strerror", None) or str(error) or type(error).__name__))
            place = f"backup {self.name}/{name}".rstrip("/")
            kind = ConfigError if isinstance(error, ImportError) else CheckpointError  # such as "Install s3fs"
            # Not from the error, which may hold a login.
            raise kind(f"{place}: cannot be read or written ({reason}); correct that, and repeat") from None


def back_up(store: CheckpointStore, target: Target) -> dict[str, Any] | None:
    """Copy the newest sound checkpoint, unless the latest backup is that; return None if there is none yet.

    It takes no lock: a checkpoint never changes, and where the daemon has removed those that were there, newer ones
    are. One whose predictions are not visible yet could not be resumed from without those before it.
    """
    if target.is_within(store.folder):
        raise ConfigError(f"{target.name}: is in the checkpoint folder, and would be lost with it; name another place")
    while True:
        there = store.generations()
        try:
            found = store.latest()
            if found is not None and found[1].metadata.get("transactional") and found[0] > store.confirmed:
                found = (store.confirmed, store.load(store.confirmed)) if store.confirmed else None
            break
        except CheckpointError:
            if store.generations() == there:
                raise
    if found is None:
        return None
    (generation, checkpoint), data = found, encode(*found[1])
    *_, latest = ["", *target.backups()]
    number, known = map(int, re.findall(r"\d+", latest) or (0, 0))
    if known != generation or target.read(latest) != data:
        latest = _NAME.format(number + 1, generation)
        target.write(latest, data)
    return _copied(target, latest, checkpoint, len(data))


def restore(target: Target, folder: Path) -> dict[str, Any]:
    """Write the latest sound backup into a folder without checkpoints, durably, and note there that it is restored.

    Raises:
        CheckpointError: the folder has checkpoints or is in use, or there is no sound backup.
    """
    store = CheckpointStore(folder)
    with FolderLock(folder):
        if there := store.generations():
            raise CheckpointError(
                f"checkpoint folder {folder}: already has checkpoints, up to generation {there[-1]}; nothing was "
                "restored. Move them away, or name another folder; `rollback` goes back to one of them"
            )
        store.prepare()
        name, checkpoint, size = target.latest()
        copied = _copied(target, name, checkpoint, size)
        if checkpoint.metadata.get("transactional"):
            store.confirm(max(store.confirmed, copied["generation"]))
        metadata = {**checkpoint.metadata, "restored": {"generation": copied["generation"], "at": copied["created"]}}
        store.save(checkpoint.arrays, metadata, after=copied["generation"] - 1)
        store.load(copied["generation"])
    return copied


def _copied(target: Target, name: str, checkpoint: Checkpoint, size: int) -> dict[str, Any]:
    """Describe a backup, of which every text may be a stranger's."""
    said = {key: checkpoint.metadata.get(key) for key in ("n", "state_digest", "created")}
    texts = {key: value if isinstance(value, int) else cut(str(value)) for key, value in said.items()}
    return {"generation": int(name[23:35]), **texts, "bytes": size, "path": f"{target.name}/{name}"}
