"""Stream a real data set through the daemon.

The demonstrations compare the daemon with simple baselines on the same events.

Regression uses River's TrumpApproval: 1,001 days of approval ratings by five pollsters and the date, from which the
average computed by FiveThirtyEight is predicted. The relation drifts.

Classification uses River's ImageSegments: 2,310 patches of outdoor pictures with 18 measurements each, which show one
of seven classes (sky, grass, brick, ...). Nothing drifts.

The daemon learns both with the default settings of its model.

Both are learned in less time than it takes to start. So speeds are those of a longer stream: 100,000 events of River's
FriedmanDrift, 10 inputs of which half are noise, whose truth changes gradually twice.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from river import datasets, dummy, linear_model, preprocessing, stats

from streammoe.assembly import DaemonHandle, open_daemon
from streammoe.configuration import load_settings
from streammoe.console import logged, progress_bar
from streammoe.daemon.loop import ProgressListener
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError
from streammoe.invocation import command_line
from streammoe.persistence import replace
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.demo")
Events = list[tuple[dict[str, Any], Any]]
PORT = 9464
"""Default port of the metrics."""


class Task(NamedTuple):
    """A data set with a model and baselines."""

    data: str
    """Name of the data file."""
    target: str
    classify: bool
    events: Callable[[], Events]
    baselines: Callable[[], dict[str, Any]]
    block_bytes: int = 4096
    """Bytes that the daemon reads at a time: few, so that progress and metrics move."""
    note: str = ""
    """Sentences besides the scores."""

    @property
    def score(self) -> str:
        """Name of the score."""
        return "accuracy" if self.classify else "root mean squared error"


CONFIG = """\
# Written by `demo`; with this file and --fresh, `run` streams the same data again.
[source]
kind = "file"
path = {data}
block_bytes = {block_bytes}

[schema]
target = "{target}"

[model]
kind = "{kind}"  # all else by default

[checkpoint]
dir = {state}

[metrics]
port = {port}
"""
OURS = "streammoe"
"""Name of the model in the table."""


class Files(NamedTuple):
    """Files of a demonstration."""

    config: Path
    data: Path
    state: Path


class Report(NamedTuple):
    """Results of a demonstration."""

    table: str
    locations: list[str]
    wait: Callable[[], None]
    """Blocks until SIGINT or SIGTERM, so that the metrics can be viewed."""


class Row(NamedTuple):
    """Score of one learner over all events and over the last of them, and its speed."""

    name: str
    score: float
    late_score: float
    events_per_second: float


@contextmanager
def run_demo(folder: Path, *, port: int | None, on_batch: ProgressListener, classify: bool = False) -> Iterator[Report]:
    """Stream the data; the metrics are served until the context ends.

    Args:
        folder: where data, configuration, checkpoint and dead letters go.
        port: of the metrics; 0 means any free one, and None means `PORT`, or any free one if that is taken.
        on_batch: called with the progress after each batch.
        classify: learn classes instead of numbers.
    """
    task = CLASSIFICATION if classify else REGRESSION
    events = task.events()
    with StopFlag() as stop, ExitStack() as opened:
        note = "while this runs; --stay keeps them up"
        if port is None:
            try:
                files, running = opened.enter_context(_open_demo(folder, task, events, PORT, on_batch))
            except ConfigError:
                # If the port was not the problem, the next attempt raises the actual one.
                files, running = opened.enter_context(_open_demo(folder, task, events, 0, on_batch))
                note = f"a free port, because {PORT} cannot be used; {note}"
        else:
            files, running = opened.enter_context(_open_demo(folder, task, events, port, on_batch))
        kept = set(files.state.glob("set-aside-*"))
        summary = running.daemon.run(stop)
        for replaced in set(files.state.glob("set-aside-*")) - kept:
            shutil.rmtree(replaced)  # checkpoints of an earlier demo
        # The window of the scores is longer than this stream, so it covers every error.
        averages = running.daemon.scores.averages
        values = averages["hits"].window if classify else averages["squared_error"].window
        rows = [_summarize(task, OURS, values, (len(values) + 1) // 2, summary.events_per_second)]
        rows += _run_baselines(task, events, (len(events) + 1) // 2, stop)
        tables = [_format_table(task, summary.learned, rows)]
        if not classify and not stop.requested:
            tables.append(_speeds(folder, stop, on_batch))
        yield Report(
            table="\n\n".join(tables),
            locations=[
                f"metrics     {running.metrics_url} ({note})",
                f"checkpoint  {summary.checkpoint} ({command_line('inspect', str(files.state))})",
                f"config      {files.config} ({command_line('run', str(files.config), '--fresh')})",
            ],
            wait=lambda: _wait_for_stop(stop),
        )


def _speeds(folder: Path, stop: StopFlag, on_batch: ProgressListener) -> str:
    """Learn a stream that is long enough to tell how fast learners are, and return the table."""
    events = LONG.events()
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        _open_demo(Path(place), LONG, events, 0, on_batch) as (_, running),
    ):
        summary = running.daemon.run(stop)
        errors = running.daemon.scores.averages["squared_error"]
        score, late = (float(np.sqrt(errors.means()[name])) for name in ("running", "window"))
        rows = [Row(OURS, score, late, summary.events_per_second)]
        rows += _run_baselines(LONG, events, len(errors.window), stop)
        return _format_table(LONG, summary.learned, rows, len(errors.window))


@contextmanager
def _open_demo(
    folder: Path, task: Task, events: Events, port: int, on_batch: ProgressListener
) -> Iterator[tuple[Files, DaemonHandle]]:
    """Write data and configuration, and open the daemon with them."""
    data = _to_csv(events, task.target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = _choose_files(folder, task, data)
        replace(files.data, data.encode())
        replace(files.config, _render_config(files, task, port).encode())
    except OSError as error:
        raise ConfigError(f"--dir {folder}: cannot be written ({error.strerror}); name another folder") from error
    settings = load_settings(files.config, environment={})
    with open_daemon(settings, fresh=True, on_batch=on_batch) as running:
        yield files, running


def _choose_files(folder: Path, task: Task, data: str) -> Files:
    """Return the files to write: those of an earlier demo, or under other names where somebody has changed one."""
    source = next(
        path for n in _name_suffixes() if not _is_changed(path := folder / f"{n}{'-' * bool(n)}{task.data}", data)
    )
    candidates = (Files(folder / f"demo{n}.toml", source, folder / f"checkpoints{n}") for n in _name_suffixes())
    return next(
        files
        for files in candidates
        if not _is_changed(files.config, _render_config(files, task, 0))
        and (files.config.exists() or not _is_taken(files.state))
    )


def _name_suffixes() -> Iterator[str]:
    """Yield suffixes that make names unique: an empty one first."""
    yield ""
    yield from map(str, itertools.count(2))


def _is_changed(path: Path, text: str) -> bool:
    """Whether a file exists, and has another text, whatever port it names; log that it is kept."""
    port = rb"(?m)^port = \d+$"
    if not path.exists() or re.sub(port, b"", path.read_bytes()) == re.sub(port, b"", text.encode()):
        return False
    LOGGER.warning("%s is not as this demo writes it; it is kept, and another name is used", path)
    return True


def _is_taken(path: Path) -> bool:
    """Whether something is there that no demo has left; log that it is kept."""
    if path.exists():
        LOGGER.warning("%s is not of this demo; it is kept, and another name is used", path)
    return path.exists()


def _render_config(files: Files, task: Task, port: int) -> str:
    return CONFIG.format(
        data=json.dumps(str(files.data)),
        block_bytes=task.block_bytes,
        target=task.target,
        kind="classifier" if task.classify else "regressor",
        state=json.dumps(str(files.state)),
        port=port,
    )


def _to_csv(events: Events, target: str) -> str:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    names = list(events[0][0])
    writer.writerow([*names, target])
    for x, y in events:
        writer.writerow([*(x[name] for name in names), y])
    return stream.getvalue()


def _load_polls() -> Events:
    return list(datasets.TrumpApproval())  # type: ignore[no-untyped-call]


def _load_segments() -> Events:
    return list(datasets.ImageSegments())  # type: ignore[no-untyped-call]


def _draw_friedman() -> Events:
    drawn = datasets.synth.FriedmanDrift(drift_type="gra", position=(33_000, 66_000), seed=0)
    return list(drawn.take(100_000))


def _make_regressors() -> dict[str, Any]:  # River's types do not express that a pipeline ending in a regressor is one
    scaler = preprocessing.StandardScaler
    return {
        "river BayesianLinearRegression": scaler() | linear_model.BayesianLinearRegression(),
        "river LinearRegression (SGD)": scaler() | linear_model.LinearRegression(),
        "running mean": dummy.StatisticRegressor(stats.Mean()),
    }


def _make_classifiers() -> dict[str, Any]:
    from river import forest, naive_bayes, tree

    scaler = preprocessing.StandardScaler
    return {
        "river SoftmaxRegression": scaler() | linear_model.SoftmaxRegression(),
        "river ARFClassifier": scaler() | forest.ARFClassifier(seed=0),
        "river HoeffdingTreeClassifier": scaler() | tree.HoeffdingTreeClassifier(),
        "river GaussianNB": scaler() | naive_bayes.GaussianNB(),  # type: ignore[no-untyped-call]
        "most frequent class": dummy.PriorClassifier(),
    }


REGRESSION = Task("trump-approval.csv", "five_thirty_eight", False, _load_polls, _make_regressors)
CLASSIFICATION = Task("image-segments.csv", "category", True, _load_segments, _make_classifiers)
NO_INTERCEPT = (
    "BayesianLinearRegression has no intercept: behind the scaler its predictions average 0, and y averages 14"
)
LONG = Task("friedman-drift.csv", "y", False, _draw_friedman, _make_regressors, block_bytes=1 << 20, note=NO_INTERCEPT)


def _run_baselines(task: Task, events: Events, n_late: int, stop: StopFlag) -> Iterator[Row]:
    for name, model in task.baselines().items():
        if not stop.requested:
            yield _run_baseline(task, name, model, events, n_late)


def _run_baseline(task: Task, name: str, model: Any, events: Events, n_late: int) -> Row:
    started = time.perf_counter()
    values = []
    for x, y in events:
        predicted = model.predict_one(x)
        values.append(float(predicted == y) if task.classify else (y - predicted) ** 2)
        model.learn_one(x, y)
    return _summarize(task, name, np.array(values), n_late, len(events) / (time.perf_counter() - started))


def _summarize(task: Task, name: str, values: FloatArray, n_late: int, events_per_second: float) -> Row:
    """Summarize the squared errors or hits of all events, in order."""
    means = values.mean(), values[-n_late:].mean()
    score, late = means if task.classify else np.sqrt(means)
    return Row(name, float(score), float(late), events_per_second)


def _format_table(task: Task, n: int, rows: list[Row], n_late: int | None = None) -> str:
    """Return the scores over all events and over the last half; or over the last so many, with speeds."""
    what, late = (
        ("events", "2nd half") if n_late is None else ("further events, of a stream that changes", f"last {n_late:,}")
    )
    lines = [
        f"{n:,} {what}, each predicted before it is learned (prequential {task.score})",
        "",
        f"{'':32}{'all':>10}{late:>13}" + (f"{'events/s':>12}" if n_late else ""),
    ]
    for row in rows:
        speed = f"{row.events_per_second:>12,.0f}" if n_late else ""
        lines.append(f"{row.name:32}{row.score:>10.3f}{row.late_score:>13.3f}{speed}")
    return "\n".join([*lines, *(["", task.note] if task.note else [])])


def _wait_for_stop(stop: StopFlag) -> None:
    while not stop.requested:
        time.sleep(0.2)


@click.command("demo")
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
    help="Port of the metrics; 0 means any free one.",
)
@click.option("--classify", is_flag=True, help="Learn classes instead of numbers.")
@click.option("--stay", is_flag=True, help="Keep serving the metrics after the last event, until Ctrl-C.")
@logged
def command(folder: Path | None, port: int | None, classify: bool, stay: bool) -> None:
    """Stream a real data set through the daemon and compare it with simple baselines.

    \b
    Example:
      streammoe demo --stay
      streammoe demo --classify
    """
    if folder is None:
        folder = Path("demo-state", "classes") if classify else Path("demo-state")
    with ExitStack() as bar:
        follow = bar.enter_context(progress_bar("streaming"))
        with run_demo(folder, port=port, on_batch=follow, classify=classify) as report:
            bar.close()
            click.echo("\n".join([report.table, "", *report.locations]))
            if stay:
                click.echo("Press Ctrl-C to stop.", err=True)
                report.wait()
