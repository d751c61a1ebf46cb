"""Stream a real data set through the daemon.

Regression uses River's TrumpApproval: 1,001 days of approval ratings by five pollsters and the date, from which the
average computed by FiveThirtyEight is predicted. The relation drifts.

Classification uses River's ImageSegments: 2,310 patches of outdoor pictures with 18 measurements each, which show one
of seven classes (sky, grass, brick, ...). Nothing drifts.

The daemon learns both with the default settings of its model.
"""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
from river import datasets

from streammoe.assembly import open_daemon
from streammoe.commands.evaluate.prequential import evaluate, table
from streammoe.configuration import load_settings
from streammoe.console import end_without_result, logged, progress_bar
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError
from streammoe.invocation import command_line
from streammoe.persistence.durable import make_folder, replace


class Task(NamedTuple):
    """A data set of River, and its learners to compare with."""

    data: type
    file: str
    target: str
    kind: str
    against: tuple[str, ...]


REGRESSION = Task(
    datasets.TrumpApproval,
    "trump-approval.csv",
    "five_thirty_eight",
    "regressor",
    ("river:BayesianLinearRegression", "river:LinearRegression"),
)
CLASSIFICATION = Task(
    datasets.ImageSegments,
    "image-segments.csv",
    "category",
    "classifier",
    ("river:SoftmaxRegression", "river:ARFClassifier", "river:HoeffdingTreeClassifier", "river:GaussianNB"),
)
CONFIG = """\
# Written by `demo`; with this file and --fresh, `run` streams the same data again.
[source]
kind = "file"
path = {data}
block_bytes = 4096  # few, so that progress and metrics move

[schema]
target = "{target}"

[model]
kind = "{kind}"  # all else by default

[checkpoint]
dir = {state}
"""


def write_files(folder: Path, task: Task) -> Path:
    """Write data and configuration, and return the path of the configuration.

    Raises:
        ConfigError: the folder cannot be written, or somebody has changed one of the files.
    """
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    for i, (x, y) in enumerate(task.data()):
        if not i:
            rows.writerow([*x, task.target])
        rows.writerow([*x.values(), y])
    config, data = folder / "demo.toml", folder / task.file
    places = {"data": json.dumps(str(data)), "state": json.dumps(str(folder / "checkpoints"))}
    files = {data: text.getvalue(), config: CONFIG.format(target=task.target, kind=task.kind, **places)}
    try:
        make_folder(folder)
        for path, content in files.items():
            if path.exists() and path.read_bytes() != content.encode():
                raise ConfigError(f"--dir {folder}: its {path.name} is not as demo writes it; name another folder")
            replace(path, content.encode())
    except OSError as error:
        raise ConfigError(f"--dir {folder}: cannot be written ({error.strerror}); name another folder") from error
    return config


@click.command("demo")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    show_default="demo-state; with --classify demo-state/classes",
    help="Where data, configuration, checkpoint and dead letters go.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of the metrics; 0, the default, means any free one."
)
@click.option("--classify", is_flag=True, help="Learn classes instead of numbers.")
@click.option("--stay", is_flag=True, help="Keep serving the metrics after the last event, until Ctrl-C.")
@logged
def command(folder: Path | None, port: int, classify: bool, stay: bool) -> None:
    """Stream a real data set through the daemon, and compare its model with simple baselines on the same events.

    \b
    Example:
      streammoe demo --stay
      streammoe demo --classify
    """
    task = CLASSIFICATION if classify else REGRESSION
    if folder is None:
        folder = Path("demo-state", "classes") if classify else Path("demo-state")
    config = write_files(folder, task)
    settings = load_settings(config, environment={}, overrides=[f"metrics.port={port}"])
    with StopFlag() as stop, ExitStack() as bar:
        follow = bar.enter_context(progress_bar("streaming"))
        with open_daemon(settings, fresh=True, on_batch=follow) as running:
            summary = running.daemon.run(stop)
            if stop.requested:
                end_without_result(stop.exit_code, "before the end; the checkpoint holds what was learned")
            compared = evaluate(settings, task.against, source_name=str(folder / task.file), stop=stop)
            bar.close()
            state, rerun = (
                command_line(*words)
                for words in (("inspect", str(folder / "checkpoints")), ("run", str(config), "--fresh"))
            )
            lines = [
                table(compared),
                "of so few events, most of our time goes into the fits of the warm-up: docs/performance.md",
                "",
                f"metrics     {running.metrics_url} (while this runs; --stay keeps them up)",
                f"checkpoint  {summary.checkpoint} ({state})",
                f"config      {config} ({rerun})",
            ]
            click.echo("\n".join(lines))
            if stay:
                click.echo("Press Ctrl-C to stop.", err=True)
                while not stop.requested:
                    time.sleep(0.2)
