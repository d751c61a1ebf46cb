"""Copy the newest checkpoint to another place."""

from __future__ import annotations

from pathlib import Path

import click

from streammoe.console import echo_values, logged
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore
from streammoe.persistence.backup import Target, back_up


@click.command("backup")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("target")
@click.option("--keep", type=click.IntRange(min=1), default=3, show_default=True, help="How many backups stay.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(folder: Path, target: str, keep: int, as_json: bool) -> None:
    """Copy the newest sound checkpoint of a folder to another one, or to a URL of fsspec, and read it back.

    The daemon may run. Each daemon needs a target of its own.

    \b
    Example:
      streammoe backup state /mnt/backup/state
      streammoe backup state s3://bucket/state --keep 10
    """
    place = Target(target)
    copied = back_up(CheckpointStore(folder), place)
    if copied is None:
        raise CheckpointError(f"checkpoint folder {folder}: there is no checkpoint yet; give a daemon's checkpoint.dir")
    echo_values(copied, as_json=as_json)
    place.prune(keep)
