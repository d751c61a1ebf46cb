"""What commands share: logging, exit codes, progress, and options. Results go to stdout, all else to stderr."""

from __future__ import annotations

import copy
import errno
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar

import click

from streammoe.errors import ConfigError, StreammoeError
from streammoe.text import printable

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


class Lines(logging.Formatter):
    """One line for each log record, whatever is in it: records, paths and brokers' answers are others' words."""

    def format(self, record: logging.LogRecord) -> str:
        """Render `record`; a traceback follows in lines of its own."""
        harmless = copy.copy(record)
        harmless.msg, harmless.args = printable(record.getMessage()), None
        return "\n".join(printable(line) for line in super().format(harmless).split("\n"))


def logged(command: Command) -> Command:
    """Give a command the options for logging."""
    for option in (
        click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True),
    ):
        command = option(command)
    return command


def set_up_logging(level: str, form: str) -> None:
    """Log to stderr; what kafka-python says, a flood while a broker is away, only for `level` debug."""
    handler = logging.StreamHandler(sys.stderr)
    if level != "debug":
        # Not by the logger's level, which would also keep it from those who look for a reason in it.
        handler.addFilter(lambda record: record.name.partition(".")[0] != "kafka")
    handler.setFormatter(JsonLines() if form == "json" else Lines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("streammoe").setLevel(level.upper())


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the errors of the tree into a sentence and their exit code; anything else is a bug: traceback, exit 70."""
    try:
        yield
    except StreammoeError as error:
        for problem in error.problems if isinstance(error, ConfigError) else (str(error),):
            click.echo(f"{click.style('error:', fg='red', bold=True)} {printable(problem)}", err=True)
        sys.exit(error.exit_code)
    except MemoryError:
        _end_for_want_of("memory", "give it more, or make source.block_bytes, the model or labels.max_pending smaller")
    except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
        raise  # click's own business; a reader that has left is no bug
    except Exception as error:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            _end_for_want_of("file descriptors", "raise the limit (ulimit -n), or find out who takes them")
        logging.getLogger("streammoe").exception("this is a bug in streammoe, please report it with this traceback")
        sys.exit(70)


def _end_for_want_of(what: str, remedy: str) -> NoReturn:
    click.echo(
        f"{click.style('error:', fg='red', bold=True)} the process ran out of {what}; {remedy}. A daemon has saved "
        "nothing after its last checkpoint, and goes on from there when it is started again",
        err=True,
    )
    sys.exit(70)


def ignore_progress(progress: tuple[int, int] | None) -> None:
    """Show nothing."""


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[tuple[int, int] | None], None]]:
    """A bar on stderr that follows a source's progress; nothing unless stderr is a terminal."""
    if not sys.stderr.isatty():
        yield ignore_progress
        return
    with ExitStack() as shown:
        bar: Any = None

        def follow(progress: tuple[int, int] | None) -> None:
            nonlocal bar
            if progress is None:
                return
            if bar is None:  # not before: it hides the cursor, and a signal at the start leaves at once
                bar = shown.enter_context(click.progressbar(length=1, label=label, file=sys.stderr))
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


def file_options(command: Command) -> Command:
    """Give a command the options that say what is in a file, and which model is to learn it."""
    for option in reversed(
        (
            click.option("--classify", is_flag=True, help="The target is a label."),
            click.option(
                "--format", "form", metavar="FORMAT", help="Of the records, such as csv; else by the file's extension."
            ),
            click.option("--delimiter", metavar="CHARACTER", help='Of csv, such as ";" or "\\t"; else a comma.'),
            click.option("--decimal", metavar="CHARACTER", help="Of csv: what stands before decimals; else a point."),
            click.option("--header", metavar="A,B,…", help="Of csv without a header: the names of all columns."),
            click.option("--features", metavar="A,B,…", help="Learn from these columns only."),
            click.option("--ignore", metavar="A,B,…", help="Columns that are not learned from."),
            click.option("--categorical", metavar="A,B,…", help="Columns that hold categories."),
            click.option("--timestamp", "--timestamps", "timestamps", metavar="A,B,…", help="Columns that hold times."),
            click.option("--weight", metavar="COLUMN", help="How much each event counts."),
            *_model_options(),
        )
    ):
        command = option(command)
    return command


def _model_options() -> Iterator[Callable[[Any], Any]]:
    """Yield the options that stand for those of a model; the settings judge their values."""
    from streammoe.options import MODELS  # takes a while, and most commands do without

    fields = {name: field for options in MODELS.values() for name, field in options.model_fields.items()}
    for name, field in fields.items():
        if name != "kind":  # has a flag of its own
            yield click.option(f"--{name.replace('_', '-')}", metavar="VALUE", help=field.description)
