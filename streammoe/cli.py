"""The command line: words to calls. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from streammoe.errors import StreammoeError

Command = TypeVar("Command", bound=Callable[..., Any])
LEVELS = ("debug", "info", "warning", "error")


class JsonLines(logging.Formatter):
    """One JSON object for each log record."""

    def format(self, record: logging.LogRecord) -> str:
        """Render `record`."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def logged(command: Command) -> Command:
    """Give a command the options for logging."""
    for option in (
        click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True),
    ):
        command = option(command)
    return command


def set_up_logging(level: str, form: str) -> None:
    """Log to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("streammoe").setLevel(level.upper())


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the errors of the tree into a sentence and their exit code; anything else is a bug: traceback, exit 70."""
    try:
        yield
    except StreammoeError as error:
        for line in str(error).splitlines():
            click.echo(f"{click.style('error:', fg='red', bold=True)} {line}", err=True)
        sys.exit(error.exit_code)
    except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
        raise  # click's own business; a reader that has left is no bug
    except Exception:
        logging.getLogger("streammoe").exception("this is a bug in streammoe, please report it with this traceback")
        sys.exit(70)


def ignore_progress(progress: tuple[int, int] | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[tuple[int, int] | None], None]]:
    """A bar on stderr that follows a source's progress; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield ignore_progress
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def follow(progress: tuple[int, int] | None) -> None:
            if progress is not None:
                done, bar.length = progress
                bar.update(done - bar.pos)

        yield follow


def setting_options(command: Command) -> Command:
    """Give a command the flags that stand over the config file."""
    return click.option(
        "--set",
        "overrides",
        metavar="SECTION.FIELD=VALUE",
        multiple=True,
        help="Set one setting, over the environment and the file; may be repeated.",
    )(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="streammoe")
def main() -> None:
    """Learn from a stream of events, one at a time, with an online mixture of experts.

    \b
    Example:
      streammoe demo
      streammoe run config/examples/csv-regression.toml
    """


@main.command(short_help="Learn until the source ends or SIGTERM.")
@click.argument("config", type=click.Path(path_type=Path))
@setting_options
@click.option("--fresh", is_flag=True, help="Begin anew although there are checkpoints in the folder.")
@click.option(
    "--summary",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print what was done, at the end.",
)
@logged
def run(config: Path, overrides: tuple[str, ...], fresh: bool, summary: str, log_level: str, log_format: str) -> None:
    """Run the daemon: read events, learn, checkpoint, until the source ends or SIGTERM asks to stop.

    \b
    Example:
      streammoe run config.toml --set checkpoint.dir=state --summary json
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.assembly import load_settings, open_daemon
        from streammoe.runtime.signals import StopFlag

        settings = load_settings(config, overrides=overrides)
        with (
            StopFlag() as stop,
            progress_bar("learning") as follow,
            open_daemon(settings, fresh=fresh, on_batch=follow) as running,
        ):
            if running.metrics_url:
                logging.getLogger("streammoe.daemon").info("metrics at %s", running.metrics_url)
            result = running.daemon.run(stop)
        if summary == "json":
            click.echo(json.dumps(result.flat()))
        else:
            for name, value in result.flat().items():
                click.echo(
                    f"{name:18} {'-' if value is None else f'{value:.6g}' if isinstance(value, float) else value}"
                )


@main.command("check-config", short_help="Report every error in a configuration.")
@click.argument("config", type=click.Path(path_type=Path))
@setting_options
@logged
def check_config(config: Path, overrides: tuple[str, ...], log_level: str, log_format: str) -> None:
    """Parse a configuration and report every error in it at once; opens nothing that writes.

    \b
    Example:
      streammoe check-config config.toml
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.assembly import load_settings

        load_settings(config, overrides=overrides)
        click.echo(f"{config}: no errors")


@main.command(short_help="Show what a checkpoint holds.")
@click.argument("place", metavar="DIR_OR_FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def inspect(place: Path, as_json: bool, log_level: str, log_format: str) -> None:
    """Show what a checkpoint holds: a file, or the newest sound one of a folder.

    \b
    Example:
      streammoe inspect state --json
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.assembly import describe_checkpoint

        found = describe_checkpoint(place)
        if as_json:
            click.echo(json.dumps(found, indent=2))
        else:
            for name, value in found.items():
                click.echo(f"{name:14} {json.dumps(value) if isinstance(value, dict | list) else value}")


@main.command(short_help="Stream a real data set through the daemon.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("demo-state"),
    show_default=True,
    help="Where data, configuration, checkpoint and dead letters go.",
)
@click.option("--port", type=int, default=9464, show_default=True, help="Port of the metrics; 0 takes any free one.")
@click.option("--stay", is_flag=True, help="Keep the metrics up after the last event, until Ctrl-C.")
@logged
def demo(folder: Path, port: int, stay: bool, log_level: str, log_format: str) -> None:
    """Stream a real data set through the whole daemon and compare it with plain baselines.

    \b
    Example:
      streammoe demo --stay
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.demo import run_demo

        with ExitStack() as bar:
            follow = bar.enter_context(progress_bar("streaming"))
            with run_demo(folder, port=port, on_batch=follow) as report:
                bar.close()
                click.echo("\n".join([report.table, "", *report.places]))
                if stay:
                    click.echo("Press Ctrl-C to end.", err=True)
                    report.wait()


@main.command("compile", short_help="Compile the kernels ahead of time.")
@logged
def compile_command(log_level: str, log_format: str) -> None:
    """Compile the kernels ahead of time, so that a first start is as quick as any.

    \b
    Example:
      streammoe compile
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.assembly import compile_kernels

        compile_kernels()


if __name__ == "__main__":
    main()
