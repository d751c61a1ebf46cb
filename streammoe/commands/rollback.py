"""Go back to an earlier checkpoint.

Later checkpoints are moved to a sub-folder, and the daemon resumes from the earlier one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import click

from streammoe.configuration import connectors
from streammoe.console import logged
from streammoe.errors import CheckpointError
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock, NewerCheckpointError


def roll_back(folder: Path, to: int | None = None) -> list[str]:
    """Make the next start resume from an earlier generation, and move the later ones to a sub-folder.

    All is durable when it returns. Records after that generation are read and learned again, so the source must still
    hold them; dead letters, and predictions in topics that are not transactional, are written again. The next start
    truncates predictions in files.

    Args:
        folder: holds the checkpoints; no daemon may run in it.
        to: generation to go back to; by default the newest sound one before the one that a start would load.

    Returns:
        What was done, in lines for people.

    Raises:
        CheckpointError: the folder is in use, there is nothing to go back to, or going back would lose events or show
            predictions twice. Nothing has been changed.
    """
    store = CheckpointStore(folder)
    if not store.generations():  # before taking the lock, which would create the folder
        raise CheckpointError(f"checkpoint folder {folder}: there is no checkpoint; give a daemon's checkpoint.dir")
    with FolderLock(folder):
        sound, problems = _sound(store)
        target = _target(store, sound, problems, to)
        checkpoint = sound[target]
        later = {generation: later_checkpoint for generation, later_checkpoint in sound.items() if generation > target}
        _check_losses(store, target, checkpoint, later, [generation for generation in problems if generation > target])
        aside = store.set_aside(after=target)
    if later:
        n_records = _n_records(later[max(later)]) - _n_records(checkpoint)
        again = f"{n_records:,} records after it will be read and learned again"
    else:
        again = "the records after it will be read again; their number is unknown"
    read = [json.dumps(position) for position in checkpoint.metadata.get("positions", []) if position is not None]
    return [
        f"the next start resumes from generation {target}, with {checkpoint.metadata.get('n', 0):,} events learned",
        again,
        f"from {', '.join(read) or 'the beginning of the source'}",
        f"the later checkpoints are in {aside}; to undo this, move them back before the next start",
    ]


def _sound(store: CheckpointStore) -> tuple[dict[int, Checkpoint], dict[int, CheckpointError]]:
    """Load all checkpoints; return the sound ones and the errors of the others, by generation."""
    sound: dict[int, Checkpoint] = {}
    problems: dict[int, CheckpointError] = {}
    for generation in store.generations():
        try:
            sound[generation] = store.load(generation)
        except CheckpointError as error:
            problems[generation] = error
    return sound, problems


def _target(
    store: CheckpointStore, sound: Mapping[int, Checkpoint], problems: Mapping[int, CheckpointError], to: int | None
) -> int:
    """Determine the generation to go back to."""
    where = f"checkpoint folder {store.folder}"
    newest = max([*sound, *problems])
    known = f"sound are {', '.join(map(str, sound))}" if sound else "none is sound"
    if to is None:
        # A start skips damaged checkpoints anyway, but not those of a newer format.
        newer = [generation for generation, error in problems.items() if isinstance(error, NewerCheckpointError)]
        earlier = [generation for generation in sorted(sound) if generation < max([*sound, *newer])]
        if not earlier:
            raise CheckpointError(f"{where}: there is no earlier sound checkpoint to go back to; {known}")
        return earlier[-1]
    if to in problems:
        raise CheckpointError(f"{problems[to]} ({known})")
    if to not in sound:
        raise CheckpointError(f"{where}: there is no generation {to}; {known}")
    if to == newest:
        raise CheckpointError(f"{where}: generation {to} is the newest already; nothing was changed")
    return to


def _check_losses(
    store: CheckpointStore,
    target: int,
    checkpoint: Checkpoint,
    later: Mapping[int, Checkpoint],
    unreadable: Sequence[int],
) -> None:
    """Check that going back loses no events and shows no transactional predictions twice.

    Raises:
        CheckpointError: it would.
    """
    where = f"checkpoint folder {store.folder}"
    by_hand = "to go back nevertheless, move the later checkpoints away by hand"
    read = [each.metadata.get("positions", []) for each in (checkpoint, *later.values())]
    kinds = {str(position.get("kind")) for position in chain(*read) if position is not None}
    if not all(getattr(connectors().get(kind), "replayable", True) for kind in kinds):
        raise CheckpointError(
            f"{where}: its source, such as stdin, cannot be read again: events learned after generation {target} "
            f"would be lost. Nothing was changed; {by_hand}"
        )
    transactional = [
        generation
        for generation, later_checkpoint in later.items()
        if later_checkpoint.metadata.get("transactional") and later_checkpoint.metadata["counters"]["outcomes"]
    ]
    if checkpoint.metadata.get("transactional"):
        # Their numbers would be reused, and mistaken for generations whose predictions were committed.
        transactional += unreadable
    if store.confirmed > target or transactional:
        seen = max([store.confirmed, *transactional])
        raise CheckpointError(
            f"{where}: its predictions are transactional, and those up to generation {seen} have been seen, or may "
            f"have been; from generation {target} they would be made again, and be seen twice. Nothing was changed; "
            "a start goes back automatically if a transaction is missing, and --fresh starts over"
        )


def _n_records(checkpoint: Checkpoint) -> int:
    """Return the number of records that had been processed."""
    return sum(checkpoint.metadata.get("counters", {"outcomes": {}})["outcomes"].values())


@click.command("rollback")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--to", type=click.IntRange(min=1), metavar="GENERATION", help="By default the one before the newest.")
@logged
def command(folder: Path, to: int | None) -> None:
    """Make the next start resume from an earlier checkpoint of a folder.

    Stop the daemon first. Later checkpoints are moved to a sub-folder; the records after it are learned again.

    \b
    Example:
      streammoe rollback state
      streammoe rollback state --to 41
    """
    click.echo("\n".join(roll_back(folder, to)))
