"""Stream a real data set through the daemon.

It is River's TrumpApproval: 1,001 days of approval ratings by five pollsters and the date, from which the average
computed by FiveThirtyEight is predicted. The relation drifts. The daemon learns it with the default settings of its
model.
"""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import ExitStack
from pathlib import Path

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

FILE, TARGET = "trump-approval.csv", "five_thirty_eight"
AGAINST = ("river:BayesianLinearRegression", "river:LinearRegression")
CONFIG = """\
# Written by `demo`; with this file and --fresh, `run` streams the same data again.
[source]
kind = "file"
path = {data}
block_bytes = 4096  # few, so that progress and metrics move

[schema]
target = "{target}"

[checkpoint]
dir = {state}
"""


def write_files(folder: Path) -> Path:
    """Write data and configuration, and return the path of the configuration.

    Raises:
        ConfigError: the folder cannot be written, or somebody has changed one of the files.
    """
    text = io.StringIO(newline="")
    rows = csv.writer(text)
    for i, (x, y) in enumerate(datasets.TrumpApproval()):
        if not i:
            rows.writerow([*x, TARGET])
        rows.writerow([*x.values(), y])
    config, data = folder / "demo.toml", folder / FILE
    places = {"data": json.dumps(str(data)), "state": json.dumps(str(folder / "checkpoints"))}
    files = {data: text.getvalue(), config: CONFIG.format(target=TARGET, **places)}
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
    default="demo-state",
    show_default=True,
    help="Where data, configuration, checkpoint and dead letters go.",
)
@click.option("--stay", is_flag=True, help="Keep serving the metrics after the last event, until Ctrl-C.")
@logged
def command(folder: Path, stay: bool) -> None:
    """Stream a real data set through the daemon, and compare its model with simple baselines on the same events.

    \b
    Example:
      streammoe demo --stay
    """
    config = write_files(folder)
    settings = load_settings(config, environment={}, overrides=["metrics.port=0"])
    with StopFlag() as stop, ExitStack() as bar:
        follow = bar.enter_context(progress_bar("streaming"))
        with open_daemon(settings, fresh=True, on_batch=follow) as running:
            summary = running.daemon.run(stop)
            if stop.requested:
                end_without_result(stop.exit_code, "before the end; the checkpoint holds what was learned")
            compared = evaluate(settings, AGAINST, source_name=str(folder / FILE), stop=stop)
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
