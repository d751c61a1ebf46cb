"""Resume a daemon from its checkpoint, or start with a model that was fitted elsewhere.

In both cases the model is compared with the settings before anything is learned.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from streammoe.catalogue import revision
from streammoe.checked import CheckedTable, Count, array_of, is_count, require, restoring
from streammoe.daemon.challenger import SavedChallenger, parts_of
from streammoe.daemon.guards import BadRecordGuard, JumpGuard, LossGuard, LossState
from streammoe.daemon.model import model_from, n_lags, schema_of
from streammoe.daemon.run_state import MOST_NOTED, RunState, changed
from streammoe.distributions import Gaussian
from streammoe.errors import CheckpointError
from streammoe.estimators import MixtureOfExperts, load, model_of
from streammoe.fields import facts_of, written
from streammoe.options import CHOICES
from streammoe.persistence import CONFIRMED, Checkpoint, CheckpointStore
from streammoe.pipeline.challenger import Challenger
from streammoe.pipeline.label_join import LabelJoin
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.scores import ClassificationScores, Scores, new_scores
from streammoe.pipeline.writing import PredictionWriter
from streammoe.settings import LEARNING, Settings, change_policy

LOGGER = logging.getLogger("streammoe.assembly")
SCHEMA_ARGUMENTS = {"categorical", "timestamps", "numeric"}
"""Arguments of a model that are settings in ``[schema]``."""


class Counters(CheckedTable):
    """How many events and records there were."""

    outcomes: dict[str, Count]
    reasons: dict[str, Count]


class SavedGuard(CheckedTable):
    """The usual loss, and generations with the events that their models had learned."""

    jumps: LossState
    saved: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]


class Entry(CheckedTable):
    """An entry of the history, which may say more."""

    time: str
    event: str
    n: Count
    version: str
    before: str | None
    after: str | None


class Restored(CheckedTable):
    """Of which backup a checkpoint is."""

    generation: Count
    at: str


class Bookkeeping(CheckedTable):
    """The metadata of a daemon's checkpoint; the content of positions and scores is checked where they are used."""

    n: Count
    positions: Annotated[list[dict[str, Any] | None], Field(min_length=1, max_length=1)]
    counters: Counters
    settings: dict[str, dict[str, Any]]
    scores: dict[str, Any]
    transactional: bool = False
    predictions: dict[str, Any] = Field(default_factory=dict)
    guard: SavedGuard | None = None
    history: Annotated[list[Entry], Field(max_length=MOST_NOTED)] = Field(default_factory=list)
    restored: Restored | None = None
    challenger: SavedChallenger | None = None
    promoted: str | None = None


def load_matching_model(path: Path, like: MixtureOfExperts, settings: Settings) -> MixtureOfExperts:
    """Load a model that `save` or a daemon wrote, and check that it matches the settings.

    Args:
        path: a file, or a daemon's checkpoint folder, of which only the model is used.
        like: an empty model according to the settings; the loaded model gets its `range_factor`.
        settings: the settings.

    Raises:
        CheckpointError: there is no valid model, or it differs from the settings; the message lists all differences.
    """
    model = load(path)
    found = list(differences(model, like, settings))
    if found:
        raise CheckpointError(
            f"--from-model {path}: the configuration does not match the model: {'; '.join(found)}. "
            "Change the settings, or fit a model with them"
        )
    model.take_over(like.options, "reload", "restart")
    return model


def differences(
    model: MixtureOfExperts, like: MixtureOfExperts, settings: Settings, *, resumed: bool = False
) -> Iterator[str]:
    """Yield in what a model differs from `like`, an empty one according to the settings.

    Args:
        model: from elsewhere, or with `resumed` of a daemon's checkpoint.
        like: the empty model.
        settings: the settings.
        resumed: whether it may know no feature yet, and have options from before they rose.
    """
    if type(model) is not type(like):
        yield f"it is a {type(model).__name__}, but model.kind and schema.target require a {type(like).__name__}"
        return
    actual, expected = as_settings(model), as_settings(like)
    for name in actual:
        section = "schema" if name in SCHEMA_ARGUMENTS else "model"
        free = section == "model" and _is_free(model, name, rising=resumed)
        if actual[name] != expected[name] and not free:
            yield _difference(f"{section}.{name}", expected[name], actual[name], "model")
    fields, schema = model.fields, schema_of(settings)
    if not fields:
        if not resumed:
            yield "the model has not learned any event, so it has no features"
    elif not all(isinstance(name, str) for name in fields):
        yield f"its features are {fields!r}, but names in records are strings"
    elif schema.features is not None and {*fields, *model.awaited} != set(schema.features):
        yield f"schema.features is {sorted(schema.features)!r}, but the model has {sorted([*fields, *model.awaited])!r}"
    elif both := sorted(schema.others & set(fields)):
        yield f"its features include {', '.join(map(repr, both))}, which the settings use for something else"
    if not model.is_classifier and model.output_names != like.output_names:
        yield f"schema.target is {like.output_names!r}, but its outputs are {model.output_names!r}, in this order"
    if model.is_classifier and not all(isinstance(label, str) for label in model.output_names):
        yield f"its classes are {model.output_names!r}, but labels in records are strings"


def _difference(setting: str, configured: object, held: object, holder: str) -> str:
    """Return in words that a setting differs from what a model or checkpoint was learned with."""
    section, _, name = setting.partition(".")
    if section == "model":
        configured, held = _in_settings(name, configured), _in_settings(name, held)
    now = "not set" if configured is None else written(configured)
    was = f"it is not set in the {holder}" if held is None else f"the {holder} has {written(held)}"
    return f"{setting} is {now}, but {was}"


def _in_settings(name: str, value: object) -> object:
    """Return the value of an option as settings may hold it, which know a word for none and infinite tails."""
    if name == "expert" and isinstance(value, dict) and value.get("kind") == Gaussian.name:
        return {"kind": Gaussian.name, "covariance": value.get("covariance"), "tail": value.get("tail", math.inf)}
    return CHOICES[name].none or None if value is None and name in CHOICES else value


def _is_free(model: MixtureOfExperts, name: str, *, rising: bool = False) -> bool:
    """Return whether an argument of a model may differ from the settings.

    Arguments of the warm-up have no effect once it is over: a model that was fitted elsewhere may have other ones.

    Args:
        model: a model that has learned.
        name: name of the argument.
        rising: whether arguments that may rise are free, too.
    """
    field = model.options_type.model_fields.get(name)
    if field is None:
        return False
    facts = facts_of(field)
    return (
        facts.change in {"restart", "reload"}
        or (rising and facts.change == "rise")
        or (facts.warm_up_only and not model.is_warming_up)
    )


def as_settings(model: MixtureOfExperts) -> dict[str, Any]:
    """Return the arguments of a model in the form of settings."""
    arguments = {name: list(value or ()) for name, value in model.arguments().items() if name in SCHEMA_ARGUMENTS}
    return {**model.options.model_dump(mode="json"), **arguments}


def check_checkpoint(settings: Settings, checkpoint: Checkpoint) -> None:
    """Check that a daemon wrote a checkpoint, and that everything in it apart from the model is valid.

    Raises:
        CheckpointError: it is not a daemon's, or something is invalid.
    """
    if checkpoint.metadata.get("settings") is None:
        raise CheckpointError(
            f"{settings.checkpoint.dir}: no daemon wrote its checkpoint; set checkpoint.dir to another folder"
        )
    with restoring(settings.checkpoint.dir):
        array_of(checkpoint.arrays, "guard.latest", "bool", (None,))
        Bookkeeping.model_validate(checkpoint.metadata)


def is_blank(checkpoint: Checkpoint) -> bool:
    """Return whether nothing had been read when a checkpoint was written; its settings then need not be kept."""
    # Features that wait for their label have no outcome yet.
    waiting = len(checkpoint.arrays.get("labels.refused", ()))
    counted = any(checkpoint.metadata["counters"]["outcomes"].values())
    return checkpoint.metadata["n"] == 0 and not counted and not waiting


def _defaults(section: BaseModel) -> dict[str, Any]:
    """Return the defaults of a section, which hold for settings that are newer than a checkpoint."""
    fields = type(section).model_fields.items()
    defaults = {name: field.get_default() for name, field in fields if not field.is_required()}
    return section.model_copy(update=defaults).model_dump(mode="json", include=set(defaults))


def resume_model(settings: Settings, checkpoint: Checkpoint) -> MixtureOfExperts:
    """Restore the model of a checkpoint, provided that the settings still describe it."""
    check_checkpoint(settings, checkpoint)
    before = checkpoint.metadata["settings"]
    sections = dict.fromkeys(each for each in (*before, *LEARNING) if each != "challenger")
    differing = [each for section in sections for each in _conflicts(section, before.get(section, {}), settings)]
    if differing:
        promoted, why = checkpoint.metadata.get("promoted"), "Change"
        if promoted:
            why = f"The challenger was promoted at {promoted}, so its settings belong into [model]. Otherwise change"
        raise CheckpointError(
            f"{settings.checkpoint.dir}: the configuration does not match the checkpoint: {'; '.join(differing)}. "
            f"{why} it back, set checkpoint.dir to another folder, or start over with --fresh"
        )
    return _restored(settings, checkpoint, "model")


def _restored(settings: Settings, checkpoint: Checkpoint, what: str) -> MixtureOfExperts:
    """Restore a model whose settings, as the checkpoint has them, equal the current ones."""
    model = model_of(checkpoint, settings.checkpoint.dir)
    with restoring(settings.checkpoint.dir):
        found = list(differences(model, model_from(settings), settings, resumed=True))
        require(not found, f"its {what} contradicts its settings: {'; '.join(found)}")
    model.take_over(settings.model)
    return model


def _conflicts(section: str, was: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """Yield in which settings a section differs from what it was, although they must not change."""
    table: BaseModel | None = getattr(settings, section, None) if section in LEARNING else None
    value = {} if table is None else table.model_dump(mode="json")
    is_alike = was.get("kind") == value.get("kind")
    if table is not None and is_alike:
        was = {**_defaults(table), **was}
    # Another kind of model has other options, which need not be listed.
    for name in {**was, **value} if is_alike else ["kind"]:
        policy = "never" if table is None else change_policy(section, type(table), name)
        if was.get(name) == value.get(name) or policy in {"restart", "reload"}:
            continue
        limit = policy == "rise"
        if not (limit and is_count(was.get(name)) and value[name] > was[name]):
            only = ", and it can only be raised" if limit else ""
            yield _difference(f"{section}.{name}", value.get(name), was.get(name), "checkpoint") + only


def _is_promoted(settings: Settings, checkpoint: Checkpoint | None) -> bool:
    """Return whether the challenger of the settings has become the model of a checkpoint."""
    if checkpoint is None or settings.challenger is None or "promoted" not in checkpoint.metadata:
        return False
    was = {**_defaults(settings.challenger), **checkpoint.metadata["settings"]["model"]}
    return bool(was == settings.challenger.model_dump(mode="json"))


def _resume_challenger(state: RunState, settings: Settings, checkpoint: Checkpoint | None) -> None:
    """Let the challenger of the settings, resumed from the checkpoint if it is the same there, learn from here on."""
    found = None if checkpoint is None else parts_of(checkpoint)
    if settings.challenger is None:
        if found is not None:
            LOGGER.warning("there is no [challenger] any more, so that of the checkpoint is dropped")
            state.note("challenger dropped")
        return
    own, champion, schema = settings.exchanged(), state.model, state.pipeline.schema
    before = {} if checkpoint is None else checkpoint.metadata["settings"].get("challenger", {})
    if found is None or (differing := [*_conflicts("model", before, own)]):
        why = "" if found is None else f"; the one of the checkpoint had other settings: {'; '.join(differing)}"
        LOGGER.info("a challenger begins to learn%s", why.replace("model.", "challenger."))
        pipeline, champion_scores, missed = Pipeline(model_from(own), schema), new_scores(champion, schema), 0
        if champion.fields:  # else both find them in the first record
            kinds = [champion.column_kinds[name] for name in champion.fields]
            pipeline.model.learner.set_columns(champion.fields, kinds, champion.awaited)
        state.note("challenger began")
    else:
        part, of_champion = found
        model = _restored(own, part, "challenger")
        pipeline = Pipeline(model, schema, scores_of(settings, part, model))
        champion_scores, missed = scores_of(settings, of_champion, champion), part.metadata["missed"]
    state.pipeline.challenger = Challenger(pipeline, champion_scores, missed)


def labels_of(settings: Settings, checkpoint: Checkpoint | None) -> LabelJoin | None:
    """Return the join of late labels, resumed from the checkpoint if there is one; `None` if labels are not late."""
    if settings.labels.key is None:
        return None
    joining = LabelJoin(settings.labels, schema_of(settings), n_lags(settings))
    if checkpoint is not None:
        with restoring(settings.checkpoint.dir):
            joining.restore(checkpoint.arrays)
    return joining


def resumed(
    settings: Settings,
    found: tuple[int, Checkpoint] | None,
    writer: PredictionWriter | None,
    store: CheckpointStore,
    from_model: Path | None,
) -> RunState:
    """Return the state of a run that starts with a checkpoint, a given model, or nothing.

    Args:
        settings: of the daemon.
        found: a checkpoint with its generation.
        writer: writes predictions.
        store: holds the checkpoint.
        from_model: file of a model.

    Raises:
        CheckpointError: checkpoint or model do not match the settings, or hold something invalid.
    """
    nothing = Checkpoint({}, {"positions": [None], "counters": {"outcomes": {}, "reasons": {}}})
    checkpoint = found[1] if found else nothing
    metadata, outcomes = checkpoint.metadata, checkpoint.metadata["counters"]["outcomes"]
    # One that was written before anything was read only records where reading and predictions began.
    learned = None if found is None or is_blank(checkpoint) else checkpoint
    promoted = {}
    if _is_promoted(settings, learned):
        settings, promoted = settings.exchanged(), {"promoted": metadata["promoted"]}
        LOGGER.warning(
            "the challenger was promoted at %s: it is the model, although the settings have it in [challenger]. "
            "Exchange [model] and [challenger] there when there is time; until then each start does",
            metadata["promoted"],
            extra={"event": "promoted"},
        )
    model = model_from(settings) if learned is None else resume_model(settings, learned)
    if from_model is not None:
        model = load_matching_model(from_model, model, settings)
        LOGGER.info(
            "starting with the model of %s, which has learned %d events; counts start at 0", from_model, model.n
        )
    if learned is not None:
        LOGGER.info(
            "resuming from a checkpoint in %s with %d events learned", store.folder, model.n, extra={"event": "resumed"}
        )
    if "restored" in metadata:
        LOGGER.warning(
            "restored from a backup of generation %(generation)d taken at %(at)s; make sure that the original does not "
            "run any more",
            metadata["restored"],
        )
    state = RunState(
        Pipeline(
            model,
            schema_of(settings),
            None if learned is None else scores_of(settings, learned, model),
            writer,
            is_pretrained=bool(model.fields) and not any(outcomes.values()),
        ),
        labels_of(settings, learned),
        BadRecordGuard(settings.dead_letters.max_ratio, None if learned is None else learned.arrays["guard.latest"]),
        _jump_guard(settings, store, found if learned else None, model),
        {"version": version("streammoe"), "revision": revision(), "settings": settings.learning_settings()} | promoted,
        metadata["positions"][0],
        Counter(outcomes),
        Counter(metadata["counters"]["reasons"]),
        list(metadata.get("history", ())),
        metadata.get("state_digest"),
    )
    _note_start(state, store, found, from_model)
    _resume_challenger(state, settings, learned)
    return state


def _note_start(
    state: RunState, store: CheckpointStore, found: tuple[int, Checkpoint] | None, from_model: Path | None
) -> None:
    """Add to the history how a run begins, and what was done to its checkpoints since the last one ended."""
    known = {entry.get("folder") for entry in state.history}
    for folder in sorted(path.name for path in store.folder.glob("set-aside-*")):
        if folder not in known:
            state.note("set aside", folder=folder)
    if found is not None and "restored" in found[1].metadata:
        state.note("restored", **found[1].metadata["restored"])
    if from_model is not None:
        state.note("adopted", model=str(from_model))
    settings = {} if found is None else changed(found[1].metadata["settings"], state.description["settings"])
    state.note(
        "started", generation=None if found is None else found[0], **({"settings": settings} if settings else {})
    )


def _jump_guard(
    settings: Settings, store: CheckpointStore, found: tuple[int, Checkpoint] | None, model: MixtureOfExperts
) -> JumpGuard | None:
    if settings.guard.on_jump == "off":
        return None
    state, saved = LossState(events=model.n, sound=model.n), []
    if found is not None:
        generation, checkpoint = found
        if guard := checkpoint.metadata.get("guard"):
            state, there = LossState(**guard["jumps"]), store.generations()
            saved = [entry for entry in guard["saved"] if entry[0] in there]
        saved = [*saved, [generation, model.n]]
    return JumpGuard(LossGuard(model.options.schedule, state), saved, stops=settings.guard.on_jump == "stop")


def scores_of(settings: Settings, checkpoint: Checkpoint, model: MixtureOfExperts) -> Scores:
    """Return the prequential scores of a checkpoint."""
    scores = new_scores(model, schema_of(settings))
    with restoring(settings.checkpoint.dir):
        scores.restore(checkpoint.metadata["scores"], checkpoint.arrays)
        if isinstance(scores, ClassificationScores):
            n_classes = len(model.output_names)
            problem = f"scores counts {scores.classes} classes, but the model knows {n_classes}"
            require(scores.classes <= n_classes, problem)
    return scores


def latest_visible_checkpoint(
    store: CheckpointStore, latest: tuple[int, Checkpoint], recovered: int | None, *, may_repeat: bool = False
) -> tuple[int, Checkpoint]:
    """Return the newest valid checkpoint whose predictions are all visible to consumers.

    A crash between a checkpoint and its transaction leaves a checkpoint whose predictions never become visible. The
    daemon must then resume from the one before it and make them again.

    Args:
        store: store of the checkpoints.
        latest: the newest valid checkpoint.
        recovered: the last generation that the broker has committed, or 0, if predictions are transactional now.
        may_repeat: whether predictions that are visible may be made again, where checkpoints are older than those.

    Raises:
        CheckpointError: that is not known, the checkpoint no longer exists, or predictions would be visible twice.
    """
    generation, checkpoint = latest
    if not checkpoint.metadata.get("transactional") or not checkpoint.metadata["counters"]["outcomes"]:
        return latest
    seen = max(store.confirmed, recovered or 0)
    if seen > generation:
        older = f"generation {generation}, although predictions up to generation {seen} are visible"
        if not may_repeat:
            raise CheckpointError(
                f"checkpoint folder {store.folder}: its newest is {older}: it is an older copy, newer ones are damaged "
                "or were set aside, or another daemon runs with a copy of the folder. Use the newest copy; or resume "
                "from here with --repeat-predictions, and those after it are made again and will be visible twice"
            )
        LOGGER.warning("resuming from %s: those after it are made again and will be visible twice", older)
    if seen >= generation:
        return latest
    problem = f"checkpoint folder {store.folder}: whether the predictions of generation {generation} were"
    if recovered is None:
        raise CheckpointError(
            f"{problem} committed is unknown, since the daemon ended in between; start it once more with the previous, "
            "transactional [predictions], stop it gracefully, and then change the settings"
        )
    if not recovered:
        raise CheckpointError(
            f"{problem} committed is unknown: the group has no offsets of this daemon (have they expired, or was it "
            f"renamed?). To assume that they were, write {generation} into the file {store.folder / CONFIRMED}; if "
            "they were not, those since the generation before will be missing. Or start over with --fresh, which makes "
            "all predictions again"
        )
    if seen not in store.generations():
        raise CheckpointError(
            f"checkpoint folder {store.folder}: predictions up to generation {seen} are visible, but it only has "
            f"{', '.join(map(str, store.generations()))}. To resume from generation {generation} without those in "
            f"between, write {generation} into the file {store.folder / CONFIRMED}, and raise checkpoint.keep"
        )
    LOGGER.warning(
        "going back from generation %d to %d: later predictions never became visible, and are made again",
        generation,
        seen,
    )
    before = store.load(seen)
    store.discard(after=seen)
    return seen, before
