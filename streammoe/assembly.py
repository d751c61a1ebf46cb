"""Build a daemon from settings: the only module that knows both the daemon and its connectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, cast

from streammoe.configuration import DEAD_LETTERS, PREDICTIONS, connectors, extension
from streammoe.daemon.chained import ChainedSource
from streammoe.daemon.checkpointer import RetryPolicy
from streammoe.daemon.guards import BadRecordGuard, LossGuard, SavedGenerations
from streammoe.daemon.health import Health
from streammoe.daemon.loop import POLL_SECONDS, CheckpointPolicy, Daemon, JumpHandler, ProgressListener
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.model import compile_kernels, schema_of
from streammoe.daemon.observer import Observer
from streammoe.daemon.reload import Reload
from streammoe.daemon.resume import (
    check_checkpoint,
    initial_model,
    is_blank,
    labels_of,
    latest_visible_checkpoint,
    resume_model,
    scores_of,
)
from streammoe.daemon.server import MetricsServer
from streammoe.errors import ConfigError
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.overlapped import OverlappedPredictions, has_other_core
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.predictions import JsonlPredictions, RestartPlan, plan_restart
from streammoe.pipeline.watched import WatchedDeadLetters, WatchedPredictions
from streammoe.pipeline.writing import PredictionWriter
from streammoe.ports import DeadLetterSink, Position, PredictionSink, Recovered, Source
from streammoe.settings import DeadLetterFileSettings, NoPredictionsSettings, PredictionFileSettings, Settings

LOGGER = logging.getLogger("streammoe.assembly")


class DaemonHandle(NamedTuple):
    """A daemon that is ready to run, with what its caller reports."""

    daemon: Daemon
    metrics_url: str | None
    n_learned_at_start: int
    """Number of events that the model has learned already, in earlier runs or before `from_model` was saved."""


def open_source(settings: Settings) -> Source:
    """Create the source that the settings describe, without calling it yet."""
    source_classes = connectors()
    sources = [
        cast("Source", source_classes[source.kind](source))  # type: ignore[attr-defined]
        for source in settings.sources
    ]
    return sources[0] if len(sources) == 1 else ChainedSource(sources)


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
        server = None
        if health is None:
            health = health_of(settings)
        health.ready, health.unsaved = False, ""
        metrics = Metrics(health)
        if settings.metrics.enabled:
            server = MetricsServer(settings.metrics, health)
            stack.callback(server.close)
            server.show(metrics.at_the_start)
        writer = _prediction_writer(settings, health)
        latest = None if fresh else store.latest()
        if latest is not None:
            if from_model is not None and not is_blank(latest[1]):
                raise ConfigError(
                    f"--from-model {from_model}: {store.folder} already holds checkpoints to resume from; omit the "
                    "option to resume, add --fresh to start with this model instead (the checkpoints are moved to a "
                    "sub-folder), or set checkpoint.dir to another folder"
                )
            check_checkpoint(settings, latest[1])
        recovered = None
        if writer is not None:
            stack.callback(writer.sink.close)
            if writer.sink.transactional:
                position = None if latest is None else latest[1].metadata["positions"][0]
                recovered = _recovered(writer.sink, position, health)
        latest = latest and latest_visible_checkpoint(store, latest, recovered, may_repeat=repeat_predictions)
        generation, checkpoint = latest or (0, None)
        metadata = checkpoint.metadata if checkpoint is not None else {}
        # A checkpoint that was written before anything was read only records where reading and predictions began.
        learned_checkpoint = None if checkpoint is None or is_blank(checkpoint) else checkpoint
        if writer is None:
            prediction_restart = RestartPlan()
        else:
            prediction_restart = plan_restart(writer.sink, None if checkpoint is None else metadata)
        if learned_checkpoint is None:
            model = initial_model(settings, from_model)
        else:
            model = resume_model(settings, learned_checkpoint)
        if from_model is not None:
            LOGGER.info(
                "starting with the model of %s, which has learned %d events; counts start at 0", from_model, model.n
            )
        observer: Observer | None = extension("observer")(settings, metrics) if settings.global_.path else None
        dead_letters = WatchedDeadLetters(_dead_letters(settings), health.waits["dead_letters"])
        stack.callback(dead_letters.close)
        source = open_source(settings)
        stack.callback(source.close)
        position = metadata.get("positions", [None])[0]
        source.seek(position)
        compile_kernels(settings)
        counters = metadata.get("counters", {"outcomes": {}, "reasons": {}})
        daemon = Daemon(
            source=source,
            pipeline=Pipeline(
                model,
                schema_of(settings),
                scores_of(settings, learned_checkpoint, model),
                writer,
                is_pretrained=bool(model.fields) and not any(counters["outcomes"].values()),
            ),
            store=store,
            dead_letters=dead_letters,
            guard=BadRecordGuard(
                settings.dead_letters.max_ratio,
                None if learned_checkpoint is None else learned_checkpoint.arrays["guard.latest"],
            ),
            metrics=metrics,
            policy=CheckpointPolicy(settings.checkpoint.every_events, settings.checkpoint.every_seconds),
            description={
                "version": version("streammoe"),
                "settings": settings.learning_settings(),
            },
            position=position,
            generation=generation,
            outcomes=counters["outcomes"],
            reasons=counters["reasons"],
            health=health,
            retries=RetryPolicy(settings.checkpoint.retry_seconds),
            reload=reload,
            labels=labels_of(settings, learned_checkpoint),
            jump_handler=_jump_handler(settings, store, latest if learned_checkpoint is not None else None, model),
            observer=observer,
            # At the very end: a failed start must leave everything as it was.
            on_begin=store.set_aside if fresh else prediction_restart.cut,
            checkpoint_model_first=from_model is not None,
            checkpoint_predictions_first=prediction_restart.must_record_end,
            on_batch=on_batch,
        )
        if server is not None:
            server.show(metrics.registry)
        if learned_checkpoint is not None:
            LOGGER.info("resuming from a checkpoint in %s with %d events learned", store.folder, model.n)
        yield DaemonHandle(daemon, None if server is None else server.url, model.n)


def health_of(settings: Settings) -> Health:
    """Return the state behind probes and metrics at the start of a daemon."""
    return Health(settings.metrics.alive_seconds, settings.metrics.sink_wait_seconds)


def _prediction_writer(settings: Settings, health: Health) -> PredictionWriter | None:
    predictions, wait = settings.predictions, health.waits["predictions"]
    match predictions:
        case NoPredictionsSettings():
            return None
        case PredictionFileSettings():
            written: PredictionSink = JsonlPredictions(predictions.path)
            # What another thread waits for does not keep learning waiting.
            sink = WatchedPredictions(OverlappedPredictions(written) if has_other_core() else written, wait)
        case _:
            sink = WatchedPredictions(connectors(PREDICTIONS)[predictions.kind](predictions, settings.sources), wait)
    return PredictionWriter(sink, predictions.interval, predictions.gate)


def _dead_letters(settings: Settings) -> DeadLetterSink:
    letters = settings.dead_letters
    if isinstance(letters, DeadLetterFileSettings):
        return DeadLetterFile(letters.path)
    return cast("DeadLetterSink", connectors(DEAD_LETTERS)[letters.kind](letters, settings.sources))


def _recovered(sink: PredictionSink, position: Position | None, health: Health) -> Recovered:
    """Ask the sink which checkpoint's predictions were committed, however long that takes."""
    while (recovered := sink.recover(POLL_SECONDS, position)) is None:
        health.beat()
    return recovered


def _jump_handler(
    settings: Settings, store: CheckpointStore, latest: tuple[int, Checkpoint] | None, model: MixtureOfExperts
) -> JumpHandler | None:
    if settings.guard.on_jump == "off":
        return None
    learned, state, saved = model.n, None, []
    if latest is not None:
        generation, checkpoint = latest
        learned = checkpoint.metadata["n"]
        guard = checkpoint.metadata.get("guard", {})
        there, state = store.generations(), guard.get("jumps")
        saved = [*(entry for entry in guard.get("saved", []) if entry[0] in there), [generation, learned]]
    return JumpHandler(
        settings.guard.on_jump == "stop",
        LossGuard(model.step_size_at, learned, state),
        SavedGenerations(store.keep, saved),
    )
