"""Report every error in a configuration."""

from __future__ import annotations

from pathlib import Path

import click

from streammoe.console import exit_codes, logged, set_up_logging, setting_options


@click.command("check-config")
@click.argument("config", type=click.Path(path_type=Path))
@setting_options
@logged
def command(config: Path, overrides: tuple[str, ...], log_level: str, log_format: str) -> None:
    """Parse a configuration and report every error in it at once; opens nothing that writes.

    \b
    Example:
      streammoe check-config config.toml
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.configuration import load_settings

        load_settings(config, overrides=overrides)
        click.echo(f"{config}: no errors")
