"""Go back to an earlier checkpoint.

Going back to an earlier checkpoint, on purpose: later ones are moved aside, and the daemon learns on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from streammoe.configuration import connectors, load_settings
from streammoe.console import exit_codes, logged, set_up_logging, setting_options
from streammoe.errors import CheckpointError, ConfigError
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock, NewerCheckpointError
from streammoe.ports import Position, parts_of


class RolledBack(NamedTuple):
    """What became of a checkpoint folder."""

    generation: int
    """The one that the next start goes on from."""
    before: int | None
    """The one that it would have gone on from; ``None`` if none of the later ones is sound."""
    n: int
    """Events that the model has learned there."""
    records: int | None
    """Records that will be read and dealt with once more; ``None`` where nobody can say."""
    positions: list[Position | None]
    """Where reading goes on."""
    aside: str
    """Where the later checkpoints are now."""


def roll_back(folder: Path, to: int | None = None) -> RolledBack:
    """Make the next start go on from an earlier generation; the later ones are moved to a folder of their own.

    Durable before it returns. What came after that generation is read and learned again, so the source must still hold
    it; dead letters, and predictions in topics that are not transactional, are written again. The next start cuts
    predictions in files back.

    Args:
        folder: of the checkpoints; no daemon may run in it.
        to: generation to go back to; the newest sound one before the one that a start would take without it.

    Raises:
        CheckpointError: the folder is in use, there is nothing to go back to, or going back would lose events or show
            predictions twice. Nothing was changed.
    """
    store = CheckpointStore(folder)
    if not store.generations():  # before the lock, which would make the folder
        raise CheckpointError(f"checkpoint folder {folder}: there is no checkpoint; give a daemon's checkpoint.dir")
    with FolderLock(folder):
        sound, problems = _sound(store)
        target = _target(store, sound, problems, to)
        there = sound[target]
        later = {generation: found for generation, found in sound.items() if generation > target}
        _refuse_losses(store, target, there, later, [generation for generation in problems if generation > target])
        aside = store.set_aside(after=target)
        assert aside is not None  # noqa: S101 - for the type checker; `_target` has seen later ones
        newest = max(later, default=None)
        return RolledBack(
            generation=target,
            before=newest,
            n=there.metadata.get("n", 0),
            records=None if newest is None else _records(later[newest]) - _records(there),
            positions=there.metadata.get("positions", []),
            aside=str(aside),
        )


def _sound(store: CheckpointStore) -> tuple[dict[int, Checkpoint], dict[int, CheckpointError]]:
    """The checkpoints that can be read, by generation, and what is wrong with the others."""
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
    """The generation to go back to."""
    place = f"checkpoint folder {store.folder}"
    newest = max([*sound, *problems])
    known = f"sound are {', '.join(map(str, sound))}" if sound else "none is sound"
    if to is None:
        # A start passes over what is damaged by itself, so that is not what anybody wants to leave; but not over these.
        newer = [generation for generation, error in problems.items() if isinstance(error, NewerCheckpointError)]
        earlier = [generation for generation in sorted(sound) if generation < max([*sound, *newer])]
        if not earlier:
            raise CheckpointError(f"{place}: there is no earlier sound checkpoint to go back to; {known}")
        return earlier[-1]
    if to in problems:
        raise CheckpointError(f"{problems[to]} ({known})")
    if to not in sound:
        raise CheckpointError(f"{place}: there is no generation {to}; {known}")
    if to == newest:
        raise CheckpointError(f"{place}: generation {to} is the newest already; nothing was done")
    return to


def _refuse_losses(
    store: CheckpointStore,
    target: int,
    there: Checkpoint,
    later: Mapping[int, Checkpoint],
    unreadable: Sequence[int],
) -> None:
    """See that what came after the target can come again, and comes to nobody twice who counts on seeing it once.

    Raises:
        CheckpointError: it cannot.
    """
    place = f"checkpoint folder {store.folder}"
    by_hand = "to go back all the same, move the later checkpoints away by hand"
    everything = {target: there, **later}
    known = connectors()
    if not all(_is_replayable(found, known) for found in everything.values()):
        raise CheckpointError(
            f"{place}: its source, such as stdin, cannot be read again: what was learned after generation {target} "
            f"would be lost. Nothing was done; {by_hand}"
        )
    transactional = [
        generation
        for generation, found in later.items()
        if found.metadata.get("transactional") and found.metadata["counters"]["outcomes"]
    ]
    if there.metadata.get("transactional"):
        # Their numbers would be given anew, and taken for those whose predictions have been seen.
        transactional += unreadable
    if store.confirmed > target or transactional:
        seen = max([store.confirmed, *transactional])
        raise CheckpointError(
            f"{place}: its predictions are transactional, and those up to generation {seen} have been seen, or may "
            f"have been; from generation {target} they would be made again, and be seen twice. Nothing was done; "
            "a start goes back by itself where a transaction is missing, and --fresh begins anew"
        )
    before = there.metadata.get("replayed", {})
    for generation, found in later.items():
        files = [name for name, letters in found.metadata.get("replayed", {}).items() if before.get(name) != letters]
        if files:
            raise CheckpointError(
                f"{place}: generation {generation} has learned dead letters of {', '.join(files)}, which are no longer "
                f"in that file; from generation {target} they would be lost. Nothing was done; go "
                f"back no further than to {generation} with --to, or {by_hand}"
            )


def _is_replayable(found: Checkpoint, known: Mapping[str, Any]) -> bool:
    """Whether what came after a checkpoint can be read again, by the connectors that are `known`."""
    parts = (part for position in found.metadata.get("positions", []) for part in parts_of(position))
    return all(getattr(known.get(str(part.get("kind"))), "replayable", True) for part in parts)


def _records(found: Checkpoint) -> int:
    """Records that had been dealt with."""
    return sum(found.metadata.get("counters", {"outcomes": {}})["outcomes"].values())


def to_text(done: RolledBack) -> str:
    """What was done, in sentences."""
    source = ", ".join(json.dumps(position) for position in done.positions) or "the source's beginning"
    again = (
        "what came after it will be read again; nobody can say how much that is"
        if done.records is None
        else f"{done.records:,} records that came after it will be read and learned again"
    )
    return "\n".join(
        [
            f"the next start goes on from generation {done.generation}, with {done.n:,} events learned",
            again,
            f"from {source}",
            f"the later checkpoints are in {done.aside}; to undo this, move them back before the next start",
        ]
    )


@click.command("rollback")
@click.argument("place", metavar="DIR_OR_CONFIG", type=click.Path(path_type=Path))
@click.option("--to", type=click.IntRange(min=1), metavar="GENERATION", help="Else the one before the newest.")
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(
    place: Path, to: int | None, overrides: tuple[str, ...], as_json: bool, log_level: str, log_format: str
) -> None:
    """Make the next start go on from an earlier checkpoint, of a checkpoint folder or of a configuration's.

    The daemon must be stopped. Later checkpoints are moved to a folder of their own; what came after is learned again.

    \b
    Example:
      streammoe rollback state
      streammoe rollback config.toml --to 41
    """
    set_up_logging(log_level, log_format)
    if overrides and place.is_dir():
        raise click.UsageError("--set needs a configuration, and this is a folder")
    with exit_codes():
        folder = place
        if not place.exists():
            raise ConfigError(f"{place}: there is no such folder or file; give a daemon's checkpoint.dir or its config")
        if not place.is_dir():
            folder = Path(load_settings(place, overrides=overrides).checkpoint.dir)
        done = roll_back(folder, to)
        click.echo(json.dumps(done._asdict()) if as_json else to_text(done))
