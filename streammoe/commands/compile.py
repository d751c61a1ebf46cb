"""Compile the kernels ahead of time."""

from __future__ import annotations

import click

from streammoe.console import exit_codes, logged, set_up_logging


@click.command("compile")
@logged
def command(log_level: str, log_format: str) -> None:
    """Compile the kernels ahead of time, so that a first start is as quick as any.

    \b
    Example:
      streammoe compile
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.daemon.model import compile_kernels

        compile_kernels()
