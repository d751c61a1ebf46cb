"""A disk that loses power: what a program did to a folder, and all that may be left of it after a cut.

The program runs on a real folder. `Recorder` stands between it and the calls that move names and flush, and looks at
the folder before each of them, so it also knows what was created and written by whatever means. `Disk.after_a_cut`
then gives every state that the folder may be in when the power goes:

- bytes of a file that were not flushed are there, are not, or are torn: cut off, zeros, or with a hole;
- a name that was made, moved or removed is on disk once *every* folder that it concerns was flushed. Until then each
  such change is there or not, each for itself, whatever came before or after it;
- one move is there wholly or not at all, since that is what the file system promises (docs/delivery.md).

This is more than most file systems do to anyone.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

PERSISTENCE = f"{os.sep}streammoe{os.sep}persistence{os.sep}"
State = frozenset[tuple[str, bytes | None]]
"""Paths below the root, with the bytes of each file; folders have none."""


class Change(NamedTuple):
    """A name that was made, moved or removed."""

    node: int
    gone: tuple[int, str] | None
    """The folder and the name that it no longer has there,"""
    there: tuple[int, str] | None
    """and those that it has now."""

    @property
    def folders(self) -> set[int]:
        return {place[0] for place in (self.gone, self.there) if place is not None}


class Write(NamedTuple):
    node: int
    content: bytes


class Sync(NamedTuple):
    node: int


class Returned(NamedTuple):
    """A call has returned: from here on this is promised."""

    promise: object


Step = Change | Write | Sync | Returned
ROOT = 0


@dataclass
class Disk:
    """What is safe, and what is not yet."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    """Safe names."""
    files: dict[int, bytes] = field(default_factory=dict)
    """Safe content."""
    pending: list[tuple[Change, set[int]]] = field(default_factory=list)
    """Changes of names, with the folders that have yet to be flushed."""
    written: dict[int, bytes] = field(default_factory=dict)
    """Content that has not been flushed."""

    def take(self, step: Step) -> None:
        match step:
            case Change():
                self.pending.append((step, step.folders))
            case Write():
                self.written[step.node] = step.content
            case Sync():
                if step.node in self.written:
                    self.files[step.node] = self.written.pop(step.node)
                for _, folders in self.pending:
                    folders.discard(step.node)
                for change, folders in self.pending:
                    if not folders:
                        _apply(self.folders, change)
                self.pending = [(change, folders) for change, folders in self.pending if folders]
            case Returned():
                pass

    def after_a_cut(self) -> Iterator[State]:
        """Every state that a cut at this moment may leave; some come more than once."""
        changes = [change for change, _ in self.pending]
        for kept in itertools.product([True, False], repeat=len(changes)):
            folders = {node: dict(names) for node, names in self.folders.items()}
            for change, keep in zip(changes, kept, strict=True):
                if keep:
                    _apply(folders, change)
            paths = dict(_walk(folders, ROOT, ""))
            torn = [node for node in self.written if node in paths.values()]
            for contents in itertools.product(*(_torn(self.files.get(node, b""), self.written[node]) for node in torn)):
                left = {**self.files, **dict(zip(torn, contents, strict=True))}
                yield frozenset(
                    (path, None if path.endswith("/") else left.get(node, b"")) for path, node in paths.items()
                )


def _apply(folders: dict[int, dict[str, int]], change: Change) -> None:
    if change.gone is not None:
        names = folders.setdefault(change.gone[0], {})
        if names.get(change.gone[1]) == change.node:
            del names[change.gone[1]]
    if change.there is not None:
        folders.setdefault(change.there[0], {})[change.there[1]] = change.node


def _walk(folders: dict[int, dict[str, int]], folder: int, prefix: str) -> Iterator[tuple[str, int]]:
    for name, node in folders.get(folder, {}).items():
        if node < 0:  # a folder
            yield f"{prefix}{name}/", node
            yield from _walk(folders, node, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", node


def _torn(old: bytes, new: bytes) -> set[bytes]:
    third = len(new) // 3
    hole = new[:third] + bytes(third) + new[2 * third :]
    return {old, new, new[: len(new) // 2], new[:-1], bytes(len(new)), hole}


class Recorder:
    """Runs a program on a real folder and keeps what it did, step by step.

    Args:
        root: the folder, which is safe as it is.
        patch: by which calls are replaced.
        deaf_to: flushes from this line of the program do nothing, as if it were not there.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, *, deaf_to: str | None = None) -> None:
        self.root = root
        self.steps: list[Step] = []
        self.sites: list[str] = []
        """From which lines there were flushes."""
        self._deaf_to = deaf_to
        self._ids = itertools.count(1)
        self._nodes = {root.stat().st_ino: ROOT}
        """Numbers of files (above 0) and folders (below) by the file system's own, which come again and again."""
        self._names: dict[tuple[int, str], int] = {}
        self._contents: dict[int, bytes] = {}
        self._real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "rmdir")}
        self.look()
        self.start = list(self.steps)
        self.steps.clear()
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "fdatasync", self._fsync)
        for name in ("replace", "rename"):
            patch.setattr(os, name, self._moving(name))
        for name in ("unlink", "remove", "rmdir"):
            patch.setattr(os, name, self._removing)

    def disk(self) -> Disk:
        """The disk before the first step."""
        disk = Disk()
        for step in self.start:
            disk.take(step)
        for node in {ROOT, *(step.node for step in self.start if isinstance(step, Change | Write))}:
            disk.take(Sync(node))
        return disk

    def returned(self, promise: object) -> None:
        """A call has returned, and promises this."""
        self.look()
        self.steps.append(Returned(promise))

    def look(self) -> None:
        """Keep what was created and written since the last look."""
        seen = set()
        for folder, names, files in os.walk(self.root):
            names.sort()
            at = self._nodes[Path(folder).stat().st_ino]
            for name in sorted([*names, *files]):
                path = Path(folder, name)
                seen.add((at, name))
                inode = path.stat().st_ino
                if inode not in self._nodes:
                    number = next(self._ids)
                    self._nodes[inode] = -number if path.is_dir() else number
                node = self._nodes[inode]
                if (at, name) not in self._names:
                    self._names[at, name] = node
                    self.steps.append(Change(node, None, (at, name)))
                assert self._names[at, name] == node, f"{path} was replaced by a call that is not watched"
                if node > 0 and self._contents.get(node) != (content := path.read_bytes()):
                    self._contents[node] = content
                    self.steps.append(Write(node, content))
        assert seen == set(self._names), f"{set(self._names) - seen} went by a call that is not watched"

    def _place(self, path: object) -> tuple[int, str]:
        where = Path(os.fspath(path))  # type: ignore[call-overload]
        return self._nodes[where.parent.stat().st_ino], where.name

    def _fsync(self, descriptor: int) -> None:
        self.look()
        site = _site()
        self.sites.append(site)
        self._real["fsync"](descriptor)
        node = self._nodes.get(os.fstat(descriptor).st_ino)
        if node is not None and site != self._deaf_to:
            self.steps.append(Sync(node))

    def _moving(self, name: str):
        def move(source: object, target: object) -> None:
            self.look()
            gone, there = self._place(source), self._place(target)
            self._real[name](source, target)
            node = self._names.pop(gone)
            over = self._names.get(there)
            self._names[there] = node
            self.steps.append(Change(node, gone, there))
            self._forget(over)

        return move

    def _removing(self, path: object, **options: object) -> None:
        self.look()
        gone = self._place(path)
        self._real["rmdir" if Path(os.fspath(path)).is_dir() else "unlink"](path)  # type: ignore[call-overload]
        node = self._names.pop(gone)
        self.steps.append(Change(node, gone, None))
        self._forget(node)

    def _forget(self, node: int | None) -> None:
        """The file system may give the number of a file that is gone to another one."""
        self._nodes = {inode: known for inode, known in self._nodes.items() if known != node}


def _site() -> str:
    """The line that asks for a flush; of the helper that flushes folders, the line that calls it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        PERSISTENCE not in frame.f_code.co_filename or frame.f_code.co_name == "sync_folder"
    ):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}:{frame.f_lineno}"


def materialise(state: State, root: Path) -> None:
    """Make a folder hold this state, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in sorted(state, key=lambda entry: entry[0]):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
