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
    from streammoe.serving.answers import answers
    from streammoe.serving.figures import History
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
    live = LiveMetrics(COMMON)
    source, published, problem = Place(place), Published(), ""
    history, began, known = History(), time.monotonic(), dict[str, Any]()
    constant = {"version": version("streammoe"), "started": time_of_day(), "place": place, "alive": True}

    def look() -> str:
        """Take what is new; return why that failed."""
        nonlocal known
        try:
            if (checkpoint := source.read_if_new()) is not None:
                snapshot = source.snapshot_of(checkpoint)
                answers(snapshot, [[b"{}"]], settings.predictions.interval)  # compiles what is not compiled yet
                known = source.figures_of(checkpoint, snapshot.model)
                published.latest = snapshot
                LOGGER.info("answering by a model that has learned %d events", checkpoint.metadata["n"])
        except StreammoeError as error:
            return str(error)
        return ""

    def status() -> dict[str, Any]:
        age, up, rate = age_seconds(known.get("created")), time.monotonic() - began, history.events_per_second
        now = {"problem": problem, "uptime_seconds": up, "checkpoint_age_seconds": age, "events_per_second": rate}
        return {**constant, **now, **known, "history": history.points}

    with StopFlag(armed=True) as stop:
        if problem := look():
            LOGGER.warning("%s; waiting until there is one", problem)
        interval = settings.predictions.interval
        server = PredictionServer(settings.serve, published, lambda: problem, interval, live, status)
        with closing(server):
            LOGGER.info("predictions at %s", server.url)
            while not stop.requested:
                time.sleep(every)
                before, problem = problem, look()
                history.add(status())
                if problem not in {"", before}:
                    LOGGER.warning("%s; the model before it goes on answering", problem)
