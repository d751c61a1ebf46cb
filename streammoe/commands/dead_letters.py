"""Count, show or replay refused records.

Dead letters looked at, and learned after a fix: exactly once, whatever interrupts it.
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

from streammoe.configuration import load_settings
from streammoe.console import exit_codes, logged, set_up_logging, setting_options
from streammoe.daemon.model import compile_kernels
from streammoe.daemon.resume import resumed_pipeline
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock, replace
from streammoe.pipeline.dead_letters import read_letter
from streammoe.pipeline.label_join import digest_with, label_arrays
from streammoe.pipeline.pipeline import Pipeline, Processed
from streammoe.ports import Batch, DeadLetter
from streammoe.settings import Settings
from streammoe.text import printable

LOGGER = logging.getLogger("streammoe.commands.dead_letters")
AT_ONCE = 1_000
"""Letters that are decoded together."""
LONGEST_SHOWN = 200
"""Characters of a record that are shown."""

# Why a letter is not replayed.
NOT_WHOLE = "no whole record, or written by a version that did not keep what reading it again needs"
OTHER_MODEL = "refused by another model than that of the checkpoint, or before its first checkpoint"
NOT_PASSED = "refused after the last checkpoint of its run; the daemon reads the record again by itself"


class Count(NamedTuple):
    """How many letters have this reason and stage."""

    reason: str
    stage: str
    letters: int


class Contents(NamedTuple):
    """What a file of dead letters holds."""

    counts: list[Count]
    """The most frequent first."""
    unreadable: int
    """Lines that are no letters."""
    shown: list[DeadLetter]
    """The first letters, as many as were asked for."""


class Replayed(NamedTuple):
    """What became of the letters."""

    learned: int
    predicted_only: int
    """Records that pass now and hold no target."""
    refused: dict[str, int]
    """Letters that stay because their records are still refused, by what is wrong with them now."""
    kept: dict[str, int]
    """Letters that stay for another reason."""
    dropped: int
    """Letters that had been learned before, and copies of others."""
    checkpoint: str | None
    """Where the model was saved; ``None`` if nothing was learned, or in a dry run."""
    detail: str | None
    """What is wrong with the first record that is still refused."""


def look_into(path: Path, *, show: int = 0, reason: str | None = None) -> Contents:
    """Count the letters of a file.

    Args:
        path: file of dead letters.
        show: how many to return.
        reason: only letters with this one are counted and returned.

    Raises:
        SourceError: the file cannot be read, or holds something else.
    """
    counts: Counter[tuple[str, str]] = Counter()
    unreadable = letters = 0
    shown: list[DeadLetter] = []
    for line in _lines(path):
        letter = read_letter(line)
        if letter is None:
            unreadable += 1
            continue
        letters += 1
        if reason is None or letter.reason == reason:
            counts[letter.reason, letter.stage] += 1
            if len(shown) < show:
                shown.append(letter)
    _must_be_letters(path, letters, unreadable)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Contents([Count(*key, count) for key, count in ordered], unreadable, shown)


def replay(path: Path, settings: Settings, *, reason: str | None = None, dry_run: bool = False) -> Replayed:
    """Learn the records of dead letters that pass now, as new events, and take those letters out of the file.

    The daemon must not be running. What was learned is in a new checkpoint, whose positions are those of the newest
    one and whose counters count the records as learned instead of refused; it also names the letters. The file is
    rewritten after that, so that whatever comes in between, no letter is learned twice: the next replay drops the
    letters that the checkpoint names. Letters that another model refused, or that were refused after the newest
    checkpoint, stay, since their records have been read or will be read by the daemon.

    Predictions of replayed records are scored and not written.

    Args:
        path: file of dead letters.
        settings: of the daemon, mended.
        reason: only letters with this one are replayed; the others stay.
        dry_run: find out what would pass, and change nothing.

    Raises:
        SourceError: the file cannot be read, or holds something else.
        CheckpointError: the daemon is running, has no checkpoint, or one of other settings; or something cannot be
            written.
    """
    with ExitStack() as stack:
        folder = Path(settings.checkpoint.dir)
        store = CheckpointStore(folder, keep=settings.checkpoint.keep)
        if not store.generations():  # before the lock, which would make the folder
            message = f"checkpoint folder {folder}: there is no checkpoint to go on from; run the daemon first"
            raise CheckpointError(message)
        if not dry_run:
            stack.enter_context(FolderLock(folder))
            store.prepare()
        latest = store.latest()
        assert latest is not None  # noqa: S101 - for the type checker; there are generations
        generation, found = latest
        if found.metadata.get("transactional") and store.confirmed < generation:
            message = (
                f"checkpoint folder {folder}: the daemon ended between its newest checkpoint and the transaction of "
                "its predictions; start it once more, stop it in good order, and replay then"
            )
            raise CheckpointError(message)
        this = _Replay(path, settings, store, found, reason)
        compile_kernels(settings)
        return this.run(dry_run=dry_run)


class _Entry(NamedTuple):
    """A letter, and the lines that hold it."""

    lines: list[int]
    key: str
    letter: DeadLetter


class _Replay:
    """One replay, from the file to the checkpoint and back to the file."""

    def __init__(
        self, path: Path, settings: Settings, store: CheckpointStore, found: Checkpoint, reason: str | None
    ) -> None:
        self.path = path
        self.store = store
        self.found = found
        self.reason = reason
        self.pipeline: Pipeline = resumed_pipeline(settings, found)
        self.place = str(path.resolve())
        names = found.metadata.get("replayed", {})
        self.before: set[str] = {key for keys in names.values() for key in keys}
        """Letters that the checkpoint names: they have been learned."""
        self.gone: set[int] = set()
        """Lines that leave the file."""
        self.named: set[str] = set()
        """Letters of this file that the new checkpoint names."""
        self.kept: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.detail: str | None = None

    def run(self, *, dry_run: bool) -> Replayed:
        lines = list(_lines(self.path))
        size = sum(map(len, lines))
        entries = self._sort(lines)
        # One format and header at a time, in the order of the file.
        for _, same in groupby(entries, key=lambda entry: _way_of_reading(entry.letter)):
            while some := list(islice(same, AT_ONCE)):
                self._take(some)
        learned_any = bool(self.outcomes["learned"] + self.outcomes["predicted_only"])
        checkpoint = None
        if not dry_run:
            if learned_any:
                checkpoint = self._save()
            if self.gone:
                self._rewrite([line for i, line in enumerate(lines) if i not in self.gone], size)
        passed = self.outcomes["learned"] + self.outcomes["predicted_only"]
        return Replayed(
            self.outcomes["learned"],
            self.outcomes["predicted_only"],
            dict(self.refused),
            dict(self.kept),
            len(self.gone) - passed,
            checkpoint,
            self.detail,
        )

    def _sort(self, lines: list[bytes]) -> list[_Entry]:
        """The letters to replay. A restart may have written a letter again; such copies share their fate."""
        copies: dict[str, list[_Entry]] = {}
        for i, line in enumerate(lines):
            letter = read_letter(line)
            if letter is not None:
                key = _key(letter)
                copies.setdefault(key, []).append(_Entry([i], key, letter))
        letters = sum(map(len, copies.values()))
        _must_be_letters(self.path, letters, len(lines) - letters)
        entries = []
        for key, same in copies.items():
            at = [entry.lines[0] for entry in same]
            latest = same[-1].letter
            if key in self.before:
                self._let_go(key, at)
            elif self.reason in {None, latest.reason}:
                reasons = [self._reason_to_keep(entry.letter) for entry in same]
                if None in reasons:
                    entries.append(_Entry(at, key, same[reasons.index(None)].letter))
                else:
                    self.kept[str(reasons[-1])] += len(at)
        return entries

    def _reason_to_keep(self, letter: DeadLetter) -> str | None:
        """Why a letter must not be replayed, if so."""
        if letter.format is None or letter.run is None or letter.events is None:
            return NOT_WHOLE
        passed = self.found.metadata.get("runs", {}).get(letter.run)
        if passed is None:
            return OTHER_MODEL
        return NOT_PASSED if letter.events > passed else None

    def _let_go(self, key: str, lines: list[int]) -> None:
        self.gone.update(lines)
        self.named.add(key)

    def _take(self, entries: list[_Entry]) -> None:
        """Learn letters of the same format and header."""
        processed = self._process(entries)
        for letter in processed.letters:
            self.refused[letter.reason] += 1
            self.detail = self.detail or letter.detail
        for entry, bad in zip(entries, processed.bad, strict=True):
            if not bad:
                self._let_go(entry.key, entry.lines)
                self.reasons[entry.letter.reason] += 1
        for outcome in ("learned", "predicted_only"):
            self.outcomes[outcome] += processed.outcomes[outcome]

    def _process(self, entries: list[_Entry]) -> Processed:
        records = [entry.letter.record + b"\n" for entry in entries]
        like = entries[0].letter
        assert like.format is not None  # noqa: S101 - for the type checker; `_reason_to_keep` has looked
        return self.pipeline.process(
            Batch(
                block=b"".join(records),
                ends=np.cumsum([len(record) for record in records]),
                format=like.format,
                columns=like.columns,
                delimiter=like.delimiter or ",",
                decimal=like.decimal or ".",
                origin=str(self.path),
                location=lambda i: entries[i].letter.location,
                end={},
            )
        )

    def _save(self) -> str:
        """Write the model as the next generation; the positions stay where they are."""
        metadata = self.found.metadata
        outcomes = Counter(metadata["counters"]["outcomes"])
        outcomes.update(self.outcomes)
        outcomes["rejected"] -= sum(self.outcomes.values())
        reasons = Counter(metadata["counters"]["reasons"])
        reasons.subtract(self.reasons)
        model, scores = self.pipeline.model, self.pipeline.scores
        labels = label_arrays(self.found.arrays)
        generation = self.store.save(
            {**model.arrays(), **scores.arrays(), **labels, "guard.latest": self.found.arrays["guard.latest"]},
            {
                **metadata,
                **model.describe(),
                "state_digest": digest_with(model, labels),
                "counters": {"outcomes": dict(outcomes), "reasons": {r: n for r, n in reasons.items() if n}},
                "scores": scores.to_json(),
                # Of each file the latest replay: it has taken those before it out of the file.
                "replayed": {**metadata.get("replayed", {}), self.place: sorted(self.named)},
                "transactional": False,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        )
        return str(self.store.path(generation))

    def _rewrite(self, lines: list[bytes], size: int) -> None:
        """Leave these lines in the file, with its owner and permissions."""
        path = Path(self.place)  # a link stays a link
        before = os.umask(0o077)  # until it has the permissions of the old file, nobody else reads the new one
        try:
            status = path.stat()
            if status.st_size != size:
                message = (
                    f"{self.path}: it has grown while it was replayed, so some process still writes to it; stop that "
                    "one, and replay again: what was learned is in the checkpoint and is not learned again"
                )
                raise CheckpointError(message)
            replace(path, b"".join(lines))
            if os.geteuid() == 0:
                os.chown(path, status.st_uid, status.st_gid)
            path.chmod(status.st_mode & 0o7777)
        except OSError as error:
            message = (
                f"{self.path}: cannot be rewritten ({error.strerror}); make room on the disk or mend its permissions, "
                "and replay again: what was learned is in the checkpoint and is not learned again"
            )
            raise CheckpointError(message) from error
        finally:
            os.umask(before)


def contents_text(found: Contents) -> str:
    """A table of the counts, and the letters that were asked for."""
    width = max([len("reason"), *(len(printable(count.reason)) for count in found.counts)])
    lines = [f"{'reason':{width}}  {'stage':8}  {'letters':>9}"]
    lines += [f"{printable(reason):{width}}  {printable(stage):8}  {n:>9,}" for reason, stage, n in found.counts]
    lines += [f"{'all':{width}}  {'':8}  {sum(count.letters for count in found.counts):>9,}"]
    if found.unreadable:
        lines += ["", f"{found.unreadable:,} line(s) are no letters, such as half a line that a killed process left"]
    for letter in found.shown:
        lines += ["", describe(letter)]
    return "\n".join(lines)


def contents_json(path: Path, found: Contents) -> str:
    """The same as one JSON object."""
    shown = [{**letter._asdict(), "record": letter.record.decode(errors="backslashreplace")} for letter in found.shown]
    return json.dumps(
        {
            "file": str(path),
            "letters": sum(count.letters for count in found.counts),
            "unreadable": found.unreadable,
            "counts": [count._asdict() for count in found.counts],
            "shown": shown,
        }
    )


def replayed_text(done: Replayed, *, dry_run: bool) -> str:
    """What became of the letters, in sentences."""
    would = "would be " if dry_run else ""
    lines = [f"{done.learned:>9,}  {would}learned"]
    if done.predicted_only:
        lines += [f"{done.predicted_only:>9,}  pass, and {would}only predicted: they hold no target"]
    if done.dropped:
        lines += [f"{done.dropped:>9,}  {would}dropped: learned before, or copies"]
    lines += [f"{n:>9,}  stay: still refused ({printable(reason)})" for reason, n in done.refused.items()]
    lines += [f"{n:>9,}  stay: {why}" for why, n in done.kept.items()]
    if done.detail is not None:
        lines += [f"the first that is still refused: {printable(done.detail)}"]
    if done.checkpoint is not None:
        lines += [f"checkpoint {done.checkpoint}"]
    return "\n".join(lines)


def describe(letter: DeadLetter) -> str:
    """A letter in a few lines for a terminal; nothing in it can steer that."""
    location = ", ".join(f"{name} {value}" for name, value in letter.location.items())
    record = letter.record[:LONGEST_SHOWN].decode(errors="backslashreplace")
    more = f" … ({len(letter.record):,} bytes)" if len(letter.record) > LONGEST_SHOWN else ""
    return "\n".join(
        [
            printable(f"{location}: {letter.reason} ({letter.stage})"),
            f"  {printable(letter.detail)}",
            f"  {printable(record)}{more}",
        ]
    )


def _way_of_reading(letter: DeadLetter) -> tuple[object, ...]:
    """What letters must have in common to be read together."""
    return letter.format, letter.columns, letter.delimiter, letter.decimal


def _key(letter: DeadLetter) -> str:
    """What tells a letter from all others: its location, and its record."""
    digest = hashlib.sha256(json.dumps(letter.location, sort_keys=True).encode())
    digest.update(b"\0" + letter.record)
    return digest.hexdigest()[:32]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            yield from stream
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}); give a file of dead letters, see dead_letters.path"
        raise SourceError(message) from error


def _must_be_letters(path: Path, letters: int, unreadable: int) -> None:
    if unreadable and not letters:
        message = f"{path}: none of its {unreadable} lines is a dead letter; give a daemon's dead_letters.path"
        raise SourceError(message)


@click.command("dead-letters")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--show", type=click.IntRange(min=0), default=0, metavar="N", help="Show the first N letters.")
@click.option("--reason", metavar="REASON", help="Only letters with this reason.")
@click.option(
    "--replay",
    "config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Learn the records that pass now, with the model of this configuration, and take them out of the file.",
)
@click.option("--dry-run", is_flag=True, help="With --replay: say what would pass, and change nothing.")
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
    log_level: str,
    log_format: str,
) -> None:
    """Count the records that a daemon refused, show them, or learn them after a fix.

    A replay needs the daemon to be stopped. It learns each record exactly once, as a new event, into a new checkpoint;
    letters whose records are still refused stay in the file.

    \b
    Example:
      streammoe dead-letters state/dead-letters.jsonl --show 5 --reason out_of_range
      streammoe dead-letters state/dead-letters.jsonl --replay config.toml --set model.range_factor=1e9 --dry-run
    """
    set_up_logging(log_level, log_format)
    if config is None and (dry_run or overrides):
        raise click.UsageError("--dry-run and --set need --replay CONFIG")
    if config is not None and show:
        raise click.UsageError("--show and --replay do not go together; show the letters first")
    with exit_codes():
        if config is None:
            found = look_into(file, show=show, reason=reason)
            click.echo(contents_json(file, found) if as_json else contents_text(found))
        else:
            settings = load_settings(config, overrides=overrides)
            done = replay(file, settings, reason=reason, dry_run=dry_run)
            click.echo(json.dumps(done._asdict()) if as_json else replayed_text(done, dry_run=dry_run))
