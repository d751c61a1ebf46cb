"""Merge the checkpoints of several daemons into a global model.

Each daemon learns a part of one stream, a shard. Nothing in their folders is written or locked.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streammoe.console import logged
from streammoe.errors import CheckpointError, ConfigError
from streammoe.text import counted, listed, printable

if TYPE_CHECKING:
    from streammoe.daemon.health import Health
    from streammoe.daemon.signals import StopFlag
    from streammoe.persistence import CheckpointStore
    from streammoe.scaleout.shard_metrics import ReduceMetrics
    from streammoe.scaleout.watcher import ReduceRound, Watcher

LOGGER = logging.getLogger("streammoe.shards")


@click.command("reduce")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True)
@click.option("--out", metavar="FOLDER", required=True, help="Folder of the global models.")
@click.option("--watch", is_flag=True, help="Go on until SIGTERM; a new version follows whenever a shard has learned.")
@click.option(
    "--every",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time from one round to the next, with --watch.",
)
@click.option(
    "--n-experts", type=click.IntRange(min=1), metavar="K", help="Experts of the global model; by default the most."
)
@click.option(
    "--keep", type=click.IntRange(min=1), default=3, show_default=True, metavar="N", help="Versions that are kept."
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve metrics, with --watch.")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address for metrics.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@logged
def command(
    folders: tuple[str, ...],
    out: str,
    watch: bool,
    every: float,
    n_experts: int | None,
    keep: int,
    metrics_port: int | None,
    metrics_host: str,
    as_json: bool,
) -> None:
    """Merge the newest checkpoints of several daemons, of which each learns a shard, into a global model.

    DIR is the folder of a daemon's checkpoints, which go on meanwhile, and keep a sample of their events
    (model.reservoir), at which models are compared. What counts of each shard is its newest sound checkpoint, by the
    number of events that it has learned itself. A shard that is still warming up, or whose settings differ from those
    of most, is left out until that changes. One whose folder cannot be read any more keeps the part that it had.

    A global model has a version, which rises by one whenever a shard has learned something new. Only one such process
    may write to FOLDER. Without --watch the exit code is 4 if no shard could be used. With it, problems of shards end
    nothing: see the log, and the metrics.

    \b
    Example:
      streammoe reduce shard-0/state shard-1/state --out global
      streammoe reduce shard-0/state shard-1/state --out global --watch --every 60 --metrics-port 9465
    """
    if metrics_port is not None and not watch:
        raise click.UsageError("--metrics-port needs --watch: without it there is nothing left to ask for metrics")
    from streammoe.daemon.signals import StopFlag
    from streammoe.persistence import CheckpointStore, FolderLock
    from streammoe.scaleout.global_model import folder_of
    from streammoe.scaleout.shard_metrics import ReduceMetrics
    from streammoe.scaleout.watcher import Watcher

    shards, target = _shards(folders), folder_of(out, "--out")
    if any(folder.resolve() == target.resolve() for folder in shards.values()):
        raise ConfigError(f"--out: {target} is the folder of a shard; name one of its own")
    with StopFlag() as stop, ExitStack() as stack:
        lock = stack.enter_context(FolderLock(target, what="folder of global models", setting="--out"))
        metrics = ReduceMetrics(list(shards))
        store = CheckpointStore(target, keep, lock)
        watcher = Watcher(shards, store, n_experts=n_experts, retries=watch, metrics=metrics)
        if watch:
            health = stack.enter_context(_served(metrics, metrics_host, metrics_port))
            last = _watch(watcher, every, stop, health)
        else:
            last = _once(watcher)
    click.echo(json.dumps(_description(last)) if as_json else _text(last, store))


def _shards(folders: Sequence[str]) -> dict[str, Path]:
    """Return the folders of the shards, each by its path as it was given, which is the name of the shard."""
    from streammoe.scaleout.global_model import folder_of

    shards: dict[Path, Path] = {}
    for folder in (folder_of(text, "DIR") for text in folders):
        if (other := shards.setdefault(folder.resolve(), folder)) is not folder:
            both = f"{other} and {folder} are the same folder"
            raise ConfigError(f"DIR: {both}, whose events would count twice; leave one out")
    return {str(folder): folder for folder in shards.values()}


@contextmanager
def _served(metrics: ReduceMetrics, host: str, port: int | None) -> Iterator[Health]:
    """Serve metrics and probes, if there is a port for it."""
    from streammoe.daemon.health import Health
    from streammoe.daemon.server import MetricsServer
    from streammoe.settings import MetricsSettings

    health = Health(patience=3600.0)  # a round of many wide models may take long
    if port is None:
        yield health
        return
    try:
        server = MetricsServer(MetricsSettings(host=host, port=port), health)
    except ConfigError as error:
        reason = f" ({error.__cause__.strerror})" if isinstance(error.__cause__, OSError) else ""
        raise ConfigError(
            f"--metrics-host {host} with --metrics-port {port}: cannot be bound{reason}; stop the program that uses "
            "the port, or name another one (0 picks a free one)"
        ) from error
    try:
        server.registry = metrics.registry
        LOGGER.info("metrics at %s", server.url)
        yield health
    finally:
        server.close()


def _watch(watcher: Watcher, every: float, stop: StopFlag, health: Health) -> ReduceRound:
    """Do a round at once and then each `every` seconds until a signal asks to stop."""
    while True:
        next_at = time.monotonic() + every
        last = watcher.round()
        health.ready = True
        health.unsaved = "" if last.error is None else str(last.error)
        while not stop.requested and time.monotonic() < next_at:
            health.beat()
            time.sleep(min(0.2, max(next_at - time.monotonic(), 0.0)))
        health.beat()
        if stop.requested:
            return last


def _once(watcher: Watcher) -> ReduceRound:
    """Do one round; raise if nothing comes of it."""
    from streammoe.scaleout.watcher import ONCE_MORE

    last = watcher.round()
    if last.error is not None:
        raise last.error
    if last.outcome == "waiting":
        problems = "; ".join(f"{name} ({problem.text})" for name, problem in last.problems.items())
        raise CheckpointError(f"no shard has a checkpoint that counts: {problems}; {ONCE_MORE}")
    if last.problems:
        names = listed([f"shard {name}" for name in last.problems], "and")
        LOGGER.warning("the newest checkpoint of %s does not count; %s", names, ONCE_MORE)
    return last


def _description(last: ReduceRound) -> dict[str, Any]:
    newest = last.newest
    return {
        "outcome": last.outcome,
        "version": newest.version if newest else None,
        "n": newest.n if newest else 0,
        "shards": {name: contained.model_dump() for name, contained in newest.shards.items()} if newest else {},
        "problems": {name: problem._asdict() for name, problem in last.problems.items()},
    }


def _text(last: ReduceRound, store: CheckpointStore) -> str:
    newest = last.newest
    if newest is None:
        return "there is no global model yet"
    lines = [f"version {newest.version}, {counted(newest.n, 'event')}: {store.path(newest.version)}"]
    for name, contained in newest.shards.items():
        apart = "" if contained.divergence is None else f", {contained.divergence:.3g} nats apart"
        lines.append(f"  {name}: {counted(contained.n, 'event')}, share {contained.n / newest.n:.3g}{apart}")
    return "\n".join(map(printable, lines))
