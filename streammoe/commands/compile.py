"""Compile the kernels ahead of time."""

from __future__ import annotations

import click

from streammoe.console import logged


# Registered by `streammoe.commands` under the name of its module.
@click.command("compile")
@logged
def command() -> None:
    """Compile all kernels ahead of time, in some minutes, so that the first start is as fast as any other.

    \b
    Example:
      streammoe compile
    """
    from streammoe.daemon.model import compile_kernels

    compile_kernels()
