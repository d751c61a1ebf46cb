"""The command line: words to calls. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import copy
import errno
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from streammoe.errors import ConfigError, StreammoeError
from streammoe.text import printable

Command = TypeVar("Command", bound=Callable[..., Any])
LEVELS = ("debug", "info", "warning", "error")
METHODS = "em, gradient_em, gradient_descent, mm"
"""Of batch fits; the module that knows them takes a while to import."""


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


def _number_or_word(text: str | None) -> int | str | None:
    """A whole number as such, and anything else as it is, for the settings to judge."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return text


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
            click.option(
                "--n-experts",
                callback=lambda *given: _number_or_word(given[-1]),
                metavar="K",
                help="How many experts; 1 is a single recursive fit, auto chooses.",
            ),
            click.option("--degree", type=int, metavar="N", help="Highest power of each input that experts see."),
            click.option("--gate-degree", type=int, metavar="N", help="The same for the gate."),
            click.option("--warmup", type=int, metavar="N", help="Events gathered for the batch start."),
            click.option("--expert", metavar="NAME", help="Noise of the experts: gaussian, student_t or laplace."),
            click.option("--degrees-of-freedom", type=float, metavar="NU", help="Of student_t experts; 4 unless told."),
            click.option(
                "--schedule",
                metavar="KIND:NUMBER",
                help="Step sizes: power:0.6 converges, constant:0.05 follows drift.",
            ),
            click.option("--bound", metavar="NAME", help="Curvature bound: tight, adaptive or paper."),
            click.option(
                "--averaging", metavar="NAME", help="What serves predictions: polyak, decay, exponential or none."
            ),
            click.option(
                "--drift", metavar="NAME", help="Begin steps anew where the loss has risen: page_hinkley; else off."
            ),
            click.option("--seed", type=int, metavar="N", help="Of every random choice, of peers too."),
        )
    ):
        command = option(command)
    return command


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
    "--from-model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Begin with a model that was saved elsewhere; where there are checkpoints, only with --fresh.",
)
@click.option(
    "--summary",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print what was done, at the end.",
)
@logged
def run(
    config: Path,
    overrides: tuple[str, ...],
    fresh: bool,
    from_model: Path | None,
    summary: str,
    log_level: str,
    log_format: str,
) -> None:
    """Run the daemon: read events, learn, checkpoint, until the source ends or SIGTERM asks to stop.

    \b
    Example:
      streammoe run config.toml --set checkpoint.dir=state --summary json
    """
    from streammoe.daemon.hangup import HangupFlag

    set_up_logging(log_level, log_format)
    from streammoe.daemon.signals import StopFlag

    with HangupFlag() as hangup, exit_codes(), StopFlag(armed=False) as stop:
        from streammoe.assembly import open_daemon
        from streammoe.configuration import load_settings
        from streammoe.daemon.reload import Reload

        load = partial(load_settings, config, overrides=overrides)
        settings = load()
        reload = Reload(hangup, settings, load, config)
        with (
            progress_bar("learning") as follow,
            open_daemon(settings, fresh=fresh, from_model=from_model, on_batch=follow, reload=reload) as running,
        ):
            stop.arm()
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
        from streammoe.configuration import load_settings, warn_of_idle

        warn_of_idle(load_settings(config, overrides=overrides))
        click.echo(f"{config}: no errors")


@main.command(short_help="Show what a checkpoint holds.")
@click.argument("place", metavar="DIR_OR_FILE", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def inspect(place: Path, as_json: bool, log_level: str, log_format: str) -> None:
    """Show what a checkpoint holds: a file, or the newest sound one of a folder, with the state of all others there.

    \b
    Example:
      streammoe inspect state --json
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe import inspection

        found = inspection.look_into(place)
        click.echo(json.dumps(found, indent=2) if as_json else inspection.to_text(found))


@main.command(short_help="Go back to an earlier checkpoint.")
@click.argument("place", metavar="DIR_OR_CONFIG", type=click.Path(path_type=Path))
@click.option("--to", type=click.IntRange(min=1), metavar="GENERATION", help="Else the one before the newest.")
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def rollback(
    place: Path, to: int | None, overrides: tuple[str, ...], as_json: bool, log_level: str, log_format: str
) -> None:
    """Make the next start go on from an earlier checkpoint, of a checkpoint folder or of a configuration's.

    The daemon must be stopped. Later checkpoints are moved to a folder of their own; what came after is learned again.

    \b
    Example:
      streammoe rollback state
      streammoe rollback config.toml --to 41
    """
    set_up_logging(log_level, log_format)
    if overrides and place.is_dir():
        raise click.UsageError("--set needs a configuration, and this is a folder")
    with exit_codes():
        from streammoe import rollback as module

        folder = place
        if not place.exists():
            raise ConfigError(f"{place}: there is no such folder or file; give a daemon's checkpoint.dir or its config")
        if not place.is_dir():
            from streammoe.configuration import load_settings

            folder = Path(load_settings(place, overrides=overrides).checkpoint.dir)
        done = module.roll_back(folder, to)
        click.echo(json.dumps(done._asdict()) if as_json else module.to_text(done))


@main.command(short_help="Score a model on a file, beside others.")
@click.argument("file")
@click.option("--target", "targets", metavar="COLUMN", multiple=True, required=True, help="May be repeated.")
@file_options
@setting_options
@click.option(
    "--against",
    multiple=True,
    metavar="river:NAME",
    help="A learner of River, behind its StandardScaler, on the same events; may be repeated.",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="OUT.png", help="Draw scores and shares over time.")
@click.option("--html", "page", type=click.Path(path_type=Path), metavar="OUT.html", help="Write it all as one page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def evaluate(
    file: str,
    targets: tuple[str, ...],
    classify: bool,
    form: str | None,
    schedule: str | None,
    overrides: tuple[str, ...],
    against: tuple[str, ...],
    plot: Path | None,
    page: Path | None,
    as_json: bool,
    log_level: str,
    log_format: str,
    **given: Any,
) -> None:
    """Predict and learn each event of a file, or of stdin (-), and print how well that went.

    No configuration is needed, and nothing is written but what --plot and --html name. The settings are those of
    [model] and [schema]; --set reaches all of them, such as --set model.range_factor=1e9.

    If more than half of the records were refused (--set dead_letters.max_ratio=0.5), nothing is printed, and the exit
    code is 5; if nothing could be learned at all, it is 3.

    \b
    Example:
      streammoe evaluate rides.csv --target minutes --ignore id --against river:LinearRegression
      streammoe evaluate iris.csv --target species --classify --n-experts 2 --warmup 100 --html report.html
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.configuration import settings_from
        from streammoe.daemon.signals import StopFlag
        from streammoe.evaluation import report
        from streammoe.evaluation.options import check_overrides, tables_from
        from streammoe.evaluation.run import evaluate as run_evaluation

        check_overrides(overrides, also=["dead_letters.max_ratio"])
        tables = tables_from(file, targets, classify=classify, format=form, schedule=schedule, given=given)
        if against:
            tables["source"]["block_bytes"] = 1 << 16  # slow peers, and a bar that moves
        settings = settings_from(tables, "the command line", overrides=overrides)
        report.check_outputs(plot, page)
        with StopFlag() as stop, progress_bar("evaluating") as follow:
            found = run_evaluation(
                settings,
                against,
                source_name="stdin" if file == "-" else file,
                shares=plot is not None or page is not None,
                on_batch=follow,
                stop=stop,
            )
        if plot is not None:
            report.write_plot(found, plot)
        if page is not None:
            report.write_page(found, page)
        click.echo(report.to_json(found) if as_json else report.table(found))


@main.command(short_help="Fit a model to a whole file at once.")
@click.argument("file")
@click.option("--target", "targets", metavar="COLUMN", multiple=True, help="May be repeated.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Take [model], [schema] and dead_letters.max_ratio of a daemon's configuration; options stand over them.",
)
@click.option("--method", metavar="NAME", default="em", show_default=True, help=f"One of {METHODS}.")
@click.option("--rounds", type=int, default=1000, show_default=True, metavar="N", help="Most rounds from each start.")
@click.option(
    "--tolerance", type=float, default=1e-7, show_default=True, metavar="X", help="Gain that ends the rounds."
)
@click.option("--step", type=float, metavar="X", help="Of the gradient methods; else each step is searched for.")
@click.option(
    "--from-model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Start at the parameters of a saved model instead of those of a warm-up.",
)
@file_options
@setting_options
@click.option("--out", type=click.Path(path_type=Path), metavar="MODEL", help="Save the model there.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="TRACE.csv", help="Write a row for each round.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="TRACE.png", help="Draw the rounds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def fit(
    file: str,
    targets: tuple[str, ...],
    config: Path | None,
    method: str,
    rounds: int,
    tolerance: float,
    step: float | None,
    from_model: Path | None,
    classify: bool,
    form: str | None,
    schedule: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    trace: Path | None,
    plot: Path | None,
    as_json: bool,
    log_level: str,
    log_format: str,
    **given: Any,
) -> None:
    """Fit a model to all events of a file, or of stdin (-), at once, and print how far that came.

    Nothing is written but what --out, --trace and --plot name. A daemon goes on from the saved model by
    `streammoe run CONFIG --from-model MODEL` if its [model] and [schema] are the same, so take them by --config.
    Ctrl-C ends the fit after the round; what it has come to is saved and printed.

    Refused records are left out, with a warning that counts them by reason. If they are more than half of all
    (--set dead_letters.max_ratio=0.5, or that of --config), nothing is fitted, and the exit code is 5; if nothing could
    be learned at all, it is 3.

    \b
    Example:
      streammoe fit rides.csv --target minutes --ignore id --n-experts 8 --out rides.model
      streammoe fit rides.csv --config rides.toml --method mm --trace rounds.csv --plot rounds.png
    """
    set_up_logging(log_level, log_format)
    if not targets and config is None:
        raise click.UsageError("Missing option '--target', or '--config' with a configuration that names it")
    with exit_codes():
        from streammoe.batch import Round
        from streammoe.daemon.signals import StopFlag
        from streammoe.fitting import report
        from streammoe.fitting.options import settings_of
        from streammoe.fitting.run import fit_source

        settings = settings_of(
            file,
            targets,
            config,
            overrides,
            classify=classify,
            format=form,
            schedule=schedule,
            given=given,
        )
        report.check_paths(out, trace, plot)
        with StopFlag() as stop, progress_bar("reading") as follow, progress_bar("fitting") as advance:

            def on_round(each: Round) -> bool:
                advance((each.number, rounds))
                return stop.requested

            found = fit_source(
                settings,
                source_name="stdin" if file == "-" else file,
                method=method,
                rounds=rounds,
                tolerance=tolerance,
                step=step,
                from_model=from_model,
                on_batch=follow,
                on_round=on_round,
                stop=stop,
            )
        if found is None:
            raise click.Abort
        if out is not None:
            found.fit.model.save(out)
        if trace is not None:
            report.write_trace(found, trace)
        if plot is not None:
            report.write_plot(found, plot)
        click.echo(report.to_json(found, out) if as_json else report.table(found, out))


@main.command("dead-letters", short_help="Count, show or replay refused records.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--show", type=click.IntRange(min=0), default=0, metavar="N", help="Show the first N letters.")
@click.option("--reason", metavar="REASON", help="Only letters with this reason.")
@click.option(
    "--replay",
    "config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="Learn the records that pass now, with the model of this configuration, and take them out of the file.",
)
@click.option("--dry-run", is_flag=True, help="With --replay: say what would pass, and change nothing.")
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def dead_letters(
    file: Path,
    show: int,
    reason: str | None,
    config: Path | None,
    dry_run: bool,
    overrides: tuple[str, ...],
    as_json: bool,
    log_level: str,
    log_format: str,
) -> None:
    """Count the records that a daemon refused, show them, or learn them after a fix.

    A replay needs the daemon to be stopped. It learns each record exactly once, as a new event, into a new checkpoint;
    letters whose records are still refused stay in the file.

    \b
    Example:
      streammoe dead-letters state/dead-letters.jsonl --show 5 --reason out_of_range
      streammoe dead-letters state/dead-letters.jsonl --replay config.toml --set model.range_factor=1e9 --dry-run
    """
    set_up_logging(log_level, log_format)
    if config is None and (dry_run or overrides):
        raise click.UsageError("--dry-run and --set need --replay CONFIG")
    if config is not None and show:
        raise click.UsageError("--show and --replay do not go together; show the letters first")
    with exit_codes():
        from streammoe import replay

        if config is None:
            found = replay.look_into(file, show=show, reason=reason)
            click.echo(replay.contents_json(file, found) if as_json else replay.contents_text(found))
        else:
            from streammoe.configuration import load_settings

            settings = load_settings(config, overrides=overrides)
            done = replay.replay(file, settings, reason=reason, dry_run=dry_run)
            click.echo(json.dumps(done._asdict()) if as_json else replay.replayed_text(done, dry_run=dry_run))


@main.command(short_help="Play a file into a Kafka topic.")
@click.argument("file")
@click.option("--topic", required=True, help="Made if it is missing, with replication 1.")
@click.option("--bootstrap-servers", "servers", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT,…")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "raw"]),
    default="json",
    show_default=True,
    help="json: records of csv and Parquet files become JSON objects; raw: lines as they are.",
)
@click.option(
    "--read-as",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    help="What the file holds; else its extension says so.",
)
@click.option("--key", metavar="FIELD", help="Field whose value becomes the key; equal keys keep their order.")
@click.option("--timestamp", metavar="FIELD", help="Field whose time becomes the timestamp.")
@click.option(
    "--rate", type=click.FloatRange(min=0), default=0, metavar="N", help="Records a second; 0: as fast as possible."
)
@click.option("--partitions", type=click.IntRange(min=1), metavar="N", help="Of a topic that is made; else 1.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Play the file so many times.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Send so many records at most.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Settings of kafka-python, such as security_protocol and sasl_plain_password.",
)
@logged
def produce(file: str, log_level: str, log_format: str, **given: Any) -> None:
    """Send the records of csv, jsonl (also .gz) or Parquet files to a topic, in order.

    A message has no header, so a csv record becomes a JSON object: numbers as numbers, empty cells left out, and
    anything else as text, also numbers with zeros in front. Lines of jsonl are sent as they are. Records that are too
    large for the topic are left out, and the exit code is 6 once all others are written.

    \b
    Example:
      streammoe produce rides.csv --topic rides --partitions 4 --key station
      streammoe produce rides.csv --topic rides --rate 500 --repeat 10
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.daemon.signals import StopFlag
        from streammoe.produce.run import produce as run_produce

        with StopFlag() as stop, progress_bar("producing") as follow:
            done = run_produce(file, stop=stop, on_batch=follow, **given)
        click.echo(done)


@main.command(short_help="Stream a real data set through the daemon.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    show_default="demo-state; with --classify demo-state/classes",
    help="Where data, configuration, checkpoint and dead letters go.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    show_default="9464, or a free one if that is taken",
    help="Port of the metrics; 0 takes any free one.",
)
@click.option("--classify", is_flag=True, help="Learn classes instead of numbers.")
@click.option("--stay", is_flag=True, help="Keep the metrics up after the last event, until Ctrl-C.")
@logged
def demo(folder: Path | None, port: int | None, classify: bool, stay: bool, log_level: str, log_format: str) -> None:
    """Stream a real data set through the whole daemon and compare it with plain baselines.

    \b
    Example:
      streammoe demo --stay
      streammoe demo --classify
    """
    set_up_logging(log_level, log_format)
    with exit_codes():
        from streammoe.demo import run_demo

        if folder is None:
            folder = Path("demo-state", "classes") if classify else Path("demo-state")
        with ExitStack() as bar:
            follow = bar.enter_context(progress_bar("streaming"))
            with run_demo(folder, port=port, on_batch=follow, classify=classify) as report:
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
        from streammoe.daemon.model import compile_kernels

        compile_kernels()


if __name__ == "__main__":
    main()
