"""The command line with a signal to itself at a point of its way, such as kill -9 between a sync and a rename.

    python -m tests.process.points POINT TIMES SIGNALS run config.toml ...

At the TIMES-th passing of POINT it sends itself SIGNALS, one after the other, such as KILL or TERM,TERM. The daemon's
own code knows nothing of this: the points are put around its functions here.
"""

import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

CHECKPOINT = [
    "taken",
    "sinks synced",
    "begun",
    "half written",
    "written",
    "synced",
    "renamed",
    "folder synced",
    "pruning",
    "pruned",
    "saved",
    "telling",
    "told",
]
"""Points of a checkpoint, in their order; ``taken`` is in the thread that learns, beside what the other one does."""
STARTING = ["importing", "settings", "locked", "loading", "compiling", "seeking"]
"""Points before there is anything to save."""
RUNNING = ["preparing", "reading", "fitting", "learning", "closing"]
POINTS = [*STARTING, *RUNNING, *CHECKPOINT]
NEVER = "it never passed"
"""What a process says at its end that came to it without having been sent a signal."""
PATIENCE = 10.0
"""Seconds that the main thread has to take notice of a signal, while this one stands where it is."""

saving = threading.local()


class Trigger:
    """Sends the signals at the given passing of the given point."""

    def __init__(self, point, times, signals):
        assert point in POINTS, point
        self.point = point
        self.left = times
        self.signals = signals
        self.noticed = threading.Event()

    def __call__(self, point):
        if point != self.point:
            return
        self.left -= 1
        if self.left:
            return
        if point == "half written":
            os.ftruncate(saving.descriptor, os.fstat(saving.descriptor).st_size // 2)
        for each in self.signals:
            # One by one: two that come before the first is noticed are one.
            self.noticed.clear()
            # Again and again: Python may not look for a signal that comes just as its main thread begins to wait.
            for _ in range(round(PATIENCE)):
                os.kill(os.getpid(), each)
                if self.noticed.wait(1.0):
                    break
            assert self.noticed.is_set()


def around(owner, name, before=None, after=None):
    """Let something happen before and after a function."""
    original = getattr(owner, name)

    def wrapped(*arguments, **more):
        if before is not None:
            before(*arguments)
        result = original(*arguments, **more)
        if after is not None:
            after(*arguments)
        return result

    setattr(owner, name, wrapped)


def watch_checkpoints(hit):
    """Put the points of a checkpoint where they belong."""
    from streammoe import ports
    from streammoe.daemon.checkpointer import CheckpointWriter
    from streammoe.persistence import CheckpointStore, store

    @contextmanager
    def only_checkpoints(path):
        saving.step = 0 if path.name.startswith("checkpoint-0") else None
        try:
            yield
        finally:
            saving.step = None

    replace, fsync = store.replace, os.fsync

    def watched_replace(path, *data):
        with only_checkpoints(path):
            in_checkpoint("begun")
            replace(path, *data)

    def watched_fsync(descriptor):
        step = getattr(saving, "step", None)
        if step is None:
            fsync(descriptor)
            return
        saving.step += 1
        saving.descriptor = descriptor
        if step == 0:
            hit("half written")
            hit("written")
        fsync(descriptor)
        hit("synced" if step == 0 else "folder synced")

    def in_checkpoint(point):
        if getattr(saving, "step", None) is not None:
            hit(point)

    store.replace, os.fsync = watched_replace, watched_fsync
    around(Path, "replace", after=lambda *_: in_checkpoint("renamed"))
    around(CheckpointWriter, "begin", after=lambda *_: hit("taken"))
    around(CheckpointStore, "save", before=lambda *_: hit("sinks synced"), after=lambda *_: hit("saved"))
    pruning = []
    around(CheckpointStore, "_prune", before=lambda *_: pruning.append(1), after=lambda *_: pruning.clear())
    around(
        Path,
        "unlink",
        before=lambda *_: pruning and hit("pruning"),
        after=lambda *_: pruning and hit("pruned"),
    )
    around(ports.Source, "commit", before=lambda *_: hit("telling"), after=lambda *_: hit("told"))


def watch_the_rest(hit):
    """Put the other points."""
    from streammoe import assembly, configuration
    from streammoe.daemon.signals import StopFlag
    from streammoe.engine import warmup
    from streammoe.persistence import CheckpointStore, FolderLock
    from streammoe.pipeline.pipeline import Pipeline
    from streammoe_connectors.files.source import FileSource

    around(StopFlag, "_handle", after=lambda *_: hit.noticed.set())
    around(configuration, "load_settings", before=lambda *_: hit("settings"))
    around(CheckpointStore, "prepare", before=lambda *_: hit("locked"))
    around(CheckpointStore, "latest", before=lambda *_: hit("loading"))
    around(assembly, "compile_kernels", before=lambda *_: hit("compiling"))
    around(FileSource, "seek", before=lambda *_: hit("seeking"))
    prepared = []
    around(FileSource, "prepare", before=lambda *_: hit("preparing"), after=lambda *_: prepared.append(1))
    around(FileSource, "poll", before=lambda *_: hit("reading"))
    around(Pipeline, "process", before=lambda *_: hit("learning"))
    around(warmup, "fit", before=lambda *_: prepared and hit("fitting"))  # not while compiling
    around(FolderLock, "close", before=lambda *_: hit("closing"))


class WatchedImport:
    """Finds nothing, and tells of one import."""

    def __init__(self, hit):
        self.hit = hit

    def find_spec(self, name, path=None, target=None):
        if name == "click":
            self.hit("importing")


def main():
    point, times, signals, *arguments = sys.argv[1:]
    hit = Trigger(point, int(times), [signal.Signals[f"SIG{name}"] for name in signals.split(",")])
    if point == "importing":
        sys.meta_path.insert(0, WatchedImport(hit))
    else:
        watch_checkpoints(hit)
        watch_the_rest(hit)
    from streammoe.__main__ import main as command

    sys.argv[1:] = arguments
    try:
        command()
    finally:
        if hit.left > 0:
            print(f"{NEVER} {point} {times} times", file=sys.stderr)


if __name__ == "__main__":
    main()
