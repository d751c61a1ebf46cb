"""Report every error in a configuration."""

from __future__ import annotations

from pathlib import Path

import click

from streammoe.console import logged, setting_options


@click.command("check-config")
@click.argument("config", type=click.Path(path_type=Path))
@setting_options
@logged
def command(config: Path, overrides: tuple[str, ...]) -> None:
    """Parse a configuration and report every error in it at once; nothing is written.

    \b
    Example:
      streammoe check-config config.toml
    """
    from streammoe.configuration import load_settings

    load_settings(config, overrides=overrides)
    click.echo(f"{config}: no errors")
