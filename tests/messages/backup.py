"""Of backups, what is restored from them, and the mirror of a daemon."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from streammoe.daemon import mirror
from streammoe.daemon.metrics import Metrics
from streammoe.persistence import CheckpointStore
from streammoe.persistence.backup import Target, back_up, restore
from streammoe.settings import CheckpointSettings


def _case(act, spoil=lambda place: None):
    """Return a case of a folder with one checkpoint and a backup of it, to which something happens."""

    def case(folder):
        store, target = CheckpointStore(folder / "state"), Target(f"{folder}/backup")
        store.prepare()
        store.save({"theta": np.zeros(2)}, {"n": 1, "created": "2026-01-01T00:00:00+00:00", "state_digest": "1f"})
        back_up(store, target)
        (name,) = target.backups()
        spoil(folder / "backup" / name)
        act(store, target)

    return case


def _restore(store, target):
    restore(target, store.folder.with_name("new"))


def _make_a_link(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def _mirror(store, target, place="file"):
    (store.folder.parent / "file").touch()
    settings = SimpleNamespace(settings=CheckpointSettings(mirror=str(store.folder.parent / place)))
    with closing(mirror.Mirror(store, settings, Metrics())):
        pass


def _back_up_damaged(store, target):
    store.path(1).write_bytes(b"")
    back_up(store, target)


def _back_up_changed(store, target):
    with patch.object(Path, "read_bytes", return_value=store.path(1).read_bytes()[:-1]):
        target.write(target.backups()[0], b"")


CASES = {
    "restore, over checkpoints": _case(lambda store, target: restore(target, store.folder)),
    "restore, from nowhere": lambda folder: restore(Target(f"{folder}/nowhere"), folder / "state"),
    "restore, cut off": _case(_restore, lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "restore, a link": _case(_restore, _make_a_link),
    "restore, too large": _case(patch("os.sysconf", lambda _: 2)(_restore)),
    "backup, no sound checkpoint": _case(_back_up_damaged),
    "backup, read back": _case(_back_up_changed),
    "backup, a package is missing": lambda _: Target("nosuch://me:word@bucket/path?sig=key"),
    "mirror, no folder": _case(_mirror),
    "mirror, in the checkpoint folder": _case(lambda store, target: _mirror(store, target, "state/copies")),
}
