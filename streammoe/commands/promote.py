"""Make the challenger the model.

The next start predicts with it, and the model before becomes the challenger.
"""

from __future__ import annotations

from pathlib import Path

import click

from streammoe.checked import restoring
from streammoe.console import logged
from streammoe.daemon.challenger import exchanged, parts_of
from streammoe.daemon.checkpoints import learned_digest
from streammoe.daemon.run_state import MOST_NOTED, changed
from streammoe.errors import CheckpointError
from streammoe.estimators import model_of
from streammoe.fields import written
from streammoe.persistence import CheckpointStore, FolderLock
from streammoe.text import time_of_day


def promote(folder: Path) -> list[str]:
    """Write a new generation in which model and challenger of the newest sound one are exchanged; return what to know.

    Nothing is learned again. No daemon may run in the folder.

    Raises:
        CheckpointError: the folder is in use, there is no challenger that has learned anything, or it is unknown
            whether the predictions before the checkpoint are visible. Nothing has been changed.
    """
    where, store = f"checkpoint folder {folder}", CheckpointStore(folder)
    if not store.generations():  # before taking the lock, which would create the folder
        raise CheckpointError(f"{where}: there is no checkpoint; give a daemon's checkpoint.dir")
    with FolderLock(folder) as lock:
        found = store.latest()
        with restoring(folder):
            parts = None if found is None else parts_of(found[1])
        if found is None or parts is None or not model_of(parts[0], folder).n:
            raise CheckpointError(f"{where}: has no challenger that has learned anything; set [challenger], and run")
        generation, checkpoint = found
        before = checkpoint.metadata
        is_transactional = before.get("transactional", False) and any(before["counters"]["outcomes"].values())
        if is_transactional and store.confirmed != generation:
            raise CheckpointError(
                f"{where}: whether the predictions of generation {generation} are visible is unknown, since the daemon "
                "did not end by itself; start it once more, and stop it gracefully"
            )
        with restoring(folder):
            arrays, metadata = exchanged(checkpoint, *parts)
        digest, now = learned_digest(arrays), time_of_day()
        entry = {name: before[name] for name in ("version", "revision")} | {"n": metadata["n"], "time": now}
        entry |= {"event": "promoted", "before": before["state_digest"], "after": digest, "generation": generation}
        metadata["history"] = [*before["history"], entry][-MOST_NOTED:]
        metadata |= {"state_digest": digest, "created": now, "promoted": now}
        # None of the others goes, so that it can be undone.
        promoted = CheckpointStore(folder, len(store.generations()) + 1, lock).save(arrays, metadata)
        if is_transactional:  # there are no predictions between the two
            store.confirm(promoted)
    differing = changed({"model": before["settings"]["model"]}, {"model": metadata["settings"]["model"]})
    options = ", ".join(f"{name} = {written(value)} (was {written(was)})" for name, (was, value) in differing.items())
    return [
        f"generation {promoted}: the model, which has learned {metadata['n']:,} events, is the challenger of before",
        "the next start accepts the settings as they are; when there is time, exchange [model] and [challenger]:",
        options,
        f"to undo this, promote once more, or roll back to generation {generation}",
    ]


@click.command("promote")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@logged
def command(folder: Path) -> None:
    """Make the challenger of a checkpoint folder the model, and the model the challenger.

    Stop the daemon first. `streammoe inspect` shows the scores of both. The settings may stay as they are.

    \b
    Example:
      streammoe promote state
    """
    click.echo("\n".join(promote(folder)))
