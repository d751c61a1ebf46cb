"""Settings to live objects: the one module that knows both the daemon and its connectors."""

from __future__ import annotations

import fnmatch
import inspect
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from streammoe import batch
from streammoe import settings as settings_module
from streammoe.checked import array_of, is_count, require, restoring
from streammoe.daemon.bookkeeping import check_bookkeeping
from streammoe.daemon.chained import ChainedSource
from streammoe.daemon.given_model import OF_THE_WARM_UP, as_settings, given_model
from streammoe.daemon.guards import BadRecordGuard, LossGuard, WayBack, last_good
from streammoe.daemon.health import Health
from streammoe.daemon.loop import POLL_SECONDS, CheckpointPolicy, Daemon, OnJump, ProgressListener, Restored
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.reload import Reload
from streammoe.daemon.retries import RetryPolicy
from streammoe.daemon.serving import MetricsServer
from streammoe.errors import CheckpointError, ConfigError
from streammoe.estimators import MixtureOfExperts, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, model_of
from streammoe.persistence import CONFIRMED, LOCK_NAME, Checkpoint, CheckpointStore, FolderLock, read_checkpoint
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.label_join import LabelJoin, Limits, digest_with, label_arrays
from streammoe.pipeline.pipeline import Pipeline, PredictionWriter, Schema
from streammoe.pipeline.predictions import prediction_sink
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores, Scores
from streammoe.ports import DeadLetterSink, Position, PredictionSink, Recovered, Source
from streammoe.settings import Kinds, NoPredictions, PredictionFile, Settings
from streammoe.text import printable, shown

LOGGER = logging.getLogger("streammoe.assembly")
CONNECTORS = "streammoe.connectors"
PREDICTIONS = "streammoe.predictions"
DEAD_LETTERS = "streammoe.dead_letters"
WRITERS = "streammoe.writers"
"""Groups of entry points. Classes of the last two are called with their own settings and with those of the sources.
A ``check`` of theirs takes the same and the settings of checkpoints, and raises `ConfigError` for what does not go
together."""
MAY_CHANGE = {
    ("model", "range_factor"),
    ("model", "reseed"),
    ("schema", "max_columns"),
    ("labels", "max_pending"),
    ("labels", "expire_events"),
    ("labels", "expire_seconds"),
}
"""Learning settings that may change over a checkpoint: they judge what comes, not what was learned."""
MAY_RISE = {("model", "max_levels"), ("model", "max_classes")}
"""The same of limits that what was learned may have reached already."""

RUNS_KEPT = 1_000
"""Earlier runs that a checkpoint names; dead letters of those before can no longer be replayed."""


class Running(NamedTuple):
    """A daemon ready to run, and where to look at it."""

    daemon: Daemon
    metrics_url: str | None
    resumed_at: int
    """Events that the model had learned when it was taken up again; 0 for a new one."""


def connectors(group: str = CONNECTORS) -> dict[str, Any]:
    """The installed connectors by the ``kind`` that selects them: sources, or those of another group."""
    return {entry.name: entry.load() for entry in entry_points(group=group)}


def open_source(settings: Settings) -> Source:
    """The source that the settings describe; nothing has been called on it yet."""
    known = connectors()
    sources = [
        cast("Source", known[source.kind](source))  # type: ignore[attr-defined]
        for source in settings.sources
    ]
    return sources[0] if len(sources) == 1 else ChainedSource(sources)


def _kinds() -> Kinds:
    """What each installed connector wants to be told."""
    return Kinds(
        *(
            {kind: connector.Settings for kind, connector in connectors(group).items()}
            for group in (CONNECTORS, PREDICTIONS, DEAD_LETTERS)
        )
    )


def load_settings(
    path: str | Path, *, overrides: Sequence[str] = (), environment: Mapping[str, str] = os.environ
) -> Settings:
    """Parse a configuration against the installed connectors; opens nothing else.

    Raises:
        ConfigError: with every problem at once.
    """
    settings = settings_module.load(path, kinds=_kinds(), environment=environment, overrides=overrides)
    _refuse_own_output(settings, path)
    if settings.guard.on_jump == "rollback" and getattr(settings.predictions, "transactional", False):
        rule = 'must not be "rollback" where predictions are transactional: what was seen cannot be taken back'
        raise ConfigError(f'guard.on_jump: {rule}; set "stop", or predictions.transactional = false')
    for group, section in ((PREDICTIONS, settings.predictions), (DEAD_LETTERS, settings.dead_letters)):
        check = getattr(connectors(group).get(section.kind), "check", None)
        if check is not None:
            check(section, settings.sources, settings.checkpoint)
    return settings


def _refuse_own_output(settings: Settings, config: str | Path) -> None:
    """Refuse files that would be read and written, or written as two things: each would spoil the other.

    Raises:
        ConfigError: with each setting that names such a file.
    """
    sections = {"dead_letters.path": settings.dead_letters, "predictions.path": settings.predictions}
    written = {setting: getattr(section, "path", None) for setting, section in sections.items()}
    known = connectors()
    problems = [
        f"{setting}: is {path!r}, which source.path {getattr(source, 'path', None)!r} reads; name another file"
        for source in settings.sources
        if hasattr(known[source.kind], "reads")  # type: ignore[attr-defined]
        for setting, path in written.items()
        if path is not None and known[source.kind].reads(source, path)  # type: ignore[attr-defined]
    ]
    folder = os.path.realpath(settings.checkpoint.dir)
    for setting, path in written.items():
        if path is None:
            continue
        place, name = os.path.split(os.path.realpath(path))
        if place == folder and (name in {LOCK_NAME, CONFIRMED} or fnmatch.fnmatch(name, "*checkpoint-*")):
            problems.append(f"{setting}: is {path!r}, a name that checkpoint.dir keeps for itself; name another file")
        if os.path.realpath(path) == os.path.realpath(config):
            problems.append(f"{setting}: is {path!r}, the configuration itself; name another file")
    if None not in written.values() and len(set(map(os.path.realpath, filter(None, written.values())))) == 1:
        problems.append(f"predictions.path: is {written['predictions.path']!r}, as dead_letters.path is; name another")
    if problems:
        raise ConfigError(*problems)


def settings_from(tables: Mapping[str, Any], name: str, *, overrides: Sequence[str] = ()) -> Settings:
    """The same of tables that are in no file; messages call them `name`.

    Raises:
        ConfigError: with every problem at once.
    """
    settings = settings_module.from_tables(tables, name, kinds=_kinds(), overrides=overrides)
    warn_of_idle(settings)
    return settings


def warn_of_idle(settings: Settings) -> None:
    """Tell the log of settings that have no effect beside others."""
    for sentence in settings_module.without_effect(settings.model):
        LOGGER.warning(sentence)


def compile_kernels(settings: Settings | None = None) -> None:
    """Run the kernels once, so that compilation (cached after the first time) never happens amid events.

    Args:
        settings: of the daemon whose family of experts is compiled; all of them without it.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(64, 2))
    y = np.where(X[:, 0] > 0.0, X[:, 1], -X[:, 1]) + 0.1 * rng.normal(size=64)
    told = logging.getLogger("streammoe.estimators")
    was, told.disabled = told.disabled, True  # nobody wants to hear of these models
    arguments: dict[str, Any] = {"warmup": 48, "warmup_restarts": 2, "standardize": True}
    kinds: dict[str, tuple[type[MixtureOfExperts], dict[str, Any], Any]] = {
        "regressor": (MoERegressor, {}, y),
        # One compiled loop serves all noise with heavy tails.
        "heavy-tailed": (MoERegressor, {"expert": "student_t"}, y),
        "heavy-tailed outputs": (MoEMultiTargetRegressor, {"expert": "student_t"}, np.column_stack([y, X[:, 0]])),
        "diagonal": (MoEMultiTargetRegressor, {"covariance": "diagonal"}, np.column_stack([y, X[:, 0]])),
        "full": (MoEMultiTargetRegressor, {"covariance": "full"}, np.column_stack([y, X[:, 0]])),
        "classifier": (MoEClassifier, {}, np.digitize(y, [-0.5, 0.5])),
    }
    wanted = kinds if settings is None else [_kind(settings)]
    try:
        for kind in wanted:
            estimator, more, target = kinds[kind]
            for K in (1, 2):
                model = estimator(n_experts=K, **arguments, **more)
                model.learn_array(X, target)
                model.log_likelihood_array(X, target)
                model.experts()
                if settings is None:  # daemons take no gradients
                    batch.fit(model, X, target, method="gradient_em", start="model", rounds=1)
    finally:
        told.disabled = was


def _kind(settings: Settings) -> str:
    """Which of the kernels the settings ask for, by the names of `compile_kernels`."""
    model, several = settings.model, len(settings.schema.targets) > 1
    if model.expert != "gaussian":
        return "heavy-tailed outputs" if several else "heavy-tailed"
    return model.covariance if model.kind == "regressor" and several else model.kind


@contextmanager
def open_daemon(
    settings: Settings,
    *,
    fresh: bool = False,
    from_model: Path | None = None,
    on_batch: ProgressListener | None = None,
    reload: Reload | None = None,
) -> Iterator[Running]:
    """Everything that a run needs, opened and checked before any event is read, and closed at the end.

    Args:
        settings: of the daemon.
        fresh: begin anew although there are checkpoints, which are set aside in a folder of their own.
        from_model: file of a model to begin with where nothing is gone on from; else it is not even looked at. The
            first checkpoint is written before anything is read.
        on_batch: told the source's progress after each batch.
        reload: reads the settings again when that is asked for.

    Raises:
        ConfigError: a port or a file named in the settings cannot be used.
        CheckpointError: the folder is locked, cannot be written, or holds another model's checkpoints; or the model to
            begin with is another one.
        SourceError: there is nothing to read.
        SinkError: predictions cannot be written.
    """
    warn_of_idle(settings)
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
            _check(settings, latest[1])
        recovered = None
        if writer is not None:
            stack.callback(writer.sink.close)
            if writer.sink.transactional:
                position = None if latest is None else latest[1].metadata["positions"][0]
                recovered = _recovered(writer.sink, position, health)
        latest = latest and _seen(store, latest, recovered)
        if latest is not None and settings.guard.on_jump == "rollback":
            latest = _undoubted(store, latest)
        generation, found = latest or (0, None)
        model = _begun(settings, from_model) if found is None else _resumed(settings, found)
        if found is not None and from_model is not None:
            LOGGER.warning(
                "--from-model %s is not used: there are checkpoints in %s to go on from; --fresh begins anew with it",
                from_model,
                store.folder,
            )
        if found is None and from_model is not None:
            LOGGER.info(
                "beginning with the model of %s, which has learned %d events; counts begin at 0", from_model, model.n
            )
        metrics = Metrics()
        dead_letters = _dead_letters(settings)
        stack.callback(dead_letters.close)
        source = open_source(settings)
        stack.callback(source.close)
        metadata = found.metadata if found is not None else {}
        position = metadata.get("positions", [None])[0]
        source.seek(position)
        compile_kernels(settings)
        counters = metadata.get("counters", {"outcomes": {}, "reasons": {}})
        daemon = Daemon(
            source=source,
            pipeline=Pipeline(
                model,
                schema_of(settings),
                _scores(settings, found, model),
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
            labels=_labels(settings, found),
            on_jump=_on_jump(settings, store, latest, model, writer),
            # Last of all: a start that fails must leave everything as it was.
            on_begin=store.set_aside if fresh else None,
            save_first=found is None and from_model is not None,
            on_batch=on_batch,
        )
        if server is not None:
            server.show(metrics.registry)
        if found is not None:
            LOGGER.info("going on from a checkpoint in %s with %d events learned", store.folder, model.n)
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
    """Which checkpoint's predictions have been seen, however long it takes to be told."""
    while (found := sink.recover(POLL_SECONDS, position)) is None:
        health.beat()
    return found


def _seen(
    store: CheckpointStore, latest: tuple[int, Checkpoint], recovered: Recovered | None
) -> tuple[int, Checkpoint]:
    """Of the newest sound checkpoint and those before it the newest whose predictions have all been seen.

    A crash between a checkpoint and its transaction leaves one whose predictions nobody has seen, nor ever will. The
    one before it makes them again.

    Args:
        store: of the checkpoints.
        latest: the newest sound one.
        recovered: what the broker says, if predictions are transactional now.

    Raises:
        CheckpointError: it cannot be told, or that one is no longer there.
    """
    generation, found = latest
    if not found.metadata.get("transactional") or not found.metadata["counters"]["outcomes"]:
        return latest
    told = None if recovered is None else recovered.generation
    seen = max(store.confirmed, told or 0)
    if seen > generation:
        LOGGER.warning(
            "going on from generation %d, although predictions up to generation %d have been seen: those after it are "
            "made again, and are seen twice",
            generation,
            seen,
        )
    if seen >= generation:
        return latest
    problem = f"checkpoint folder {store.folder}: nobody knows whether the predictions of generation {generation} were"
    if recovered is None:
        message = (
            f"{problem} committed, since the daemon ended in between; start it once more with [predictions] as it was, "
            "transactional, stop it in good order, and change the settings then"
        )
        raise CheckpointError(message)
    if told is None:
        message = (
            f"{problem} committed: the group has no offsets of this daemon (have they expired, or was the group "
            f"renamed?). To take it that they were, write {generation} into the file {store.folder / CONFIRMED}; if "
            "they were not, those since the generation before are missing. Or begin anew with --fresh, which makes all "
            "predictions again"
        )
        raise CheckpointError(message)
    if seen not in store.generations():
        message = (
            f"checkpoint folder {store.folder}: predictions up to generation {seen} have been seen, and there are only "
            f"{', '.join(map(str, store.generations()))}. To go on from generation {generation} without those in "
            f"between, write {generation} into the file {store.folder / CONFIRMED}, and raise checkpoint.keep"
        )
        raise CheckpointError(message)
    LOGGER.warning(
        "going back from generation %d to %d: the predictions after it were never seen, and are made again",
        generation,
        seen,
    )
    before = store.load(seen)
    store.set_aside(after=seen)
    return seen, before


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
        model = _resumed(settings, found)
        pipeline = Pipeline(model, schema_of(settings), _scores(settings, found, model), writer)
        return Restored(pipeline, _loss_guard(model, found), _labels(settings, found), found.arrays["guard.latest"])

    guard = _loss_guard(model, None if latest is None else latest[1])
    return OnJump(action, guard, WayBack(store.keep, saved, keeps_batches=action == "rollback"), restore)


def _undoubted(store: CheckpointStore, latest: tuple[int, Checkpoint]) -> tuple[int, Checkpoint]:
    """The last good generation: what was read after it must be read again, to be set aside if need be."""
    generation, found = latest
    good = last_good(found.metadata)
    if good is None or good >= generation or good not in store.generations():
        return latest
    LOGGER.info(
        "going back from generation %d to %d, the last one that was above all doubt: what came after it is read again, "
        'so that guard.on_jump = "rollback" can set it aside',
        generation,
        good,
    )
    return good, store.load(good)


def _latest_runs(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Of the runs that led to a checkpoint the latest: how many events each had dealt with at its last one."""
    return dict(sorted(metadata.get("runs", {}).items(), key=lambda run: cast("int", run[1]))[-RUNS_KEPT:])


def schema_of(settings: Settings) -> Schema:
    """Which fields of a record mean what."""
    schema = settings.schema
    return Schema(
        targets=schema.targets,
        features=None if schema.features == "*" else tuple(schema.features),
        ignore=(*schema.ignore, *_ignored_key(settings)),
        weight=schema.weight,
        categorical=frozenset(schema.categorical),
        timestamps=frozenset(schema.timestamps),
        late_columns=schema.late_columns,
        max_columns=schema.max_columns,
    )


def _ignored_key(settings: Settings) -> tuple[str, ...]:
    """The key of labels, where it would be a feature though nobody names it as one."""
    key, schema = settings.labels.key, settings.schema
    return () if key is None or schema.features != "*" or key in schema.ignore else (key,)


def _labels(settings: Settings, found: Checkpoint | None) -> LabelJoin | None:
    labels = settings.labels
    if labels.key is None:
        return None
    limits = Limits(labels.max_pending, labels.expire_events, labels.expire_seconds)
    joining = LabelJoin(labels.key, schema_of(settings), limits)
    if found is not None:
        with restoring(settings.checkpoint.dir):
            joining.restore(found.arrays)
    return joining


def _scores(settings: Settings, found: Checkpoint | None, model: MixtureOfExperts) -> Scores:
    outputs = len(settings.schema.targets)
    if found is None:
        return ClassificationScores() if settings.model.kind == "classifier" else PrequentialScores(outputs)
    with restoring(settings.checkpoint.dir):
        if settings.model.kind == "classifier":
            counted = ClassificationScores.restore(found.metadata["scores"], found.arrays)
            known = len(model.output_names)
            require(counted.classes <= known, f"scores counts {counted.classes} classes, and the model knows {known}")
            return counted
        scores = PrequentialScores.restore(found.metadata["scores"], found.arrays)
        require(scores.outputs == outputs, f"scores has {scores.outputs} outputs, and schema.target names {outputs}")
        return scores


def model_from(settings: Settings) -> MixtureOfExperts:
    """A new model as the settings describe it."""
    if settings.schema.timestamps and settings.model.averaging != "none":
        LOGGER.warning(
            "schema.timestamps: times move slowly, so that single steps fit what is near, and the average of their "
            'coefficients (model.averaging = %r) may fit nothing; compare with model.averaging = "none"',
            settings.model.averaging,
        )
    return _described(settings)


def _described(settings: Settings) -> MixtureOfExperts:
    schema = settings.schema
    regressor = MoEMultiTargetRegressor if len(schema.targets) > 1 else MoERegressor
    estimator: type[MixtureOfExperts] = MoEClassifier if settings.model.kind == "classifier" else regressor
    known = inspect.signature(estimator).parameters
    given = {
        **{name: getattr(settings.model, name) for name in type(settings.model).model_fields},
        "categorical": schema.categorical,
        "timestamps": schema.timestamps,
    }
    arguments = {name: value for name, value in given.items() if name in known}
    if arguments["averaging"] == "none":
        arguments["averaging"] = None
    model = estimator(**arguments)
    if isinstance(model, MoEMultiTargetRegressor):
        model.set_targets(schema.targets)
    return model


def _begun(settings: Settings, given: Path | None) -> MixtureOfExperts:
    """The model that a daemon without checkpoints begins with."""
    model = model_from(settings)
    return model if given is None else given_model(given, model, schema_of(settings))


def _check(settings: Settings, found: Checkpoint) -> None:
    """Make sure that a daemon wrote a checkpoint, and that what it kept beside the model is what it must be.

    Raises:
        CheckpointError: it did not, or something is not.
    """
    if found.metadata.get("settings") is None:
        message = f"{settings.checkpoint.dir}: no daemon wrote its checkpoint; set checkpoint.dir to another folder"
        raise CheckpointError(message)
    with restoring(settings.checkpoint.dir):
        check_bookkeeping(found)


def _resumed(settings: Settings, found: Checkpoint) -> MixtureOfExperts:
    """The model of a checkpoint, if the settings still describe it."""
    _check(settings, found)
    kept, now = found.metadata["settings"], settings.learning_settings()
    defaults = settings_module.learning_defaults()
    differences = []
    for section, values in now.items():
        for name, value in cast("Mapping[str, object]", values).items():
            was = kept.get(section, {}).get(name, defaults[section].get(name))
            if was == value or (section, name) in MAY_CHANGE:
                continue
            limit = (section, name) in MAY_RISE
            if not (limit and is_count(was) and cast("int", value) > was):
                only = ", and may only rise" if limit else ""
                differences.append(f"{section}.{name} was {shown(was)} and is {shown(value)} now{only}")
    unknown = [
        f"{section}.{name} = {shown(value)}"
        for section, values in kept.items()
        for name, value in values.items()
        if name not in cast("Mapping[str, object]", now.get(section, {}))
    ]
    if unknown:
        message = (
            f"{settings.checkpoint.dir}: its checkpoint was written by version {shown(found.metadata.get('version'))} "
            f"with settings that this version does not know ({printable(', '.join(unknown))[:500]}), so it might go on "
            "differently; run "
            "that version or a later one, go back to an earlier checkpoint (streammoe rollback), or begin anew with "
            "--fresh"
        )
        raise CheckpointError(message)
    if differences:
        message = (
            f"{settings.checkpoint.dir}: its checkpoint belongs to other settings: {'; '.join(differences)}. "
            "Change them back, set checkpoint.dir to another folder, or begin anew with --fresh"
        )
        raise CheckpointError(message)
    model = model_of(found, settings.checkpoint.dir)
    with restoring(settings.checkpoint.dir):
        _must_describe(settings, model)
    model.set_range_factor(settings.model.range_factor)
    model.set_reseed(settings.model.reseed)
    model.set_max_levels(settings.model.max_levels)
    if isinstance(model, MoEClassifier):
        model.max_classes = settings.model.max_classes
    return model


def _must_describe(settings: Settings, model: MixtureOfExperts) -> None:
    """Make sure that a model is what the settings beside it in the checkpoint, which are ours, would have made.

    Raises:
        CheckpointError: it is not.
    """
    wanted = _described(settings)
    require(type(model) is type(wanted), f"its model is a {type(model).__name__}, and not as its settings say")
    has, wants = as_settings(model), as_settings(wanted)
    may = {name for section, name in MAY_CHANGE | MAY_RISE if section == "model"}
    if not model.is_warming_up:  # one that was fitted elsewhere may have begun otherwise
        may |= OF_THE_WARM_UP
    other = sorted(name for name in wants if has[name] != wants[name] and name not in may)
    require(not other, f"its model has other arguments than its settings say: {', '.join(other)}")
    schema, fields = schema_of(settings), model.fields
    taken = sorted(schema.others.intersection(fields))
    require(not taken, f"its model has features that are none, as its settings say: {shown(taken)}")
    require(all(isinstance(name, str) for name in fields), "its model has features whose names are no texts")
    listed = not fields or schema.features is None or sorted(fields) == sorted(schema.features)
    require(listed, f"its model has other features than schema.features lists: {shown(fields)}")
    outputs = model.output_names
    if isinstance(model, MoEClassifier):
        require(all(isinstance(name, str) for name in outputs), "its model has classes whose labels are no texts")
    elif outputs:
        require(tuple(outputs) == schema.targets, f"its model has other outputs than schema.target: {shown(outputs)}")


def resumed_pipeline(settings: Settings, found: Checkpoint) -> Pipeline:
    """Model and scores of a checkpoint, without a source.

    Raises:
        CheckpointError: the settings describe another model.
    """
    model = _resumed(settings, found)
    return Pipeline(model, schema_of(settings), _scores(settings, found, model))


def _kept_scores(model: MixtureOfExperts, found: Checkpoint) -> Mapping[str, float | None]:
    """The running means that a daemon has kept beside its model; nothing of a model that was saved from Python."""
    kept = found.metadata.get("scores")
    if kept is None:
        return {}
    kind = ClassificationScores if isinstance(model, MoEClassifier) else PrequentialScores
    return kind.restore(kept, found.arrays).summary()


def describe_checkpoint(place: str | Path) -> dict[str, Any]:
    """What a checkpoint holds, for people and scripts; JSON-able.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    found = read_checkpoint(place)
    metadata = found.metadata
    model = model_of(found, place)
    labels = label_arrays(found.arrays)
    with restoring(place):
        pending = int((~array_of(labels, "labels.refused", "bool", (None,))).sum()) if labels else 0
        scores = _kept_scores(model, found)
    return {
        "path": str(place),
        "n": model.n,
        "positions": metadata.get("positions", []),
        "model": metadata["model"],
        "version": metadata.get("version"),
        "state_digest": digest_with(model, labels),
        "created": metadata.get("created"),
        "counters": metadata.get("counters", {}),
        "scores": scores,
        "pending": pending,
        "features": model.feature_names,
        "outputs": model.output_names,
        "warming_up": model.is_warming_up,
        "drifts": model.drifts,
        "last_drift": model.last_drift and model.last_drift._asdict(),
        "expert_masses": [] if model.is_warming_up else model.masses.tolist(),
        "experts": model.experts(),
        "candidates": model.n_candidates,
    }
