"""The command line: each module of this package is a command and is discovered automatically.

The module's name is the name of the command, the first line of its docstring is its line in `streammoe --help`, and its
function `command` is the click command. Further ones are modules that entry points of the group `streammoe.commands`
name. Only the module of the command being run is imported, so that each starts fast.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import click


class Commands(click.Group):
    """A group whose commands are the modules of this package, and entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({**_further(), **_own()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _own().get(cmd_name) or _further().get(cmd_name)
        if module is None:
            return None
        command: click.Command = importlib.import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        modules = {**_further(), **_own()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(modules[name])) for name in self.list_commands(ctx)])


def _own() -> dict[str, str]:
    """Return the modules of this package's commands."""
    return {info.name.replace("_", "-"): f"{__name__}.{info.name}" for info in pkgutil.iter_modules(__path__)}


@cache
def _further() -> dict[str, str]:
    """Return the modules of the other commands; searching all installed packages takes a moment."""
    return {entry.name: entry.module for entry in entry_points(group=__name__)}


def _summary(module: str) -> str:
    """Return the first line of a module's docstring without importing it."""
    spec = importlib.util.find_spec(module)
    text = "" if spec is None or spec.origin is None else Path(spec.origin).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="streammoe", prog_name="streammoe")
def main() -> None:
    """Learn from a stream of events, one at a time, with an online mixture of experts.

    \b
    Example:
      streammoe demo
      streammoe run config/examples/csv-regression.toml
    """
