"""A disk that loses power: what a program did to a folder, and all that may be left of it after a cut.

The program runs on a real folder. `Recorder` intercepts the calls that move names and flush, and looks at
the folder before each of them, so it also knows what was created and written by whatever means. `Disk.after_a_cut`
then gives every state that the folder may be in when the power goes:

- bytes of a file that were not flushed are there, are not, or are torn: cut off, zeros, or with a hole;
- a name that was made, moved or removed is on disk once *every* folder that it concerns was flushed. Until then each
  such change is there or not, each for itself, whatever came before or after it;
- one move is there wholly or not at all, since that is what the file system promises (docs/delivery.md).

This is more than most file systems do to anyone.
"""

import itertools
import os
import shutil
from pathlib import Path
from typing import NamedTuple

ROOT = 0


class Change(NamedTuple):
    """A name was made, moved or removed: the places, folder and name, that it left and that it has now, if any."""

    node: int
    gone: tuple[int, str] | None
    there: tuple[int, str] | None


class Write(NamedTuple):
    node: int
    content: bytes


class Sync(NamedTuple):
    node: int


class Returned(NamedTuple):
    """A call has returned: from here on this is promised."""

    promise: object


class Disk:
    """What is safe (names by folder, content by file), and what is not yet (changes of names, content)."""

    def __init__(self):
        self.folders = {ROOT: {}}
        self.files = {}
        self.pending = []
        """Changes, with the folders that have yet to be flushed."""
        self.written = {}

    def take(self, step):
        match step:
            case Change():
                self.pending.append((step, {place[0] for place in (step.gone, step.there) if place is not None}))
            case Write():
                self.written[step.node] = step.content
            case Sync():
                if step.node in self.written:
                    self.files[step.node] = self.written.pop(step.node)
                for change, folders in self.pending:
                    folders.discard(step.node)
                    if not folders:
                        _apply(self.folders, change)
                self.pending = [(change, folders) for change, folders in self.pending if folders]

    def after_a_cut(self):
        """Yield every state that a cut at this moment may leave, some more than once.

        A state has the paths below the root with the bytes of each file; folders have none.
        """
        for kept in itertools.product([True, False], repeat=len(self.pending)):
            folders = {node: dict(names) for node, names in self.folders.items()}
            for change, _ in itertools.compress(self.pending, kept):
                _apply(folders, change)
            paths = dict(_walk(folders, ROOT, ""))
            torn = [node for node in self.written if node in paths.values()]
            for contents in itertools.product(*(_torn(self.files.get(node, b""), self.written[node]) for node in torn)):
                left = {**self.files, **dict(zip(torn, contents, strict=True))}
                yield frozenset(
                    (path, None if path.endswith("/") else left.get(node, b"")) for path, node in paths.items()
                )


def _apply(folders, change):
    if change.gone is not None:
        names = folders.setdefault(change.gone[0], {})
        if names.get(change.gone[1]) == change.node:
            del names[change.gone[1]]
    if change.there is not None:
        folders.setdefault(change.there[0], {})[change.there[1]] = change.node


def _walk(folders, folder, prefix):
    for name, node in folders.get(folder, {}).items():
        if node < 0:  # a folder
            yield f"{prefix}{name}/", node
            yield from _walk(folders, node, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", node


def _torn(old, new):
    third = len(new) // 3
    hole = new[:third] + bytes(third) + new[2 * third :]
    return {old, new, new[: len(new) // 2], new[:-1], bytes(len(new)), hole}


class Recorder:
    """Runs a program on a real folder, which is safe as it is, and keeps what it did, step by step."""

    def __init__(self, root, patch):
        self.root = root
        self.steps = []
        self._ids = itertools.count(1)
        self._nodes = {root.stat().st_ino: ROOT}
        """Numbers of files (above 0) and folders (below) by the file system's own, which come again and again."""
        self._names = {}
        self._contents = {}
        self._real = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "rmdir")}
        self.look()
        self.start = self.steps.copy()
        self.steps.clear()
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._fsync)
        for name in ("replace", "rename"):
            patch.setattr(os, name, self._move)
        for name in ("unlink", "remove", "rmdir"):
            patch.setattr(os, name, self._remove)

    def disk(self):
        """The disk before the first step."""
        disk = Disk()
        for step in [*self.start, *(Sync(node) for node in (ROOT, *(step.node for step in self.start)))]:
            disk.take(step)
        return disk

    def returned(self, promise):
        """A call has returned, and promises this."""
        self.look()
        self.steps.append(Returned(promise))

    def look(self):
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

    def _place(self, path):
        path = Path(os.fspath(path))
        return self._nodes[path.parent.stat().st_ino], path.name

    def _fsync(self, descriptor):
        self.look()
        self._real["fsync"](descriptor)
        node = self._nodes.get(os.fstat(descriptor).st_ino)
        if node is not None:
            self.steps.append(Sync(node))

    def _move(self, source, target):
        self.look()
        gone, there = self._place(source), self._place(target)
        self._real["replace"](source, target)
        node, over = self._names.pop(gone), self._names.get(there)
        self._names[there] = node
        self.steps.append(Change(node, gone, there))
        self._forget(over)

    def _remove(self, path, **_):
        self.look()
        gone = self._place(path)
        self._real["rmdir" if Path(os.fspath(path)).is_dir() else "unlink"](path)
        node = self._names.pop(gone)
        self.steps.append(Change(node, gone, None))
        self._forget(node)

    def _forget(self, node):
        """The file system may give the number of a file that is gone to another one."""
        self._nodes = {inode: known for inode, known in self._nodes.items() if known != node}


def materialise(state, root):
    """Make a folder hold this state, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for path, content in sorted(state, key=lambda entry: entry[0]):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
