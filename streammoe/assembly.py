"""Build a daemon from settings: the only module that knows both the daemon and its connectors."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

from streammoe import settings as settings_module
from streammoe.configuration import DEAD_LETTERS, PREDICTIONS, connectors
from streammoe.daemon.chained import ChainedSource
from streammoe.daemon.checkpointer import RetryPolicy
from streammoe.daemon.guards import BadRecordGuard, LossGuard, WayBack
from streammoe.daemon.loop import POLL_SECONDS, CheckpointPolicy, Daemon, OnJump, ProgressListener, Restored
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.model import compile_kernels, schema_of
from streammoe.daemon.reload import Reload
from streammoe.daemon.resume import (
    check,
    initial_model,
    is_blank,
    labels_of,
    last_good_checkpoint,
    resume_model,
    scores_of,
    visible_to_consumers,
)
from streammoe.daemon.server import Health, MetricsServer
from streammoe.errors import ConfigError
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import Checkpoint, CheckpointStore, FolderLock
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.pipeline import Pipeline, PredictionWriter
from streammoe.pipeline.predictions import Restart, prediction_sink, restart
from streammoe.ports import DeadLetterSink, Position, PredictionSink, Recovered, Source
from streammoe.settings import NoPredictions, PredictionFile, Settings

LOGGER = logging.getLogger("streammoe.assembly")
RUNS_KEPT = 1_000
"""Number of runs that a checkpoint remembers; dead letters of older runs can no longer be replayed."""


class Running(NamedTuple):
    """A daemon ready to run."""

    daemon: Daemon
    metrics_url: str | None
    resumed_at: int
    """Number of events that the model had learned when the daemon resumed; 0 for a new one."""


def open_source(settings: Settings) -> Source:
    """Create the source that the settings describe, without calling it yet."""
    known = connectors()
    sources = [
        cast("Source", known[source.kind](source))  # type: ignore[attr-defined]
        for source in settings.sources
    ]
    return sources[0] if len(sources) == 1 else ChainedSource(sources)


@contextmanager
def open_daemon(
    settings: Settings,
    *,
    fresh: bool = False,
    from_model: Path | None = None,
    on_batch: ProgressListener | None = None,
    reload: Reload | None = None,
) -> Iterator[Running]:
    """Open and check everything that a run needs before any event is read, and close it at the end.

    Args:
        settings: of the daemon.
        fresh: start over despite existing checkpoints, which are moved to a sub-folder.
        from_model: file of a model to start with; only without checkpoints to resume from. The first checkpoint is
            written before anything is read.
        on_batch: called with the source's progress after each batch.
        reload: reloads the settings on request.

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
        health = Health(settings.metrics.alive_seconds)
        if settings.metrics.enabled:
            server = MetricsServer(settings.metrics, health)
            stack.callback(server.close)
        writer = _prediction_writer(settings)
        latest = None if fresh else store.latest()
        if latest is not None:
            if from_model is not None and not is_blank(latest[1]):
                raise ConfigError(
                    f"--from-model {from_model}: {store.folder} already holds checkpoints to resume from; omit the "
                    "option to resume, add --fresh to start with this model instead (the checkpoints are moved to a "
                    "sub-folder), or set checkpoint.dir to another folder"
                )
            check(settings, latest[1])
        recovered = None
        if writer is not None:
            stack.callback(writer.sink.close)
            if writer.sink.transactional:
                position = None if latest is None else latest[1].metadata["positions"][0]
                recovered = _recovered(writer.sink, position, health)
        latest = latest and visible_to_consumers(store, latest, recovered)
        if latest is not None and settings.guard.on_jump == "rollback":
            latest = last_good_checkpoint(store, latest)
        generation, kept = latest or (0, None)
        metadata = kept.metadata if kept is not None else {}
        # A checkpoint that was written before anything was read only records where reading and predictions began.
        found = None if kept is None or is_blank(kept) else kept
        made = Restart() if writer is None else restart(writer.sink, None if kept is None else metadata)
        model = initial_model(settings, from_model) if found is None else resume_model(settings, found)
        if from_model is not None:
            LOGGER.info(
                "starting with the model of %s, which has learned %d events; counts start at 0", from_model, model.n
            )
        metrics = Metrics()
        dead_letters = _dead_letters(settings)
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
                scores_of(settings, found, model),
                writer,
                is_given=bool(model.fields) and not any(counters["outcomes"].values()),
            ),
            store=store,
            dead_letters=dead_letters,
            guard=BadRecordGuard(
                settings.dead_letters.max_ratio, None if found is None else found.arrays["guard.latest"]
            ),
            metrics=metrics,
            policy=CheckpointPolicy(settings.checkpoint.every_events, settings.checkpoint.every_seconds),
            description={
                "version": version("streammoe"),
                "settings": settings.learning_settings(),
                "runs": _latest_runs(metadata),
                "replayed": metadata.get("replayed", {}),
            },
            position=position,
            generation=generation,
            outcomes=counters["outcomes"],
            reasons=counters["reasons"],
            health=health,
            retries=RetryPolicy(settings.checkpoint.retry_seconds),
            reload=reload,
            labels=labels_of(settings, found),
            on_jump=_on_jump(settings, store, latest if found is not None else None, model, writer),
            # At the very end: a failed start must leave everything as it was.
            on_begin=store.set_aside if fresh else made.cut,
            save_first=from_model is not None,
            mark_first=made.save_first,
            on_batch=on_batch,
        )
        if server is not None:
            server.show(metrics.registry)
        if found is not None:
            LOGGER.info("resuming from a checkpoint in %s with %d events learned", store.folder, model.n)
        yield Running(daemon, None if server is None else server.url, model.n)


def _prediction_writer(settings: Settings) -> PredictionWriter | None:
    predictions = settings.predictions
    match predictions:
        case NoPredictions():
            return None
        case PredictionFile():
            sink = prediction_sink(predictions.path, predictions.file_format)
        case _:
            sink = connectors(PREDICTIONS)[predictions.kind](predictions, settings.sources)
    return PredictionWriter(sink, predictions.interval, predictions.gate)


def _dead_letters(settings: Settings) -> DeadLetterSink:
    letters = settings.dead_letters
    if isinstance(letters, settings_module.DeadLetterFile):
        return DeadLetterFile(letters.path)
    return cast("DeadLetterSink", connectors(DEAD_LETTERS)[letters.kind](letters, settings.sources))


def _recovered(sink: PredictionSink, position: Position | None, health: Health) -> Recovered:
    """Ask the sink which checkpoint's predictions have been seen, however long that takes."""
    while (found := sink.recover(POLL_SECONDS, position)) is None:
        health.beat()
    return found


def _loss_guard(model: MixtureOfExperts, found: Checkpoint | None) -> LossGuard:
    known = None if found is None else found.metadata.get("guard", {}).get("jumps")
    return LossGuard(model.step_size_at, model.n, known)


def _on_jump(
    settings: Settings,
    store: CheckpointStore,
    latest: tuple[int, Checkpoint] | None,
    model: MixtureOfExperts,
    writer: PredictionWriter | None,
) -> OnJump | None:
    action = settings.guard.on_jump
    if action == "off":
        return None
    saved: list[list[int]] = []
    if latest is not None:
        generation, found = latest
        there = store.generations()
        saved = [entry for entry in found.metadata.get("guard", {}).get("saved", []) if entry[0] in there]
        saved.append([generation, found.metadata["n"]])

    def restore(found: Checkpoint) -> Restored:
        model = resume_model(settings, found)
        pipeline = Pipeline(model, schema_of(settings), scores_of(settings, found, model), writer)
        return Restored(pipeline, _loss_guard(model, found), labels_of(settings, found), found.arrays["guard.latest"])

    guard = _loss_guard(model, None if latest is None else latest[1])
    return OnJump(action, guard, WayBack(store.keep, saved, keeps_batches=action == "rollback"), restore)


def _latest_runs(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Return the latest runs, each with the number of events that it had processed at its last checkpoint."""
    return dict(sorted(metadata.get("runs", {}).items(), key=lambda run: cast("int", run[1]))[-RUNS_KEPT:])
