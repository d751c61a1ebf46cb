"""Shared code of the commands: logging, exit codes, progress and options. Only results go to stdout."""

from __future__ import annotations

import copy
import errno
import functools
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import click

from streammoe.errors import ConfigError, StreammoeError
from streammoe.text import printable

Command = TypeVar("Command", bound=Callable[..., Any])
LEVELS = ("debug", "info", "warning", "error")
IDENTIFYING = ("head_bytes", "head_sha256", "inode")
"""Parts of positions that say which file it is."""


EXTRAS = ("event", "topic", "partition")
"""What a log record may say besides its message: a stable name of what happened, and where."""


class JsonLines(logging.Formatter):
    """One JSON object for each log record."""

    def format(self, record: logging.LogRecord) -> str:
        """Render `record`."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in EXTRAS if hasattr(record, name)},
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)


class Lines(logging.Formatter):
    """One line for each log record, even if untrusted records, paths or brokers' answers are quoted in it."""

    def format(self, record: logging.LogRecord) -> str:
        """Render `record`; a traceback follows on separate lines."""
        escaped = copy.copy(record)
        escaped.msg, escaped.args = printable(record.getMessage()), None
        return "\n".join(printable(line) for line in super().format(escaped).split("\n"))


def logging_options(command: Command) -> Command:
    """Add the options for logging."""
    for option in (
        click.option(
            "--log-format",
            type=click.Choice(["text", "json"]),
            default="text",
            show_default=True,
            envvar="STREAMMOE_LOG_FORMAT",
            show_envvar=True,
        ),
        click.option(
            "--log-level",
            type=click.Choice(LEVELS),
            default="info",
            show_default=True,
            envvar="STREAMMOE_LOG_LEVEL",
            show_envvar=True,
        ),
    ):
        command = option(command)
    return command


def logged(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for logging, set it up before the command, and turn errors of the command into exit codes."""

    @functools.wraps(command)
    def run(*, log_level: str, log_format: str, **options: Any) -> None:
        set_up_logging(log_level, log_format)
        with exit_codes():
            command(**options)

    return logging_options(run)


def set_up_logging(level: str, form: str) -> None:
    """Log to stderr; include Kafka clients, which flood the log while a broker is away, only at `level` debug."""
    handler = logging.StreamHandler(sys.stderr)
    if level != "debug":
        handler.addFilter(lambda record: record.name.partition(".")[0] not in {"kafka", "librdkafka"})
    handler.setFormatter(JsonLines() if form == "json" else Lines("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("streammoe").setLevel(level.upper())


def logging_set_up() -> tuple[str, str]:
    """Return level and format of the log, for `set_up_logging` in another process."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    level = logging.getLevelName(logging.getLogger("streammoe").getEffectiveLevel()).lower()
    return level, "json" if any(isinstance(each, JsonLines) for each in formatters) else "text"


@contextmanager
def exit_codes() -> Iterator[None]:
    """Print known errors and exit with their code; anything else is a bug: traceback, exit 70."""
    try:
        yield
    except StreammoeError as error:
        for problem in error.problems if isinstance(error, ConfigError) else (str(error),):
            click.echo(f"{click.style('error:', fg='red', bold=True)} {printable(problem)}", err=True)
        context = click.get_current_context(silent=True)
        advised = re.search(r"\b(?:set|by) ((?:source|schema|model)[.\w]*\w)", str(error))
        # With `file_options` a command needs no configuration in which they could stand.
        if advised is not None and context is not None and "form" in context.params:
            click.echo(f"settings are given by --set, such as --set {advised[1]}=VALUE", err=True)
        sys.exit(error.exit_code)
    except MemoryError:
        _exit_out_of("memory", "give it more, or reduce source.block_bytes, the model or labels.max_pending")
    except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
        raise  # click handles these; a reader that has closed the pipe is not a bug
    except Exception as error:
        if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
            _exit_out_of("file descriptors", "raise the limit (ulimit -n), or find out what uses them")
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            _exit_out_of("room to write", "make some on the disk that its output goes to, or let it go elsewhere")
        logging.getLogger("streammoe").exception("this is a bug in streammoe, please report it with this traceback")
        sys.exit(70)


def _exit_out_of(what: str, remedy: str) -> NoReturn:
    click.echo(
        f"{click.style('error:', fg='red', bold=True)} the process ran out of {what}; {remedy}. Nothing was saved "
        "after the last checkpoint of a daemon, which resumes from there when it is started again",
        err=True,
    )
    sys.exit(70)


def end_without_result(exit_code: int, what: str) -> NoReturn:
    """End a command that was stopped before it had anything to print or save; `what` says so."""
    click.echo(f"stopped {what}", err=True)
    sys.exit(exit_code)


def echo_values(values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result: one JSON object, or a line for each value."""
    width = max(14, *map(len, values))
    lines = (f"{name:{width}} {plain(value)}" for name, value in values.items())
    click.echo(json.dumps(values) if as_json else "\n".join(lines))


def plain(value: Any) -> str:
    """Return a JSON value as words for people, without what only identifies a file; a dash if there is none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(_entry(name, inner) for name, inner in value.items() if name not in IDENTIFYING) or "-"
    if isinstance(value, list):
        return ("; " if isinstance(next(iter(value), None), Mapping) else ", ").join(map(plain, value)) or "-"
    return "-" if value is None or value == "" else printable(str(value))


def _entry(name: str, value: Any) -> str:
    text = plain(value)
    return f"{printable(name)} {text if text == '-' or not isinstance(value, Mapping | list) else f'({text})'}"


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[tuple[int, int] | None], None]]:
    """Show a source's progress on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with ExitStack() as shown:
        bar: Any = None

        def follow(progress: tuple[int, int] | None) -> None:
            nonlocal bar
            if progress is None:
                return
            if bar is None:  # not earlier: it hides the cursor, and a signal at the start exits at once
                bar = shown.enter_context(click.progressbar(length=1, label=label, file=sys.stderr))
            done, bar.length = progress
            bar.update(done - bar.pos)

        yield follow


def setting_options(command: Command) -> Command:
    """Add the option that overrides single settings of the configuration."""
    return click.option(
        "--set",
        "overrides",
        metavar="SECTION.FIELD=VALUE",
        multiple=True,
        help="Override a setting of the environment and the file; may be repeated.",
    )(command)


class FileOptions(NamedTuple):
    """Options that describe a file and the model that learns it; `--set` takes all settings without an option."""

    targets: tuple[str, ...] = ()
    classify: bool = False
    format: str | None = None
    columns: Mapping[str, str | None] = MappingProxyType({})
    """Lists of columns by the setting of the schema, with commas between them."""
    overrides: tuple[str, ...] = ()
    """Of ``--set``."""


def file_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that describe a file; the command gets them as `FileOptions`, named ``options``."""
    lists = {
        "features": "Learn from these columns only.",
        "ignore": "Columns to leave out.",
        "categorical": "Columns that contain categories.",
        "timestamps": "Columns that contain times.",
        "numeric": "Columns of numbers; of others the first value decides.",
    }

    @functools.wraps(command)
    def run(
        *, targets: tuple[str, ...], classify: bool, form: str | None, overrides: tuple[str, ...], **others: Any
    ) -> None:
        columns = {name: others.pop(name) for name in lists}
        command(options=FileOptions(targets, classify, form, columns, overrides), **others)

    options = [
        click.option("--target", "targets", metavar="COLUMN", multiple=True, help="May be repeated."),
        click.option("--classify", is_flag=True, help="The target is a label."),
        click.option("--format", "form", metavar="FORMAT", help="Such as csv; by default from the extension."),
        *(click.option(f"--{name}", metavar="A,B,…", help=text) for name, text in lists.items()),
        setting_options,
    ]
    return functools.reduce(lambda made, option: option(made), reversed(options), run)
