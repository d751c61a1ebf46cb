"""The command line with a signal to itself at a point of its way, such as kill -9 between a sync and a rename.

At the n-th passing of a point it sends itself signals, one after the other. The daemon's own code knows nothing of
this: the points are put around its functions here.

    python -m tests.process.points POINT TIMES SIGNALS run config.toml ...
"""

import os
import signal
import sys
import threading
from pathlib import Path

CHECKPOINT = [
    *("taken", "sinks synced", "begun", "half written", "written", "synced", "renamed", "folder synced"),
    *("pruning", "pruned", "saved", "committing", "committed"),
]
"""Points of a checkpoint, in their order."""
OTHERS = ["importing", "locked", "loading", "seeking", "preparing", "fitting", "learning", "closing"]
NEVER = "it never passed"
"""What a process says that came to its end without having been sent a signal."""


class Trigger:
    """Sends the signals at the given passing of the given point."""

    def __init__(self, point, times, signals):
        assert point in {*OTHERS, *CHECKPOINT}, point
        self.point = point
        self.left = int(times)
        self.signals = [signal.Signals[f"SIG{name}"] for name in signals.split(",")]
        self.noticed = threading.Event()
        self.saving = threading.local()

    def __call__(self, point):
        if point != self.point:
            return
        self.left -= 1
        if self.left:
            return
        if point == "half written":
            os.ftruncate(self.saving.descriptor, os.fstat(self.saving.descriptor).st_size // 2)
        if point == "importing":
            os.kill(os.getpid(), self.signals[0])  # once, since a second one would end it anyway
            return
        for each in self.signals:
            # One by one: two that come before the first is noticed are one.
            self.noticed.clear()
            # Repeated: Python may not look for a signal that comes just as its main thread begins to wait.
            for _ in range(10):
                os.kill(os.getpid(), each)
                if self.noticed.wait(1.0):
                    break
            assert self.noticed.is_set()

    def put(self, owner, name, before=None, after=None, *, when=lambda: True):
        """Pass a point before or after each call of a function."""
        original = getattr(owner, name)

        def passing(*arguments, **more):
            if before is not None and when():
                self(before)
            result = original(*arguments, **more)
            if after is not None and when():
                self(after)
            return result

        setattr(owner, name, passing)

    # Imports are inside, since nothing may be imported before the point "importing".

    def put_points_of_checkpoints(self):
        from streammoe import ports
        from streammoe.daemon.checkpoints import Checkpoints
        from streammoe.persistence import CheckpointStore, store

        saving, replace, fsync, prune = self.saving, store.replace, os.fsync, CheckpointStore._prune
        saving.flushes = pruning = None

        def is_saving():
            return getattr(saving, "flushes", None) is not None

        def replacing(path, *data):
            if path.name.startswith("checkpoint-0"):
                saving.flushes = 0
                self("begun")
            try:
                replace(path, *data)
            finally:
                saving.flushes = None

        def flushing(descriptor):
            if not is_saving():
                fsync(descriptor)
                return
            saving.flushes += 1
            saving.descriptor = descriptor
            if saving.flushes == 1:
                self("half written")
                self("written")
            fsync(descriptor)
            self("synced" if saving.flushes == 1 else "folder synced")

        def pruning_of(*arguments):
            nonlocal pruning
            pruning = True
            prune(*arguments)
            pruning = None

        store.replace, os.fsync, CheckpointStore._prune = replacing, flushing, pruning_of
        self.put(Path, "replace", after="renamed", when=is_saving)
        self.put(Path, "unlink", "pruning", "pruned", when=lambda: pruning)
        self.put(Checkpoints, "save", before="taken")
        self.put(CheckpointStore, "save", "sinks synced", "saved")
        self.put(ports.Source, "commit", "committing", "committed")

    def put_other_points(self):
        from streammoe.daemon.signals import StopFlag
        from streammoe.model.fits import Fit
        from streammoe.persistence import CheckpointStore, FolderLock
        from streammoe.pipeline.pipeline import Pipeline
        from streammoe_connectors.files.source import FileSource

        handle, prepare, prepared = StopFlag._handle, FileSource.prepare, []

        def handling(*arguments):
            handle(*arguments)
            self.noticed.set()

        def preparing(*arguments):
            self("preparing")
            prepared.append(True)
            return prepare(*arguments)

        StopFlag._handle, FileSource.prepare = handling, preparing
        self.put(CheckpointStore, "prepare", "locked")
        self.put(CheckpointStore, "latest", "loading")
        self.put(FileSource, "seek", "seeking")
        self.put(Pipeline, "process", "learning")
        self.put(Fit, "advance", "fitting", when=lambda: prepared)  # not while compiling
        self.put(FolderLock, "close", "closing")

    def find_spec(self, name, path=None, target=None):
        """Find nothing, and pass a point at one import."""
        if name == "click":
            self("importing")


def command(at, words):
    """Run a command; `at` is a point, the number of its passing, and signals such as "KILL" or "TERM,TERM"."""
    from streammoe.__main__ import main

    hit = Trigger(*at) if at is not None else None
    if hit is not None and hit.point == "importing":
        sys.meta_path.insert(0, hit)
    elif hit is not None:
        hit.put_points_of_checkpoints()
        hit.put_other_points()
    sys.argv[1:] = words
    try:
        main()
    finally:
        if hit is not None and hit.left > 0:
            print(f"{NEVER} {at}", file=sys.stderr)


if __name__ == "__main__":
    command(sys.argv[1:4], sys.argv[4:])
