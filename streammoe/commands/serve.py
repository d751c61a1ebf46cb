"""Answer requests for predictions by the newest checkpoint."""

from __future__ import annotations

import logging
import math
import time
from contextlib import closing
from typing import Any

import click

from streammoe.console import logged, setting_options
from streammoe.errors import ConfigError, StreammoeError

LOGGER = logging.getLogger("streammoe.serve")


@click.command("serve")
@click.argument("place")
@click.option("--every", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds between looks.")
@setting_options
@logged
def command(place: str, every: float, overrides: tuple[str, ...]) -> None:
    """Answer requests for predictions with a saved model, or with the newest checkpoint of a folder or a URL.

    Nothing is learned. PLACE is a model's file, a daemon's checkpoint folder, or where backups of one are written; what
    is newer replaces the model at once. All settings of [serve] can be set, and predictions.interval.

    \b
    Example:
      streammoe serve state --set serve.port=9465
    """
    from importlib.metadata import version

    from streammoe.configuration import settings_from
    from streammoe.daemon.signals import StopFlag
    from streammoe.daemon.status import age_seconds
    from streammoe.serving.place import Place
    from streammoe.serving.server import PredictionServer
    from streammoe.text import time_of_day

    for flag in overrides:
        if not flag.startswith(("serve.", "predictions.interval=")):
            raise ConfigError(
                f"--set {flag}: serve has no such setting; it uses those of serve, and predictions.interval"
            )
    tables = {"source": {"kind": "stdin", "format": "jsonl"}, "schema": {"target": "y"}}
    settings = settings_from(tables, "the command line", overrides=overrides)
    source, problem, known, look_at = Place(place), "", dict[str, Any](), -math.inf
    constant = {"version": version("streammoe"), "started": time_of_day(), "place": place, "alive": True}
    with StopFlag() as stop, closing(PredictionServer(settings.serve, settings.predictions.interval)) as server:
        LOGGER.info("predictions at %s", server.url)
        began = time.monotonic()
        while not stop.requested:
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + every
                try:
                    if (checkpoint := source.read_if_new()) is not None:
                        snapshot = source.snapshot_of(checkpoint)
                        known = source.figures_of(checkpoint, snapshot.model)
                        server.take(snapshot)
                        LOGGER.info("answering by a model that has learned %d events", snapshot.version)
                        problem = ""
                except StreammoeError as error:
                    if str(error) != problem:
                        then = "waiting until there is one" if server.latest is None else "the model before it answers"
                        LOGGER.warning("%s; %s", error, then)
                    problem = str(error)
            age, up = age_seconds(known.get("created")), time.monotonic() - began
            server.show({**constant, "problem": problem, "uptime_seconds": up, "checkpoint_age_seconds": age, **known})
            time.sleep(min(every, 1.0))
