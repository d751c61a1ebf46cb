"""Answer requests for predictions by the newest checkpoint."""

from __future__ import annotations

import logging
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

    from streammoe.catalogue import COMMON, LiveMetrics
    from streammoe.configuration import settings_from
    from streammoe.daemon.signals import StopFlag
    from streammoe.daemon.status import age_seconds
    from streammoe.serving.answers import compile_answers
    from streammoe.serving.place import Place
    from streammoe.serving.server import PredictionServer
    from streammoe.serving.snapshot import Published
    from streammoe.text import time_of_day

    for flag in overrides:
        if not flag.startswith(("serve.", "predictions.interval=")):
            raise ConfigError(
                f"--set {flag}: serve has no such setting; it uses those of serve, and predictions.interval"
            )
    tables = {"source": {"kind": "stdin", "format": "jsonl"}, "schema": {"target": "y"}, "serve": {"enabled": True}}
    settings = settings_from(tables, "the command line", overrides=overrides)
    source, published, problem = Place(place), Published(), ""
    began, known = time.monotonic(), dict[str, Any]()
    constant = {"version": version("streammoe"), "started": time_of_day(), "place": place, "alive": True}

    def look() -> str:
        """Take what is new; return why that failed."""
        nonlocal known
        try:
            if (checkpoint := source.read_if_new()) is not None:
                snapshot = source.snapshot_of(checkpoint)
                compile_answers(snapshot, settings.predictions.interval)
                known = source.figures_of(checkpoint, snapshot.model)
                published.latest = snapshot
                LOGGER.info("answering by a model that has learned %d events", checkpoint.metadata["n"])
        except StreammoeError as error:
            return str(error)
        return ""

    def status() -> dict[str, Any]:
        age, up = age_seconds(known.get("created")), time.monotonic() - began
        return {**constant, "problem": problem, "uptime_seconds": up, "checkpoint_age_seconds": age, **known}

    with StopFlag(armed=True) as stop:
        if problem := look():
            LOGGER.warning("%s; waiting until there is one", problem)
        server = PredictionServer(settings.serve, published, settings.predictions.interval, LiveMetrics(COMMON))
        with closing(server):
            server.show(status())
            LOGGER.info("predictions at %s", server.url)
            look_at = time.monotonic() + every
            while not stop.requested:
                server.describe()
                time.sleep(min(every, 1.0))
                server.show(status())
                if time.monotonic() < look_at:
                    continue
                look_at += every
                before, problem = problem, look()
                if problem not in {"", before}:
                    LOGGER.warning("%s; the model before it goes on answering", problem)
