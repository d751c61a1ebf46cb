"""Report every error in a configuration, and files that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from streammoe.console import logged, setting_options

if TYPE_CHECKING:
    from streammoe.settings import Settings


@click.command("check-config")
@click.argument("config", type=click.Path(path_type=Path))
@setting_options
@logged
def command(config: Path, overrides: tuple[str, ...]) -> None:
    """Parse a configuration and report every error in it at once; nothing is written.

    If there is none, what `run` would say of files that cannot be read, or lack the target, is an error, too, with the
    same exit code. Topics are not looked at.

    \b
    Example:
      streammoe check-config config.toml
    """
    from streammoe.configuration import check_readable_files, load_settings
    from streammoe.persistence.backup import Target

    settings = load_settings(config, overrides=overrides)
    check_readable_files(settings)
    if settings.checkpoint.mirror:
        Target(settings.checkpoint.mirror)  # a package may be missing
    _look_ahead(settings)
    click.echo(f"{config}: no errors")


def _look_ahead(settings: Settings) -> None:
    """Open the source where the next start would, and check its columns, if nothing but files is read.

    Raises:
        SourceError: a file is missing, cannot be read, or lacks a column.
        CheckpointError: there are checkpoints, and none is sound.
    """
    from streammoe.assembly import open_source
    from streammoe.configuration import connectors
    from streammoe.daemon.loop import POLL_SECONDS
    from streammoe.daemon.model import model_from, schema_of
    from streammoe.persistence import CheckpointStore
    from streammoe.pipeline.feature_columns import FeatureColumns

    if not getattr(connectors()[settings.source.kind], "can_look_ahead", False):
        return
    latest = CheckpointStore(settings.checkpoint.dir).latest()
    source = open_source(settings)
    try:
        source.seek(None if latest is None else latest[1].metadata["positions"][0])
        batch = None if source.finished else source.poll(POLL_SECONDS)
        if batch is not None:
            FeatureColumns(model_from(settings), schema_of(settings)).check_header(batch)
    finally:
        source.close()
