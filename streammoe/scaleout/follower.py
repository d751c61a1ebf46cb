"""The global model as a daemon uses it: read next to learning, served, and adopted at a checkpoint."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from streammoe.daemon.metrics import Metrics
from streammoe.daemon.model import empty_model
from streammoe.daemon.observer import Adopted, Observer
from streammoe.daemon.resume import differences
from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.contest import Rival
from streammoe.pipeline.pipeline import BatchResult, Pipeline
from streammoe.ports import Batch, Position
from streammoe.scaleout.global_model import GlobalModel, read_newest, versions
from streammoe.scaleout.journal import Journal
from streammoe.scaleout.metrics import FollowerMetrics
from streammoe.scaleout.places import Place, place_of
from streammoe.scaleout.shard import Problem
from streammoe.secrets import masked
from streammoe.settings import Settings
from streammoe.text import shown, some_of

LOGGER = logging.getLogger("streammoe.global")
FIRST_LOOK_SECONDS = 5.0
"""The longest that a start waits for the first look, which takes longer only where the place does not answer."""
OWN_OPTIONS = {"seed", "reservoir"}
"""Options of models whose values may differ between shards."""

_ADVICE = {
    "unreadable": "the next look tries again, and global.path must be where the reduction writes",
    "damaged": "the next version replaces it",
    "went_back": "restart the daemon to go back as well",
    "mismatch": "let the reduction have only shards with this daemon's settings, or correct global.path",
}


class _DeclinedError(Exception):
    """A version cannot be adopted; the message says what it does or lacks."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """One of `metrics.FOLLOWER_PROBLEMS`."""


class GlobalReader:
    """Looks for newer versions in a thread of its own, since a place may take for ever to answer.

    Args:
        place: of the global model.
        every: seconds between two looks.
    """

    def __init__(self, place: Place, every: float) -> None:
        self.place = place
        self._every = min(every, threading.TIMEOUT_MAX)
        self._found: SimpleQueue[GlobalModel | Problem | None] = SimpleQueue()
        self._ended, self._looked = threading.Event(), threading.Event()
        self._after = 0
        """The newest version that was read."""

    def start(self) -> None:
        """Begin, and return after the first look, or when that takes too long."""
        threading.Thread(target=self._run, name="global-model", daemon=True).start()
        self._looked.wait(FIRST_LOOK_SECONDS)

    def close(self) -> None:
        """End; a look in progress is left to itself."""
        self._ended.set()

    def news(self) -> Iterator[GlobalModel | Problem | None]:
        """Yield what was found since the last call: newer versions, problems, and None for a look without either."""
        while True:
            try:
                yield self._found.get_nowait()
            except Empty:
                return

    def look(self) -> None:
        """Look once; what is found is among the next news."""
        problems: list[Problem] = []
        found: GlobalModel | None = None

        def on_damage(_: int, error: CheckpointError) -> None:
            problems.append(Problem("damaged", str(error)))

        try:
            found = read_newest(self.place, after=self._after, on_damage=on_damage)
            if found is None and not problems and max(versions(self.place), default=0) < self._after:
                problems.append(Problem("went_back", f"{self.place.name}: version {self._after} is no longer there"))
        except RetriableCheckpointError as error:
            problems.append(Problem("unreadable", str(error)))
        except CheckpointError as error:
            problems.append(Problem("damaged", str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a place does, learning goes on
            problems.append(Problem("unreadable", masked(f"{self.place.name}: {type(error).__name__}: {error}")))
        if found is not None:
            self._after = found.version
            self._found.put(found)
        elif not problems:
            self._found.put(None)
        for problem in problems[:1]:  # of the newest version; what is passed over with it is older
            self._found.put(problem)

    def _run(self) -> None:
        while True:
            self.look()
            self._looked.set()
            if self._ended.wait(self._every):
                return


class GlobalFollower(Observer):
    """The newest sound version of the global model, which the pipeline serves and the daemon may adopt.

    Nothing that is wrong with it stops learning: it is a warning in the log, once, and counted; the last good version
    remains in use.

    Args:
        settings: of the daemon.
        reader: finds versions.
        metrics: shows the version and counts problems.
        shard: name of this daemon in the global model.
    """

    def __init__(self, settings: Settings, reader: GlobalReader, metrics: FollowerMetrics, shard: str) -> None:
        self._settings = settings
        self._like = empty_model(settings)
        self._reader = reader
        self._metrics = metrics
        self.shard = shard
        self._journal = Journal() if settings.global_.adopt else None
        self._mark = 0
        """The moment in the journal at which a checkpoint was taken last."""
        self.current: GlobalModel | None = None
        self._n_fields = 0
        """How many columns the own model had when that version was compared with it."""
        self._shown = 0
        """The version that metrics show."""
        self._problem: Problem | None = None
        """What the latest look has found, so that it is logged once."""
        self._declined = 0
        """The version that cannot be adopted."""
        self._why_declined = ""
        """Why, so that versions that fail alike are one warning."""

    def start(self, pipeline: Pipeline) -> None:
        """Begin to look; return after the first look unless that takes long."""
        self._reader.start()
        self._refresh(pipeline)

    def close(self) -> None:
        self._reader.close()

    def after_batch(self, pipeline: Pipeline, learned: Sequence[tuple[Batch, BatchResult]]) -> None:
        if self._journal is not None:
            for part in learned:
                self._journal.add(*part)
            self._metrics.set_held_bytes(self._journal.n_bytes)
        self._refresh(pipeline)

    def checkpoint_taken(self) -> None:
        if self._journal is not None:
            self._mark = self._journal.mark

    def checkpoint_saved(self, generation: int, state_digest: str, position: Position | None) -> None:
        if self._journal is not None:
            self._journal.add_saved(generation, state_digest, position, self._mark)

    def rolled_back(self, generation: int) -> None:
        if self._journal is not None:
            self._journal.roll_back(generation)

    def _refresh(self, pipeline: Pipeline) -> None:
        """Take over what was found since the last call, between two batches."""
        if pipeline.rival_failure is not None:
            failure, pipeline.rival_failure = pipeline.rival_failure, None
            self._report(Problem("mismatch", f"{self._origin()} cannot score events: {failure}"))
            self.current = None
        for found in self._reader.news():
            if isinstance(found, Problem):
                self._report(found)
            elif found is not None:
                self._problem = None
                self._take(found, pipeline)
            elif self._problem is not None and self._problem.reason in {"unreadable", "damaged", "went_back"}:
                LOGGER.warning("%s: can be read again", self._reader.place.name)
                self._problem = None
        n_fields = len(pipeline.model.fields)
        if self.current is not None and n_fields != self._n_fields:  # further ones may be of other kinds
            self._n_fields, version = n_fields, self.current
            pipeline.rival = self.current = None
            self._take(version, pipeline)
        if pipeline.contest is not None and self.current is not None:
            pipeline.rival = Rival(self.current.version, self.current.model)
        self._metrics.show_contest(pipeline.contest, has_rival=pipeline.rival is not None)

    def before_checkpoint(
        self, pipeline: Pipeline, contains: Mapping[str, Any], *, go_on: Callable[[], bool]
    ) -> Adopted | None:
        """Return the newest version once it has learned what it lacks of this shard, or None if there is none to adopt.

        Neither the pipeline nor anything durable is changed. `go_on` is called between two parts.
        """
        found = self.current
        if self._journal is None or found is None or found.version <= max(contains.get("version", 0), self._declined):
            return None
        if pipeline.model.is_warming_up:  # no global model contains it yet
            return None
        try:
            return self._adopted(found, self._journal, pipeline, contains, go_on)
        except _DeclinedError as error:
            problem = error
        except Exception as error:  # noqa: BLE001 - as in `GlobalReader.look`
            problem = _DeclinedError("mismatch", f"cannot learn: {type(error).__name__}: {error}")
        self._declined = found.version
        self._metrics.count_problem(problem.reason)
        name = self._origin()
        level = logging.INFO if problem.reason == self._why_declined else logging.WARNING
        LOGGER.log(level, "%s is not adopted: it %s. The own model goes on; a later version may do", name, problem)
        self._why_declined = problem.reason
        return None

    def _adopted(
        self,
        found: GlobalModel,
        journal: Journal,
        pipeline: Pipeline,
        contains: Mapping[str, Any],
        go_on: Callable[[], bool],
    ) -> Adopted | None:
        """See `before_checkpoint`; raise `_DeclinedError` if this version can never be adopted."""
        mine = found.shards.get(self.shard)
        if mine is None:
            raise _DeclinedError(
                "absent",
                f"contains {some_of(sorted(found.shards))}, and not {shown(self.shard)}; global.shard must be the name "
                "that the reduction uses, and a shard is left out until its warm-up is over",
            )
        before: Mapping[str, Any] = contains.get("shards", {})
        for name, had in before.items():
            if name in found.shards and found.shards[name].n < had["n"]:
                raise _DeclinedError(
                    "went_back",
                    f"contains {found.shards[name].n:,} events of shard {shown(name)}, and version "
                    f"{contains['version']}, adopted before, {had['n']:,}",
                )
        started = time.monotonic()
        model = self._copied(found.model)
        if problems := list(self._unlike(model, pipeline.model)):
            raise _DeclinedError("mismatch", f"does not match this daemon: {'; '.join(problems)}")
        parts = journal.since(mine.generation, mine.state_digest, mine.positions[0] if mine.positions else None)
        if parts is None:
            raise _DeclinedError(
                "too_far_back",
                f"contains this shard up to generation {mine.generation}, and what was learned since is not held any "
                "more: that is from before the start or a rollback, or too much came meanwhile",
            )
        model.take_over(self._like.options, "reload", "restart")
        results = pipeline.learn_again(model, (part.batch for part in parts))
        for part, result in zip(parts, results, strict=True):
            if result.bad.any() or result.outcomes["learned"] != part.learned:
                why = result.letters[0].detail if result.letters else "it learns another number of them"
                raise _DeclinedError("rejected", f"cannot learn events that this daemon has learned ({why})")
            if not go_on():
                return None
        if not model.is_finite():
            raise _DeclinedError("rejected", "would not be finite after the events that it lacks")
        journal.forget_before(mine.generation)
        self._why_declined = ""
        LOGGER.info(
            "adopting %s, with %d events of %d shards; it has learned the %d of this daemon that it lacked in %.2f s",
            self._origin(),
            found.n,
            len(found.shards),
            sum(part.learned for part in parts),
            time.monotonic() - started,
        )
        others = {
            name: {"generation": each.generation, "n": each.n, "positions": each.positions}
            for name, each in found.shards.items()
            if name != self.shard
        }
        self._metrics.count_adoption()
        # Shards that this version leaves out stay as they were.
        return Adopted(model, {"version": found.version, "shards": {**before, **others}})

    def _take(self, found: GlobalModel, pipeline: Pipeline) -> None:
        """Use a version from here on, unless its predictions would mean something else."""
        if problems := list(self._unservable(found.model, pipeline.model)):
            name = f"{self._reader.place.name}, version {found.version}"
            self._report(Problem("mismatch", f"{name} does not match this daemon: {'; '.join(problems)}"))
            return
        self.current, self._n_fields = found, len(pipeline.model.fields)
        if found.version == self._shown:
            return
        self._shown = found.version
        self._metrics.show_version(found.version)
        LOGGER.info("using %s, with %d events of %d shards", self._origin(), found.n, len(found.shards))

    def _unservable(self, model: MixtureOfExperts, own: MixtureOfExperts) -> Iterator[str]:
        """Yield why a model's predictions are not those that this daemon makes."""
        if type(model) is not type(self._like):
            yield f"it is a {type(model).__name__}, and the settings require a {type(self._like).__name__}"
            return
        if not model.fields or model.is_warming_up:
            yield "its warm-up is not over"
        if not model.is_classifier and model.output_names != self._like.output_names:
            yield f"its outputs are {model.output_names!r}, and schema.target is {self._like.output_names!r}"
        if model.is_classifier and not all(isinstance(label, str) for label in model.output_names):
            yield f"its classes are {model.output_names!r}, and labels in records are strings"
        if model.learner.context.lags is not None:
            yield "it has lags as features"
        kinds, own_kinds = model.column_kinds, own.column_kinds
        for name in [name for name in kinds if name in own_kinds and kinds[name] != own_kinds[name]]:
            yield f"its column {shown(name)} is a {kinds[name]}, and here a {own_kinds[name]}"

    def _copied(self, model: MixtureOfExperts) -> MixtureOfExperts:
        """Return an independent copy with this daemon's own values of the options that shards need not share."""
        own = self._like.arguments()
        arguments = {name: own[name] if name in OWN_OPTIONS else value for name, value in model.arguments().items()}
        if arguments == model.arguments():
            return copy.copy(model)
        return type(model).from_checkpoint(copy.copy(model).arrays(), {"arguments": arguments})

    def _unlike(self, model: MixtureOfExperts, own: MixtureOfExperts) -> Iterator[str]:
        """Yield why the own model cannot become this one."""
        yield from differences(model, self._like, self._settings)
        if lacking := sorted(set(map(str, own.fields)) - set(map(str, model.fields))):
            yield f"it lacks the columns {some_of(lacking)}"
        yield from self._unservable(model, own)

    def _origin(self) -> str:
        version = "" if self.current is None else f", version {self.current.version}"
        return f"{self._reader.place.name}{version}"

    def _report(self, problem: Problem) -> None:
        self._metrics.count_problem(problem.reason)
        if problem != self._problem:
            in_use = (
                "the own model predicts" if self.current is None else f"version {self.current.version} stays in use"
            )
            LOGGER.warning("global model: %s; %s. Until then %s", problem.text, _ADVICE[problem.reason], in_use)
        self._problem = problem


def follower_of(settings: Settings, metrics: Metrics) -> GlobalFollower:
    """Return the follower of the global model that the settings name.

    Raises:
        ConfigError: its place cannot be used.
    """
    chosen = settings.global_
    reader = GlobalReader(place_of(chosen.path, "global.path"), chosen.every)
    shard = chosen.shard or Path(settings.checkpoint.dir).absolute().name
    return GlobalFollower(settings, reader, FollowerMetrics(metrics.live), shard)
