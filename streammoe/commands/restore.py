"""Write the latest backup into a new checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import click

from streammoe.console import echo_values, logged
from streammoe.persistence.backup import Target, restore


@click.command("restore")
@click.argument("target")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(target: str, folder: Path, as_json: bool) -> None:
    """Write the latest sound backup into a folder without checkpoints, from which the next start then resumes.

    Make sure that the original daemon does not run any more.

    \b
    Example:
      streammoe restore /mnt/backup/state state
    """
    echo_values(restore(Target(target), folder), as_json=as_json)
