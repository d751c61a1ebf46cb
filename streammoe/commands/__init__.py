"""The command line: each module of this package is a command and is discovered automatically.

The module's name is the name of the command, the first line of its docstring is its line in `streammoe --help`, and its
function `command` is the click command. Only the module of the command being run is imported, so that each starts fast.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from pathlib import Path

import click


class Commands(click.Group):
    """A group whose commands are the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = importlib.import_module(_module(cmd_name)).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _summary(name)) for name in self.list_commands(ctx)])


def _module(command: str) -> str:
    return f"{__name__}.{command.replace('-', '_')}"


def _summary(command: str) -> str:
    """Return the first line of a command's module without importing it."""
    spec = importlib.util.find_spec(_module(command))
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
