"""Build a daemon from settings: the only module that knows both the daemon and its connectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, cast

from streammoe.answering import Answering
from streammoe.configuration import DEAD_LETTERS, PREDICTIONS, connectors, extension
from streammoe.daemon.checkpoints import Checkpoints
from streammoe.daemon.health import Health
from streammoe.daemon.loop import POLL_SECONDS, Daemon, Observer, ProgressListener
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.mirror import Mirror
from streammoe.daemon.model import compile_kernels
from streammoe.daemon.outputs import Outputs
from streammoe.daemon.reload import Reload
from streammoe.daemon.resume import check_checkpoint, is_blank, latest_visible_checkpoint, resumed
from streammoe.daemon.server import MetricsServer
from streammoe.daemon.signals import StopFlag
from streammoe.daemon.status import Status
from streammoe.errors import ConfigError
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.overlapped import OverlappedPredictions, n_cores
from streammoe.pipeline.predictions import JsonlPredictions, RestartPlan, plan_restart
from streammoe.pipeline.writing import PredictionWriter
from streammoe.ports import Batch, DeadLetterSink, Position, PredictionSink, Source
from streammoe.settings import DeadLetterFileSettings, PredictionFileSettings, PredictionSettings, Settings

LOGGER = logging.getLogger("streammoe.serve")


class DaemonHandle(NamedTuple):
    """A daemon that is ready to run, with what its caller reports."""

    daemon: Daemon
    metrics_url: str | None


def open_source(settings: Settings) -> Source:
    """Create the source that the settings describe, without calling it yet."""
    return cast("Source", connectors()[settings.source.kind](settings.source))


def batches_of(
    settings: Settings, on_batch: ProgressListener | None = None, stop: StopFlag | None = None
) -> Iterator[Batch]:
    """Open a source at once, and return its batches from the beginning to the end, or until a stop is requested.

    Args:
        settings: with the source.
        on_batch: called with the source's progress after each batch.
        stop: ends the iteration.

    Raises:
        SourceError: it cannot be opened, or later, read.
    """
    source = open_source(settings)

    def polled() -> Iterator[Batch]:
        with closing(source):
            while not source.finished and not (stop is not None and stop.requested):
                batch = source.poll(POLL_SECONDS)
                if batch is not None:
                    yield batch
                if on_batch is not None:
                    on_batch(source.progress())

    source.seek(None)
    return polled()


@contextmanager
def open_daemon(
    settings: Settings,
    *,
    fresh: bool = False,
    from_model: Path | None = None,
    repeat_predictions: bool = False,
    on_batch: ProgressListener | None = None,
    reload: Reload | None = None,
    health: Health | None = None,
) -> Iterator[DaemonHandle]:
    """Open and check everything that a run needs before any event is read, and close it at the end.

    Args:
        settings: of the daemon.
        fresh: start over despite existing checkpoints, which are moved to a sub-folder.
        from_model: file of a model to start with; only without checkpoints to resume from. The first checkpoint is
            written before anything is read.
        repeat_predictions: see `may_repeat` of `latest_visible_checkpoint`.
        on_batch: called with the source's progress after each batch.
        reload: reloads the settings on request.
        health: outlives the daemon, where a further one follows it in this process.

    Raises:
        ConfigError: a port or a file named in the settings cannot be used, or there are both a checkpoint and
            `from_model`.
        CheckpointError: the folder is locked, cannot be written, or holds another model's checkpoints; or `from_model`
            does not match the settings.
        SourceError: there is nothing to read.
        SinkError: predictions cannot be written.
    """
    with ExitStack() as stack:
        lock = stack.enter_context(FolderLock(settings.checkpoint.dir))
        store = CheckpointStore(settings.checkpoint.dir, keep=settings.checkpoint.keep, lock=lock)
        store.prepare()
        health = health or Health()
        health.ready, health.unsaved = False, ""
        status = stack.enter_context(Status(store.folder, version("streammoe"), health))
        metrics, server = Metrics(health), None
        metrics.counter("streammoe_starts_total").inc(status.starts)
        if settings.metrics.enabled:
            server = stack.enter_context(closing(MetricsServer(settings.metrics, health)))
        published = None
        if settings.serve.enabled:
            answering = Answering(settings.serve, settings.predictions.interval, status.content)
            stack.enter_context(closing(answering))
            published = answering.published
            LOGGER.info("predictions at %s", answering.url)
        writer = _prediction_writer(settings, health)
        sink = None if writer is None else stack.enter_context(closing(writer.sink))
        found = None if fresh else _checkpoint(settings, store, from_model)
        recovered = None if sink is None or not sink.transactional else _recovered(sink, found, health)
        found = found and latest_visible_checkpoint(store, found, recovered, may_repeat=repeat_predictions)
        restart = RestartPlan()
        if sink is not None:
            replayable = connectors()[settings.source.kind].replayable
            restart = plan_restart(sink, found and found[1].metadata, replayable=replayable)
        is_restored = found is not None and "restored" in found[1].metadata
        must_save = restart.must_save or from_model is not None or is_restored
        restart = RestartPlan(store.set_aside if fresh else restart.begin, must_save)
        state = resumed(settings, found, writer, store, from_model)
        observer: Observer | None = extension("observer")(settings, metrics) if settings.global_.path else None
        letters = stack.enter_context(closing(_dead_letters(settings, health)))
        source = stack.enter_context(closing(open_source(settings)))
        if is_restored and state.position is not None:
            state.position = source.renamed(state.position)
        source.seek(state.position)
        compile_kernels(settings)
        if settings.challenger is not None:
            compile_kernels(settings.exchanged())
        outputs, generation = Outputs(letters, sink, health.waits), found[0] if found else 0
        checkpoints = Checkpoints(store, state, source, outputs, metrics, settings.checkpoint, generation, restart)
        daemon = Daemon(source, state, outputs, checkpoints, metrics, reload, observer, on_batch, status, published)
        if server is not None:
            server.registry = metrics.registry
        stack.enter_context(closing(Mirror(CheckpointStore(store.folder), checkpoints, metrics)))
        yield DaemonHandle(daemon, None if server is None else server.url)


def _checkpoint(settings: Settings, store: CheckpointStore, from_model: Path | None) -> tuple[int, Checkpoint] | None:
    """Return the newest checkpoint and its generation, if there is one."""
    latest = store.latest()
    if latest is None:
        return None
    if from_model is not None and not is_blank(latest[1]):
        raise ConfigError(
            f"--from-model {from_model}: {store.folder} already holds checkpoints to resume from; omit the "
            "option to resume, add --fresh to start with this model instead (the checkpoints are moved to a "
            "sub-folder), or set checkpoint.dir to another folder"
        )
    check_checkpoint(settings, latest[1])
    return latest


def _prediction_writer(settings: Settings, health: Health) -> PredictionWriter | None:
    predictions, wait = settings.predictions, health.waits["predictions"]
    match predictions:
        case PredictionSettings(kind="none"):
            return None
        case PredictionFileSettings():
            sink: PredictionSink = JsonlPredictions(predictions.path)
            # What another thread waits for does not keep learning waiting.
            sink = OverlappedPredictions(sink) if n_cores() > 1 else sink
        case _:
            sink = cast("PredictionSink", connectors(PREDICTIONS)[predictions.kind](predictions, settings.source))
    wait.rejection = lambda: sink.rejection
    return PredictionWriter(sink, predictions.interval, predictions.gate, wait)


def _dead_letters(settings: Settings, health: Health) -> DeadLetterSink:
    letters = settings.dead_letters
    if isinstance(letters, DeadLetterFileSettings):
        return DeadLetterFile(letters.path)
    sink = cast("DeadLetterSink", connectors(DEAD_LETTERS)[letters.kind](letters, settings.source))
    health.waits["dead_letters"].rejection = lambda: sink.rejection
    return sink


def _recovered(sink: PredictionSink, found: tuple[int, Checkpoint] | None, health: Health) -> int:
    """Ask the sink which checkpoint's predictions were committed, however long that takes."""
    position: Position | None = None if found is None else found[1].metadata["positions"][0]
    with health.waits["predictions"].call():
        while (recovered := sink.recover(POLL_SECONDS, position)) is None:
            health.beat()
        return recovered
