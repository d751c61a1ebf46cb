"""Learn until the source ends or SIGTERM."""

from __future__ import annotations

import gc
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streammoe.console import echo_values, logged, progress_bar, setting_options
from streammoe.errors import RetriableSinkError, SinkError
from streammoe.text import share_learned

if TYPE_CHECKING:
    from streammoe.daemon.loop import Summary
    from streammoe.daemon.reload import Reload
    from streammoe.daemon.signals import StopFlag

LOGGER = logging.getLogger("streammoe.daemon")


@click.command("run")
@click.argument("config", type=click.Path(path_type=Path))
@setting_options
@click.option("--fresh", is_flag=True, help="Start over despite existing checkpoints, which are moved to a sub-folder.")
@click.option(
    "--from-model",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Start with a model saved elsewhere; if there are checkpoints, only with --fresh.",
)
@click.option(
    "--repeat-predictions",
    is_flag=True,
    help="Resume although transactional predictions of later checkpoints are visible, which are then visible twice.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary at the end as one JSON object.")
@logged
def command(
    config: Path,
    overrides: tuple[str, ...],
    fresh: bool,
    from_model: Path | None,
    repeat_predictions: bool,
    as_json: bool,
) -> None:
    """Run the daemon: read events, learn, checkpoint, until the source ends or SIGTERM asks to stop.

    \b
    Example:
      streammoe run config.toml --set checkpoint.dir=state --json
    """
    from streammoe.daemon.signals import HangupFlag, StopFlag

    with HangupFlag() as hangup, StopFlag(armed=False) as stop:
        from streammoe.configuration import check_readable_files, load_settings
        from streammoe.daemon.reload import Reload

        given = () if from_model is None else [("--from-model", from_model)]
        load = partial(load_settings, config, overrides=overrides, inputs=given)
        reload = Reload(hangup, load(), load, config)
        check_readable_files(reload.settings)
        result = _run(reload, stop, fresh=fresh, from_model=from_model, repeat_predictions=repeat_predictions)
    echo_values(result.flat(), as_json=as_json)
    if result.rejected and not as_json:
        click.echo(share_learned(result.learned, result.rejected, result.events - result.skipped))


def _run(reload: Reload, stop: StopFlag, *, fresh: bool, from_model: Path | None, repeat_predictions: bool) -> Summary:
    """Run the daemon, and again from the last checkpoint where a sink can be recovered by that."""
    from streammoe.assembly import open_daemon
    from streammoe.daemon.health import Health, waits_logged
    from streammoe.daemon.signals import StopDeadline

    health = Health()
    with progress_bar("learning") as follow, waits_logged(health):
        again = partial(
            open_daemon, on_batch=follow, reload=reload, health=health, repeat_predictions=repeat_predictions
        )
        opened = partial(again, fresh=fresh, from_model=from_model)
        while True:
            try:
                with opened(reload.settings) as running:
                    stop.armed = True
                    if running.metrics_url:
                        LOGGER.info("metrics at %s", running.metrics_url)
                    # What is loaded by now stays; else the collector would visit it every few thousand predictions.
                    gc.unfreeze()
                    gc.collect()
                    gc.freeze()
                    with StopDeadline(running.daemon.checkpoints.stop_seconds, running.daemon.last_words):
                        return running.daemon.run(stop)
            except RetriableSinkError as error:
                if stop.requested:
                    raise SinkError(
                        f"{error}; nothing was lost: the next start learns again what came after the last checkpoint "
                        "whose rows are visible"
                    ) from error
                stop.armed = False
                LOGGER.warning("%s; going back to the last checkpoint whose rows are visible, with a new one", error)
                opened = again  # as the next start after a crash
