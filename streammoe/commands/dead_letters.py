"""Count, show or replay rejected records.

A replay learns each record exactly once, even if it is interrupted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from streammoe.configuration import DEAD_LETTERS, connectors, contested, load_settings
from streammoe.console import logged, setting_options
from streammoe.daemon.model import compile_kernels
from streammoe.daemon.resume import resume_pipeline
from streammoe.errors import CheckpointError, ConfigError, SourceError
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock, replace
from streammoe.pipeline.dead_letters import read_letter
from streammoe.pipeline.label_join import digest_with, label_arrays
from streammoe.pipeline.pipeline import BatchResult, Pipeline
from streammoe.ports import EXPIRED, Batch, DeadLetter, DeadLetterSink, StoredLetters
from streammoe.settings import DeadLetterFileSettings, Settings
from streammoe.text import printable

LOGGER = logging.getLogger("streammoe.commands.dead_letters")
BATCH_SIZE = 1_000
"""Number of letters that are decoded together."""
MAX_SHOWN_BYTES = 200
"""Number of bytes of a record that are shown."""

# Why a letter is not replayed.
INCOMPLETE = "not a complete record, or written by a version that did not store how to read it again"
HALF = "half of an event, whose other half did not come in time"
OTHER_MODEL = "rejected by another model than that of the checkpoint, or before its first checkpoint"
READ_AGAIN = "rejected after the last checkpoint of its run; the daemon will read the record again"


class Count(NamedTuple):
    """Number of letters with a reason and stage."""

    reason: str
    stage: str
    letters: int


class Contents(NamedTuple):
    """Content of a file of dead letters."""

    counts: list[Count]
    """The most frequent first."""
    unreadable: int
    """Number of lines that are not letters."""
    shown: list[DeadLetter]
    """The first letters, up to the requested number."""


class ReplayResult(NamedTuple):
    """Result of a replay."""

    learned: int
    predicted_only: int
    """Records that are accepted now and have no target."""
    refused: dict[str, int]
    """Letters that stay because their records are still rejected, by their current reason."""
    kept: dict[str, int]
    """Letters that stay for another reason."""
    dropped: int
    """Letters that had been learned before, and duplicates."""
    checkpoint: str | None
    """Path of the new checkpoint; ``None`` if nothing was learned, or in a dry run."""
    detail: str | None
    """Problem of the first record that is still rejected."""


class LetterFile:
    """A file of dead letters, from which those that have been learned are removed.

    Args:
        path: of the file.
    """

    is_rewritten = True
    """Whether letters that have been learned leave it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.origin = str(path)
        """What it is, for messages."""
        self.name = str(path.resolve())
        """Identifies it in checkpoints."""
        self._lines: list[bytes] = []

    def read(self) -> list[DeadLetter | None]:
        """Return the letters; ``None`` for lines that are none.

        Raises:
            SourceError: the file cannot be read, or holds no letter among other lines.
        """
        self._lines = list(_lines(self.path))
        letters = [read_letter(line) for line in self._lines]
        _check_letters(self.origin, letters, "its {} lines")
        return letters

    def remove(self, indexes: set[int]) -> None:
        """Remove these letters durably.

        Raises:
            CheckpointError: the file cannot be rewritten, or has grown since it was read.
        """
        kept = [line for i, line in enumerate(self._lines) if i not in indexes]
        _rewrite(self.path, Path(self.name), kept, sum(map(len, self._lines)))


class LetterTopic:
    """Dead letters that another sink has written, such as a topic, from which nothing can be removed.

    Args:
        settings: of the daemon whose letters they are.
    """

    is_rewritten = False

    def __init__(self, settings: Settings) -> None:
        letters = settings.dead_letters
        stored = getattr(connectors(DEAD_LETTERS)[letters.kind], "stored", DeadLetterSink.stored)
        self._stored: StoredLetters = stored(letters, settings.sources)
        self.origin = self.name = self._stored.name

    def read(self) -> list[DeadLetter | None]:
        """Return the letters; ``None`` for records that are none.

        Raises:
            SourceError: they cannot be read, or there is no letter among other records.
        """
        found: list[DeadLetter | None] = list(self._stored.letters)
        _check_letters(self.origin, found, "its {} records")
        return found

    def remove(self, indexes: set[int]) -> None:
        """Do nothing: checkpoints list what has been learned of them."""


Place = LetterFile | LetterTopic


def place_of_letters(path: Path) -> Place:
    """Return the letters of a file, or those of the daemon with this configuration, a file whose name ends in .toml."""
    if path.suffix != ".toml":
        return LetterFile(path)
    settings = load_settings(path)
    letters = settings.dead_letters
    return LetterFile(Path(letters.path)) if isinstance(letters, DeadLetterFileSettings) else LetterTopic(settings)


def read_contents(path: Path, *, show: int = 0, reason: str | None = None) -> Contents:
    """Count the letters of a file, or those of a daemon.

    Args:
        path: see `place_of_letters`.
        show: how many letters to return.
        reason: count and return only letters with this reason.

    Raises:
        SourceError: the file cannot be read, or is not a file of dead letters.
    """
    counts: Counter[tuple[str, str]] = Counter()
    unreadable = 0
    shown: list[DeadLetter] = []
    for letter in place_of_letters(path).read():
        if letter is None:
            unreadable += 1
        elif reason is None or letter.reason == reason:
            counts[letter.reason, letter.stage] += 1
            if len(shown) < show:
                shown.append(letter)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Contents([Count(*key, count) for key, count in ordered], unreadable, shown)


def replay(path: Path, settings: Settings, *, reason: str | None = None, dry_run: bool = False) -> ReplayResult:
    """Learn the records of dead letters that are accepted now, as new events, and remove those letters from the file.

    The daemon must not be running. The result is saved in a new checkpoint, whose positions are those of the newest one
    and whose counters count the records as learned instead of rejected; it also lists the letters. The file is
    rewritten after that, so that no letter is learned twice even if the replay is interrupted: the next replay drops
    the letters that the checkpoint lists. Letters that another model rejected, or that were rejected after the newest
    checkpoint, stay, since the daemon has read or will read their records.

    Predictions of replayed records are scored and not written. From a topic no letter is removed; checkpoints list
    those that have been learned as long as they are there.

    Args:
        path: see `place_of_letters`.
        settings: the daemon's settings, corrected if they were at fault.
        reason: replay only letters with this reason; the others stay.
        dry_run: report what would be accepted, and change nothing.

    Raises:
        SourceError: the file cannot be read, or is not a file of dead letters.
        CheckpointError: the daemon is running, has no checkpoint, or its checkpoint does not fit the settings; or a
            file cannot be written.
    """
    with ExitStack() as stack:
        folder = Path(settings.checkpoint.dir)
        store = CheckpointStore(folder, keep=settings.checkpoint.keep)
        if not store.generations():  # before taking the lock, which would create the folder
            message = f"checkpoint folder {folder}: there is no checkpoint to resume from; run the daemon first"
            raise CheckpointError(message)
        if not dry_run:
            stack.enter_context(FolderLock(folder))
            store.prepare()
        latest = store.latest()
        assert latest is not None  # noqa: S101 - for the type checker; there are generations
        generation, checkpoint = latest
        if checkpoint.metadata.get("transactional") and store.confirmed < generation:
            message = (
                f"checkpoint folder {folder}: the daemon ended between its newest checkpoint and the transaction of "
                "its predictions; start it again, stop it with SIGTERM, and replay then"
            )
            raise CheckpointError(message)
        replay_run = _Replay(place_of_letters(path), settings, store, checkpoint, reason)
        compile_kernels(settings)
        return replay_run.run(dry_run=dry_run)


class _Entry(NamedTuple):
    """A letter, with the indexes of its lines in the file."""

    lines: list[int]
    key: str
    letter: DeadLetter


class _Replay:
    """One replay, from the file to the checkpoint and back to the file."""

    def __init__(
        self, place: Place, settings: Settings, store: CheckpointStore, checkpoint: Checkpoint, reason: str | None
    ) -> None:
        self.place = place
        self.store = store
        self.checkpoint = checkpoint
        self.reason = reason
        self.pipeline: Pipeline = resume_pipeline(settings, checkpoint)
        replayed = checkpoint.metadata.get("replayed", {})
        self.learned_keys: set[str] = {key for keys in replayed.values() for key in keys}
        """Keys of letters that the checkpoint lists: they have been learned."""
        self.lines_to_remove: set[int] = set()
        """Indexes of lines."""
        self.replayed_keys: set[str] = set()
        """Keys of letters of this file that the new checkpoint will list."""
        self.kept: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.detail: str | None = None

    def run(self, *, dry_run: bool) -> ReplayResult:
        entries = self._select(self.place.read())
        # One format and header at a time, in the order of the file.
        for _, group in groupby(entries, key=lambda entry: _reading_options(entry.letter)):
            while batch := list(islice(group, BATCH_SIZE)):
                self._learn(batch)
        n_accepted = self.outcomes["learned"] + self.outcomes["predicted_only"]
        checkpoint = None
        if not dry_run:
            if n_accepted:
                checkpoint = self._save()
            if self.lines_to_remove:
                self.place.remove(self.lines_to_remove)
        return ReplayResult(
            self.outcomes["learned"],
            self.outcomes["predicted_only"],
            dict(self.refused),
            dict(self.kept),
            len(self.lines_to_remove) - n_accepted,
            checkpoint,
            self.detail,
        )

    def _select(self, letters: list[DeadLetter | None]) -> list[_Entry]:
        """Select the letters to replay; a letter that a restart has written again is selected once."""
        copies: dict[str, list[_Entry]] = {}
        for i, letter in enumerate(letters):
            if letter is not None:
                key = _key(letter)
                copies.setdefault(key, []).append(_Entry([i], key, letter))
        entries = []
        for key, duplicates in copies.items():
            line_numbers = [entry.lines[0] for entry in duplicates]
            latest = duplicates[-1].letter
            if key in self.learned_keys:
                self._remove(key, line_numbers)
            elif self.reason in {None, latest.reason}:
                reasons = [self._reason_to_keep(entry.letter) for entry in duplicates]
                if None in reasons:
                    entries.append(_Entry(line_numbers, key, duplicates[reasons.index(None)].letter))
                else:
                    self.kept[str(reasons[-1])] += len(line_numbers)
        return entries

    def _reason_to_keep(self, letter: DeadLetter) -> str | None:
        """Return why a letter must not be replayed, or None."""
        if letter.reason == EXPIRED:
            return HALF
        if letter.format is None or letter.run is None or letter.events is None:
            return INCOMPLETE
        events_saved = self.checkpoint.metadata.get("runs", {}).get(letter.run)
        if events_saved is None:
            return OTHER_MODEL
        return READ_AGAIN if letter.events > events_saved else None

    def _remove(self, key: str, lines: list[int]) -> None:
        self.lines_to_remove.update(lines)
        self.replayed_keys.add(key)

    def _learn(self, entries: list[_Entry]) -> None:
        """Learn letters of the same format and header."""
        processed = self._process(entries)
        for letter in processed.letters:
            self.refused[letter.reason] += 1
            self.detail = self.detail or letter.detail
        for entry, bad in zip(entries, processed.bad, strict=True):
            if not bad:
                self._remove(entry.key, entry.lines)
                self.reasons[entry.letter.reason] += 1
        for outcome in ("learned", "predicted_only"):
            self.outcomes[outcome] += processed.outcomes[outcome]

    def _process(self, entries: list[_Entry]) -> BatchResult:
        records = [entry.letter.record + b"\n" for entry in entries]
        first = entries[0].letter
        assert first.format is not None  # noqa: S101 - for the type checker; `_reason_to_keep` has checked
        return self.pipeline.process(
            Batch(
                block=b"".join(records),
                ends=np.cumsum([len(record) for record in records]),
                format=first.format,
                columns=first.columns,
                delimiter=first.delimiter or ",",
                decimal=first.decimal or ".",
                origin=self.place.origin,
                locations=[entry.letter.location for entry in entries],
                keys=[entry.letter.key for entry in entries],
                headers=[entry.letter.headers or () for entry in entries],
                end={},
            )
        )

    def _save(self) -> str:
        """Save the model as the next generation, with unchanged positions."""
        metadata = self.checkpoint.metadata
        outcomes = Counter(metadata["counters"]["outcomes"])
        outcomes.update(self.outcomes)
        outcomes["rejected"] -= sum(self.outcomes.values())
        reasons = Counter(metadata["counters"]["reasons"])
        reasons.subtract(self.reasons)
        model, scores = self.pipeline.model, self.pipeline.scores
        labels = label_arrays(self.checkpoint.arrays)
        generation = self.store.save(
            {**model.arrays(), **scores.arrays(), **labels, "guard.latest": self.checkpoint.arrays["guard.latest"]},
            {
                **metadata,
                **model.describe(),
                "state_digest": digest_with(model, labels),
                "counters": {"outcomes": dict(outcomes), "reasons": {r: n for r, n in reasons.items() if n}},
                "scores": scores.to_json(),
                # Only the latest replay of each file: letters of earlier ones have left the file.
                "replayed": {**metadata.get("replayed", {}), self.place.name: sorted(self.replayed_keys)},
                "transactional": False,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
        return str(self.store.path(generation))


def _rewrite(given: Path, path: Path, lines: list[bytes], size: int) -> None:
    """Replace the content of a file, keeping its owner and permissions.

    Args:
        given: its path as it was given, for messages.
        path: the same without symbolic links, which stay.
        lines: the new content.
        size: of the present content, if nothing has been added to it.
    """
    umask = os.umask(0o077)  # other users must not read the new file before it has the permissions of the old one
    try:
        status = path.stat()
        if status.st_size != size:
            message = (
                f"{given}: it has grown during the replay, so some process still writes to it; stop that process and "
                "replay again: learned records are in the checkpoint and are not learned twice"
            )
            raise CheckpointError(message)
        replace(path, b"".join(lines))
        if os.geteuid() == 0:
            os.chown(path, status.st_uid, status.st_gid)
        path.chmod(status.st_mode & 0o7777)
    except OSError as error:
        message = (
            f"{given}: cannot be rewritten ({error.strerror}); make room on the disk or fix its permissions, and "
            "replay again: learned records are in the checkpoint and are not learned twice"
        )
        raise CheckpointError(message) from error
    finally:
        os.umask(umask)


def contents_text(contents: Contents) -> str:
    """Format the counts as a table, followed by the requested letters."""
    width = max([len("reason"), *(len(printable(count.reason)) for count in contents.counts)])
    lines = [f"{'reason':{width}}  {'stage':8}  {'letters':>9}"]
    lines += [f"{printable(reason):{width}}  {printable(stage):8}  {n:>9,}" for reason, stage, n in contents.counts]
    lines += [f"{'all':{width}}  {'':8}  {sum(count.letters for count in contents.counts):>9,}"]
    if contents.unreadable:
        lines += [
            "",
            f"{contents.unreadable:,} line(s) are not letters, such as a partial line left by a killed process",
        ]
    for letter in contents.shown:
        lines += ["", describe(letter)]
    return "\n".join(lines)


def contents_json(path: Path, contents: Contents) -> str:
    """Format the contents as one JSON object."""
    shown = [
        {
            **letter._asdict(),
            "record": _text(letter.record),
            "key": None if letter.key is None else _text(letter.key),
            "headers": [[name, None if value is None else _text(value)] for name, value in letter.headers or ()],
        }
        for letter in contents.shown
    ]
    return json.dumps(
        {
            "file": str(path),
            "letters": sum(count.letters for count in contents.counts),
            "unreadable": contents.unreadable,
            "counts": [count._asdict() for count in contents.counts],
            "shown": shown,
        }
    )


def replayed_text(done: ReplayResult, *, dry_run: bool) -> str:
    """Format the result of a replay for a terminal."""
    would = "would be " if dry_run else ""
    lines = [f"{done.learned:>9,}  {would}learned"]
    if done.predicted_only:
        lines += [f"{done.predicted_only:>9,}  {would}only predicted: they have no target"]
    if done.dropped:
        lines += [f"{done.dropped:>9,}  {would}dropped: learned before, or duplicates"]
    lines += [f"{n:>9,}  stay: still rejected ({printable(reason)})" for reason, n in done.refused.items()]
    lines += [f"{n:>9,}  stay: {why}" for why, n in done.kept.items()]
    if done.detail is not None:
        lines += [f"the first that is still rejected: {printable(done.detail)}"]
    if done.checkpoint is not None:
        lines += [f"checkpoint {done.checkpoint}"]
    return "\n".join(lines)


def describe(letter: DeadLetter) -> str:
    """Format a letter in a few lines for a terminal, with control characters escaped."""
    location = ", ".join(f"{name} {value}" for name, value in letter.location.items())
    record = _text(letter.record[:MAX_SHOWN_BYTES])
    more = f" … ({len(letter.record):,} bytes)" if len(letter.record) > MAX_SHOWN_BYTES else ""
    return "\n".join(
        [
            printable(f"{location}: {letter.reason} ({letter.stage})"),
            f"  {printable(letter.detail)}",
            f"  {printable(record)}{more}",
            *(f"  {printable(line)}" for line in _envelope(letter)),
        ]
    )


def _envelope(letter: DeadLetter) -> Iterator[str]:
    """Yield a line for the key of a record and one for each header, cut like the record."""
    if letter.key is not None:
        yield f"key {_text(letter.key[:MAX_SHOWN_BYTES])}"
    for name, value in letter.headers or ():
        yield f"header {name}: {'null' if value is None else _text(value[:MAX_SHOWN_BYTES])}"
    if letter.omitted_bytes is not None:
        yield f"{letter.omitted_bytes:,} bytes of key and headers were left out when it was written"


def _text(octets: bytes) -> str:
    return octets.decode(errors="backslashreplace")


def _reading_options(letter: DeadLetter) -> tuple[object, ...]:
    """Return the options of the decoder, which letters must share to be decoded together."""
    return letter.format, letter.columns, letter.delimiter, letter.decimal


def _key(letter: DeadLetter) -> str:
    """Identify a letter by the location and content of its record."""
    digest = hashlib.sha256(json.dumps(letter.location, sort_keys=True).encode())
    digest.update(b"\0" + letter.record)
    return digest.hexdigest()[:32]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            yield from stream
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}); give a file of dead letters (dead_letters.path)"
        raise SourceError(message) from error


def _check_letters(origin: str, found: list[DeadLetter | None], what: str) -> None:
    if found and not any(found):
        message = f"{origin}: none of {what.format(len(found))} is a dead letter; give a daemon's dead_letters.path"
        raise SourceError(message)


@click.command("dead-letters")
@click.argument("file", metavar="FILE_OR_CONFIG", type=click.Path(path_type=Path))
@click.option(
    "--show", type=click.IntRange(min=0), default=0, metavar="N", help="Show the first N letters, records included."
)
@click.option("--reason", metavar="REASON", help="Count, show or replay only letters with this reason.")
@click.option(
    "--replay",
    "config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Learn the records that are accepted now, with the model of this configuration, and remove their letters.",
)
@click.option("--dry-run", is_flag=True, help="With --replay: report what would be accepted, and change nothing.")
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(
    file: Path,
    show: int,
    reason: str | None,
    config: Path | None,
    dry_run: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count the records that a daemon rejected, show them, or learn them after a fix.

    Give a file of letters, or the configuration (.toml) of a daemon, whose letters may be in a topic. Stop the daemon
    before a replay. It learns each record exactly once, as a new event, and saves a new checkpoint; letters whose
    records are still rejected stay in the file, and all of them in a topic.

    \b
    Example:
      streammoe dead-letters state/dead-letters.jsonl --show 5 --reason out_of_range
      streammoe dead-letters state/dead-letters.jsonl --replay config.toml --set model.range_factor=1e9 --dry-run
    """
    if config is None and (dry_run or overrides):
        raise click.UsageError("--dry-run and --set require --replay CONFIG")
    if config is not None and show:
        raise click.UsageError("--show and --replay cannot be combined; show the letters first")
    if config is None:
        contents = read_contents(file, show=show, reason=reason)
        click.echo(contents_json(file, contents) if as_json else contents_text(contents))
    else:
        settings = load_settings(config, overrides=overrides)
        rewritten = {} if file.suffix == ".toml" else {"FILE_OR_CONFIG": str(file)}
        if problems := list(contested(settings, rewritten, [("--replay", config)])):
            raise ConfigError(*problems)
        done = replay(file, settings, reason=reason, dry_run=dry_run)
        click.echo(json.dumps(done._asdict()) if as_json else replayed_text(done, dry_run=dry_run))
