"""Predict the rows of a file by a saved model."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import click

from streammoe.console import FileOptions, logged, progress_bar, setting_options
from streammoe.errors import TooManyBadRecords
from streammoe.text import amount

LOGGER = logging.getLogger("streammoe.predict")


@click.command("predict")
@click.argument("place")
@click.argument("file")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="By default standard output.")
@click.option("--interval", type=click.FloatRange(0.0, 1.0, max_open=True), default=0.9, show_default=True)
@click.option("--gate/--no-gate", default=False, show_default=True, help="Include the experts' shares.")
@click.option("--format", "form", metavar="FORMAT", help="Such as csv; by default from the extension.")
@setting_options
@logged
def command(
    place: str,
    file: str,
    out: Path | None,
    interval: float,
    gate: bool,
    form: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Write a prediction, in JSON Lines, for each record of a file, or of stdin (-); nothing is learned.

    PLACE is a model's file, a daemon's checkpoint folder, or where backups of one are written. Targets in the file are
    ignored. Records that cannot be read are named on standard error; if all are, the exit code is 5.

    \b
    Example:
      streammoe predict state new.csv --out predictions.jsonl
    """
    import msgspec

    from streammoe.assembly import batches_of
    from streammoe.commands.evaluate.file_settings import settings_of
    from streammoe.commands.evaluate.output_files import as_config_error, check_outputs
    from streammoe.serving.answers import predicted_rows, read
    from streammoe.serving.place import Place

    settings = settings_of(file, FileOptions(("y",), format=form, overrides=overrides), command="predict")
    check_outputs({"--out": out}, settings)
    source = Place(place)
    snapshot = source.snapshot_of(source.read())
    rejected, n, encode = Counter[str](), 0, msgspec.json.Encoder().encode_lines
    with click.open_file(str(out or "-"), "wb") as written, progress_bar("predicting") as follow:
        for batch in batches_of(settings, follow):
            decoded, problems = read(snapshot, batch)
            bad = {i for i, _, _ in problems}
            found = zip(decoded.rows.tolist(), predicted_rows(snapshot, decoded, interval), strict=True)
            rows = {i: row for i, row in found if i not in bad}
            for i, row in rows.items():
                row.place = batch.location(i)
                row.gate = row.gate if gate else msgspec.UNSET
            with as_config_error("--out", out or Path("-")):
                written.write(encode(rows.values()))
            for i, reason, detail in problems:
                if not rejected[reason]:
                    LOGGER.warning("%s is not predicted (%s): %s", batch.location(i), reason, detail)
                rejected[reason] += 1
            n += len(rows)
    if rejected:
        said = ", ".join(f"{reason} {amount(times)}" for reason, times in rejected.items())
        message = f"{amount(n)} records were predicted, and {amount(rejected.total())} were rejected: {said}"
        if not n:
            raise TooManyBadRecords(f"{message}; correct them, or name a model that was learned from such records")
        LOGGER.warning("%s", message)
