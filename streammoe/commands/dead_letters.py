"""Count rejected records, and write them to a file that a source reads."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import click

from streammoe.commands.evaluate.output_files import check_outputs, write_output
from streammoe.configuration import load_settings
from streammoe.console import logged, setting_options
from streammoe.errors import ConfigError, SourceError
from streammoe.pipeline.dead_letters import letters_in
from streammoe.ports import DeadLetter
from streammoe.settings import DeadLetterFileSettings, Settings
from streammoe.text import printable


class Records:
    """Records of letters as the content of a file that a source reads: JSON Lines, or CSV with its header."""

    def __init__(self) -> None:
        self.incomplete = 0
        """Number of letters without a whole record."""
        self.repeated = 0
        """Number of letters of records that were there already, as a restart writes them again."""
        self._records: dict[tuple[str, tuple[str, ...], str, str], dict[tuple[str, bytes], None]] = {}
        """By format, columns, delimiter and decimal mark, with the places."""

    def add(self, letter: DeadLetter) -> None:
        """Add the record of a letter."""
        if letter.format is None:
            self.incomplete += 1
            return
        form = (letter.format, letter.columns or (), letter.delimiter or ",", letter.decimal or ".")
        known = self._records.setdefault(form, {})
        record = place_in_words(letter.location), letter.record
        self.repeated += record in known
        known[record] = None

    def write(self, path: Path) -> int:
        """Write them to a file as a whole; return their number.

        Raises:
            ConfigError: no file can hold them, or not one of this name.
            SourceError: there are none.
        """
        if not self._records:
            raise SourceError(f"--out {path}: no letter that was asked for holds a whole record; nothing was written")
        if len(self._records) > 1:
            one, other = (printable(next(iter(records))[0]) for records in islice(self._records.values(), 2))
            raise ConfigError(
                f"--out {path}: one file cannot hold records of different columns or formats, such as those at {one} "
                f"and at {other}; write one after the other, with a part of their places, such as --place data.csv"
            )
        (((form, columns, delimiter, _), records),) = self._records.items()
        suffix, name = (".csv", "CSV") if form == "csv" else (".jsonl", "JSON Lines")
        if path.suffix.lower() != suffix:
            raise ConfigError(f"--out {path}: must end in {suffix}, since the records are {name}")
        header = io.StringIO()
        if form == "csv":
            csv.writer(header, delimiter=delimiter, lineterminator="\n").writerow(columns)
        # Line ends in JSON, which records of a topic may have, are blanks between its parts.
        blanks = bytes.maketrans(b"\r\n", b"  " if form != "csv" else b"\r\n")
        lines = [record.rstrip(b"\r\n").translate(blanks) + b"\n" for _, record in records]
        write_output("--out", path, b"".join([header.getvalue().encode(), *lines]))
        return len(lines)


def read_contents(
    settings: Settings, *, reason: str | None = None, place: str | None = None, records: Records | None = None
) -> dict[str, Any]:
    """Count the letters of a daemon; return JSON values: by reason and stage, the most frequent first.

    Args:
        settings: of the daemon.
        reason: count and add only letters with this reason.
        place: and only letters whose place, in words, contains this.
        records: what the records are added to.

    Raises:
        ConfigError: the letters are not in a file.
        SourceError: the letters cannot be read, or there is none among other lines.
    """
    counts: Counter[tuple[str, str]] = Counter()
    unreadable = letters = 0
    stored = settings.dead_letters
    if not isinstance(stored, DeadLetterFileSettings):
        raise ConfigError(
            f"dead_letters.kind: is {stored.kind!r}, and this command reads files; consume the topic, where each "
            "letter is the rejected record, with place, reason and detail in its headers"
        )
    for letter in letters_in(stored.path):
        if letter is None:
            unreadable += 1
            continue
        letters += 1
        if reason not in {None, letter.reason} or (place or "") not in place_in_words(letter.location):
            continue
        counts[letter.reason, letter.stage] += 1
        if records is not None:
            records.add(letter)
    if unreadable and not letters:
        raise SourceError(
            f"dead_letters.path {stored.path}: nothing there is a dead letter; name the file to which this daemon "
            "writes them"
        )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {
        "letters": counts.total(),
        "unreadable": unreadable,
        "counts": [{"reason": reason, "stage": stage, "letters": n} for (reason, stage), n in ordered],
    }


def contents_text(found: Mapping[str, Any]) -> str:
    """Format what `read_contents` returns as a table."""
    rows = [(printable(each["reason"]), printable(each["stage"]), each["letters"]) for each in found["counts"]]
    width = max([len("reason"), *(len(reason) for reason, _, _ in rows)])
    rows.append(("all", "", found["letters"]))
    lines = [f"{'reason':{width}}  {'stage':8}  {'letters':>9}"]
    lines += [f"{reason:{width}}  {stage:8}  {n:>9,}" for reason, stage, n in rows]
    if n := found["unreadable"]:
        lines += ["", f"{n:,} line(s) are not letters, such as a partial line left by a killed process"]
    return "\n".join(lines)


def place_in_words(location: object) -> str:
    """Return a place in words, such as ``path data.csv, offset 122``."""
    return ", ".join(f"{name} {value}" for name, value in dict(location).items())  # type: ignore[call-overload]


@click.command("dead-letters")
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--reason", metavar="REASON", help="Only letters with this reason.")
@click.option(
    "--place", metavar="TEXT", help="Only letters whose place, such as 'path x.csv, offset 122', contains this."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write their records to a file that a source reads, .csv or .jsonl as the records are.",
)
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(
    config: Path,
    reason: str | None,
    place: str | None,
    out: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Count the records that the daemon with this configuration rejected, or write them to a file.

    They are read from the file of [dead_letters], also while the daemon runs, and nothing there changes. What
    --out writes is new data: a run that reads it learns it again, however often it is written.

    \b
    Example:
      streammoe dead-letters config.toml --place x.csv --reason out_of_range
      streammoe dead-letters config.toml --set dead_letters.path=old-letters.jsonl --out again.csv
    """
    settings = load_settings(config, overrides=overrides)
    check_outputs({"--out": out}, settings, [("the configuration", config)])
    records = None if out is None else Records()
    found = read_contents(settings, reason=reason, place=place, records=records)
    lines = [contents_text(found)]
    if out is not None and records is not None:
        done = {"written": records.write(out), "repeated": records.repeated, "incomplete": records.incomplete}
        found |= done
        said = (
            f"record(s) written to {printable(str(out))}",
            "letter(s) repeat one of them, and were left out",
            "letter(s) hold no whole record, and were left out",
        )
        lines += ["", *(f"{n:,} {what}" for n, what in zip(done.values(), said, strict=True) if n)]
    click.echo(json.dumps(found) if as_json else "\n".join(lines))
