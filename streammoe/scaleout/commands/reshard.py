"""Divide the partitions of stopped daemons among another number of daemons.

Each event is learned by exactly one of them all.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from streammoe.checked import require, restoring, table_of
from streammoe.configuration import connectors
from streammoe.console import logged
from streammoe.daemon.resume import check_bookkeeping
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.persistence import LOCK_NAME, Checkpoint, CheckpointStore, FolderLock
from streammoe.persistence.resharding import NAME, Mark, read_mark
from streammoe.pipeline.label_join import digest_with, divided_labels, label_arrays
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores, Scores
from streammoe.ports import CHAINED, Position, Source
from streammoe.text import listed, printable, shown
from streammoe.types import AnyArray

LOGGER = logging.getLogger("streammoe.commands.reshard")


class ReshardResult(NamedTuple):
    """Result of a division."""

    left: list[str]
    """Folders whose daemons must not run any more."""
    follow: list[str]
    """Folders whose daemons go on, in the order of their shards."""
    positions: list[Position]
    """Where each of those begins."""
    is_new: bool
    """Whether anything was written; it is not if the same division was complete already, or in a dry run."""


def reshard(left: Sequence[Path], follow: Sequence[Path], *, dry_run: bool = False) -> ReshardResult:
    """Divide the partitions that the daemons of some folders have read among those of other, new folders.

    Each new folder gets a checkpoint with the positions of its shard and an empty model; the old folders keep their
    models, for `streammoe reduce`, and get a mark, so that no daemon starts there. After an error or a kill in between
    either the old daemons may still run or none of all; the same call completes it then, and changes nothing once it
    is complete.

    Args:
        left: checkpoint folders of all shards of a group, whose daemons are stopped.
        follow: a new folder for each shard of the new division, in their order.
        dry_run: check everything, and change nothing.

    Raises:
        ConfigError: a folder is named twice.
        CheckpointError: a daemon is running, has no checkpoint, or has not finished; or a new folder is not empty or
            cannot be written.
        SourceError: the positions are not those of all shards of one stream.
    """
    _check_names(left, follow)
    with ExitStack() as stack:
        checkpoints = [_stopped(folder, stack) for folder in left]
        positions = [_position(folder, checkpoint) for folder, checkpoint in zip(left, checkpoints, strict=True)]
        division = _Division(left, follow, positions)
        division.check_marks()
        missing = division.folders_to_write()
        try:
            divided = _redistributed(positions, len(follow))
        except SourceError as error:
            names = listed(list(map(str, left)), "and")
            raise SourceError(f"the positions in {names} cannot be divided: {error}") from None
        if not missing and not division.is_pending:
            saved = [_position(folder, _latest(folder)) for folder in follow]
            return ReshardResult(division.left, division.follow, saved, is_new=False)
        labels = _labels(left, checkpoints, positions, len(follow))
        model = _empty_model(left[0], checkpoints[0])
        if not dry_run:
            for folder in missing:
                stack.enter_context(FolderLock(folder))
                CheckpointStore(folder).prepare()
            division.folders_to_write()  # again, now that nothing else can write there
            # In this order: no daemon may run on the new folders before none may run on the old ones.
            for folder in missing:
                division.mark(is_left=False).write(folder)
            for folder in left:
                division.mark(is_left=True).write(folder)
            for folder, position, waiting in zip(follow, divided, labels, strict=True):
                if folder in missing:
                    _begin(folder, position, model, checkpoints[0], waiting)
        return ReshardResult(division.left, division.follow, divided, is_new=not dry_run)


class _Division:
    """What is divided into what, compared with the marks of an earlier attempt."""

    def __init__(self, left: Sequence[Path], follow: Sequence[Path], positions: Sequence[Position]) -> None:
        self._left_folders, self._follow_folders = left, follow
        self.left, self.follow = ([str(folder.resolve()) for folder in folders] for folders in (left, follow))
        content = json.dumps([self.left, self.follow, positions], sort_keys=True)
        self._plan = hashlib.sha256(content.encode()).hexdigest()
        self.is_pending = False
        """Whether an old folder has no mark of this division yet."""

    def mark(self, *, is_left: bool) -> Mark:
        return Mark(self._plan, is_left, self.left, self.follow)

    def check_marks(self) -> None:
        """Check that no old folder was left in favour of others.

        Raises:
            CheckpointError: one was.
        """
        for folder in self._left_folders:
            mark = read_mark(folder)
            if mark is not None and mark.is_left:
                if (mark.left, mark.follow) != (self.left, self.follow):
                    raise CheckpointError(
                        f"checkpoint folder {folder}: was divided already, from {listed(mark.left, 'and')} into "
                        f"{listed(mark.follow, 'and')}; to complete that, run the same command again with these "
                        "folders, in this order. To go on from there, divide those"
                    )
                self.is_pending |= mark.plan != self._plan
            else:
                self.is_pending = True

    def folders_to_write(self) -> list[Path]:
        """Return the new folders that have no checkpoint of this division yet.

        Raises:
            CheckpointError: one of them holds something else.
        """
        missing = []
        for folder in self._follow_folders:
            if not folder.exists():
                missing.append(folder)
                continue
            mark = read_mark(folder) if folder.is_dir() else None
            is_ours = mark is not None and (mark.is_left, mark.left, mark.follow) == (False, self.left, self.follow)
            has_checkpoint = bool(CheckpointStore(folder).generations())
            if mark is not None and is_ours and has_checkpoint and mark.plan == self._plan:
                continue
            entries = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
            # What an interrupted attempt leaves: the next start would remove temporary files, too.
            known = {LOCK_NAME, NAME} if is_ours else {LOCK_NAME}
            if others := sorted(name for name in entries - known if not name.endswith(".tmp")):
                raise CheckpointError(
                    f"{folder}: holds {shown(others[0])}, and must be empty or missing; name a new folder for each "
                    "shard, such as one whose name has their number in it"
                )
            missing.append(folder)
        return missing


def _check_names(left: Sequence[Path], follow: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for folder in (*left, *follow):
        path = folder.resolve()
        if path in seen:
            raise ConfigError(f"{folder}: is the same folder as {seen[path]}; name each of them once")
        seen[path] = folder


def _stopped(folder: Path, stack: ExitStack) -> Checkpoint:
    """Return the checkpoint of a daemon from which it would resume, and lock its folder."""
    store = CheckpointStore(folder)
    if not store.generations():  # before taking the lock, which would create the folder
        raise CheckpointError(f"checkpoint folder {folder}: there is no checkpoint; give a daemon's checkpoint.dir")
    stack.enter_context(FolderLock(folder))
    generation, checkpoint = _newest(folder)
    if checkpoint.metadata.get("settings") is None:
        raise CheckpointError(f"{folder}: no daemon wrote its checkpoint; give a daemon's checkpoint.dir")
    with restoring(str(folder)):
        check_bookkeeping(checkpoint)
    committed = not checkpoint.metadata.get("transactional") or store.confirmed >= generation
    if not committed and checkpoint.metadata["counters"]["outcomes"]:
        raise CheckpointError(
            f"checkpoint folder {folder}: the daemon ended between its newest checkpoint and the transaction of its "
            "predictions; start it again, and stop it with SIGTERM"
        )
    return checkpoint


def _newest(folder: Path) -> tuple[int, Checkpoint]:
    latest = CheckpointStore(folder).latest()
    assert latest is not None  # noqa: S101 - for the type checker; there are generations
    return latest


def _latest(folder: Path) -> Checkpoint:
    return _newest(folder)[1]


def _position(folder: Path, checkpoint: Checkpoint) -> Position:
    position: Position | None = checkpoint.metadata["positions"][0]
    if position is None:
        raise CheckpointError(f"checkpoint folder {folder}: its daemon has not begun to read; start it once")
    if position.get("kind") == CHAINED:
        raise CheckpointError(
            f"checkpoint folder {folder}: its daemon reads several sources one after the other; once it is at the last "
            "one, let it read that one alone, in a new folder with start = 'committed'"
        )
    return position


def _redistributed(positions: Sequence[Position], count: int) -> list[Position]:
    kinds = {str(position.get("kind")) for position in positions}
    source_class: Any = connectors().get(min(kinds))
    if len(kinds) > 1 or source_class is None:
        raise SourceError(f"they are of the kinds {listed(sorted(kinds), 'and')}, and must be of one that is installed")
    divided: list[Position] = getattr(source_class, "redistributed", Source.redistributed)(positions, count)
    return divided


def _empty_model(folder: Path, checkpoint: Checkpoint) -> MixtureOfExperts:
    """Return a model that has learned nothing, with the options of the one in a checkpoint."""
    empty: MixtureOfExperts = model_of(checkpoint, str(folder)).clone()
    return empty


def _labels(
    folders: Sequence[Path], checkpoints: Sequence[Checkpoint], positions: Sequence[Position], count: int
) -> list[dict[str, AnyArray]]:
    """Return the records that wait for their other half in each new folder; nothing where none waits.

    Raises:
        CheckpointError: the daemons have different settings, by which the new ones could not go on with all of them.
    """
    buffers = [label_arrays(checkpoint.arrays) for checkpoint in checkpoints]
    if not any(len(arrays.get("labels.ends", ())) for arrays in buffers):
        return [{} for _ in range(count)]
    settings = [checkpoint.metadata["settings"] for checkpoint in checkpoints]
    for folder, own in zip(folders, settings, strict=True):
        if own != settings[0]:
            raise CheckpointError(
                f"checkpoint folder {folder}: records wait for their labels, and its daemon has other settings of "
                f"[model], [schema] or [labels] than that of {folders[0]}; start them once with the same, and stop them"
            )
    source_class: Any = connectors()[positions[0]["kind"]]
    n_lags = buffers[0]["labels.lags"].shape[-1] if "labels.lags" in buffers[0] else 0
    with restoring(listed(list(map(str, folders)), "and")):
        key = table_of(settings[0], "labels").get("key")
        require(isinstance(key, str), f"labels.key is {shown(key)}, though records wait for their label")
        return divided_labels(
            buffers, str(key), n_lags, count, lambda location: source_class.reader_of(location, count)
        )


def _begin(
    folder: Path, position: Position, model: MixtureOfExperts, like: Checkpoint, labels: Mapping[str, AnyArray]
) -> None:
    """Write a checkpoint such as a daemon writes before it has learned anything, at another position."""
    with restoring(str(folder)):
        scores: Scores
        if model.is_classifier:
            scores = ClassificationScores()
        else:
            scores = PrequentialScores(PrequentialScores.restore(like.metadata["scores"], like.arrays).outputs)
    CheckpointStore(folder).save(
        {**model.arrays(), **scores.arrays(), **labels, "guard.latest": np.zeros(0, np.bool_)},
        {
            "version": version("streammoe"),
            "settings": like.metadata["settings"],
            **model.identify(),
            "positions": [position],
            "counters": {"outcomes": {}, "reasons": {}},
            "scores": scores.to_json(),
            "transactional": False,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "state_digest": digest_with(model, labels),
        },
    )


def to_text(done: ReshardResult, *, dry_run: bool) -> str:
    """Format the result for a terminal."""
    lines = []
    for index, (folder, position) in enumerate(zip(done.follow, done.positions, strict=True)):
        lines.append(printable(f"shard {index}/{len(done.follow)}  {folder}  {json.dumps(position.get('topics'))}"))
    if dry_run:
        return "\n".join([*lines, "nothing was written"])
    if not done.is_new:
        lines.append("nothing was written: this division is complete already")
    left = listed(done.left, "and")
    lines.append(printable(f"start one daemon in each; none starts in {left} any more, whose models stay"))
    return "\n".join(lines)


@click.command("reshard")
@click.argument("left", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option(
    "--into",
    "follow",
    multiple=True,
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="A new folder, once for each shard, in their order.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(left: tuple[Path, ...], follow: tuple[Path, ...], dry_run: bool, as_json: bool) -> None:
    """Divide the partitions of the daemons of some checkpoint folders among those of new folders.

    Stop all daemons first, and give all of their folders. The new daemons begin with empty models where the old ones
    have ended; the old models stay, for streammoe reduce. After an interruption run the same command again.

    \b
    Example:
      streammoe reshard of-2/0 of-2/1 --into of-3/0 --into of-3/1 --into of-3/2
    """
    done = reshard(left, follow, dry_run=dry_run)
    click.echo(json.dumps(done._asdict()) if as_json else to_text(done, dry_run=dry_run))
