"""The global model as a daemon uses it: read next to learning, and served where it predicts better."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from streammoe.catalogue import LiveMetrics
from streammoe.daemon.loop import Observer
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.model import model_from
from streammoe.estimators import MixtureOfExperts
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.pipeline import Pipeline, Rival
from streammoe.scaleout.global_model import GlobalModel, folder_of, read_newest
from streammoe.scaleout.rival import Contest
from streammoe.scaleout.shard import FolderProblem
from streammoe.scaleout.shard_metrics import FOLLOWER_PROBLEMS, OF_FOLLOWERS
from streammoe.settings import Settings
from streammoe.text import shown

LOGGER = logging.getLogger("streammoe.global")
LOOK_SECONDS = 60.0
"""Time between two looks; a model of all shards changes slowly."""
FIRST_LOOK_SECONDS = 5.0
"""The longest that a start waits for the first look, which takes longer only where the folder does not answer."""
_ADVICE = {
    "unreadable": "the next look tries again, and global.path must be where the reduction writes",
    "damaged": "the next version replaces it",
    "went_back": "restart the daemon to go back as well",
    "mismatch": "let the reduction have only shards with this daemon's settings, or correct global.path",
}


Look = tuple[GlobalModel | None, FolderProblem | None]
"""A newer version, if there is any, and a problem, if there was one."""


class GlobalReader:
    """Looks for newer versions in a thread of its own, since a remote folder may take for ever to answer.

    Args:
        folder: of the global model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._store = CheckpointStore(folder)
        self._looks: SimpleQueue[Look] = SimpleQueue()
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

    def looks(self) -> Iterator[Look]:
        """Yield what each look since the last call has found."""
        while True:
            try:
                yield self._looks.get_nowait()
            except Empty:
                return

    def read_once(self) -> None:
        """Look once."""
        found, problem = None, None
        try:
            found, problem = read_newest(self._store, after=self._after)
            if found is None and problem is None and max(self._store.generations(), default=0) < self._after:
                problem = FolderProblem("went_back", f"{self.folder}: version {self._after} is no longer there")
        except Exception as error:  # noqa: BLE001 - whatever is in the folder, learning goes on
            problem = FolderProblem("unreadable", f"{self.folder}: {type(error).__name__}: {error}")
        self._after = self._after if found is None else found.version
        self._looks.put((found, problem))

    def _run(self) -> None:
        while True:
            self.read_once()
            self._looked.set()
            if self._ended.wait(LOOK_SECONDS):
                return


class GlobalFollower(Observer):
    """The newest sound version of the global model, as the rival of the model of a pipeline.

    Nothing that is wrong with it stops learning: it is a warning in the log, once, and counted; the last good version
    remains in use.

    Args:
        like: a model such as the daemon's own.
        reader: finds versions.
        live: the daemon's metrics, to which those of followers are added.
        always: whether the global model always predicts; else the better one does.
    """

    def __init__(
        self, like: MixtureOfExperts, reader: GlobalReader, live: LiveMetrics, *, always: bool = False
    ) -> None:
        live.add(OF_FOLLOWERS)
        for reason in FOLLOWER_PROBLEMS:
            live.counter("streammoe_global_problems_total", reason)
        self._found_at = math.nan
        live.gauge("streammoe_global_age_seconds").set_function(lambda: time.monotonic() - self._found_at)
        self._like = like
        self._reader = reader
        self._live = live
        self._contest = Contest(always=always)
        self._rival: Rival | None = None
        self._n_fields = 0
        """How many columns the own model had when that version was compared with it."""
        self._shown = 0
        """The version that metrics show."""
        self._problem: FolderProblem | None = None
        """What the latest look has found, so that it is logged once."""

    def start(self, pipeline: Pipeline) -> None:
        """Begin to look; return after the first look unless that takes long."""
        pipeline.may_have_rival = True
        self._reader.start()
        self.after_batch(pipeline)

    def close(self) -> None:
        self._reader.close()

    def after_batch(self, pipeline: Pipeline) -> None:
        """Take over what was found since the last call."""
        rival = self._rival
        if rival is not None and rival.failure:
            self._report(
                FolderProblem("mismatch", f"{self._origin(rival.version)} cannot score events: {rival.failure}")
            )
            self._rival = None
        for found, problem in self._reader.looks():
            if found is not None:
                self._problem = None
                self._take(found.version, found.model, pipeline)
            if problem is not None:
                self._report(problem)
            elif found is None and self._problem is not None and self._problem.reason != "mismatch":
                LOGGER.warning("%s: can be read again", self._reader.folder)
                self._problem = None
        rival, n_fields = self._rival, len(pipeline.model.fields)
        if rival is not None and n_fields != self._n_fields:  # further ones may be of other kinds
            self._rival = None
            self._take(rival.version, rival.model, pipeline)
        pipeline.rival, pipeline.may_have_rival = self._rival, True
        serving = self._rival is not None and self._contest.favours_rival
        self._live.gauge("streammoe_global_serving").set(serving)
        self._live.gauge("streammoe_global_log_loss", "own").set(self._contest.own_loss)
        self._live.gauge("streammoe_global_log_loss", "global").set(self._contest.rival_loss)

    def _take(self, version: int, model: MixtureOfExperts, pipeline: Pipeline) -> None:
        """Use a version from here on, unless its predictions would mean something else."""
        if problems := "; ".join(self._unservable(model, pipeline.model)):
            self._report(FolderProblem("mismatch", f"{self._origin(version)} does not match this daemon: {problems}"))
            return
        self._rival, self._n_fields = Rival(version, model, self._contest.choose), len(pipeline.model.fields)
        if version != self._shown:
            self._shown, self._found_at = version, time.monotonic()
            self._live.gauge("streammoe_global_version").set(version)
            LOGGER.info("using %s, which has learned %d events", self._origin(version), model.n)

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

    def _origin(self, version: int) -> str:
        return f"{self._reader.folder}, version {version}"

    def _report(self, problem: FolderProblem) -> None:
        self._live.counter("streammoe_global_problems_total", problem.reason).inc()
        if problem != self._problem:
            in_use = "the own model predicts" if self._rival is None else f"version {self._rival.version} stays in use"
            LOGGER.warning("global model: %s; %s. Until then %s", problem.text, _ADVICE[problem.reason], in_use)
        self._problem = problem


def follower_of(settings: Settings, metrics: Metrics) -> GlobalFollower:
    """Return the follower of the global model that the settings name.

    Raises:
        ConfigError: its folder cannot be one.
    """
    chosen = settings.global_
    reader = GlobalReader(folder_of(chosen.path, "global.path"))
    return GlobalFollower(model_from(settings), reader, metrics.live, always=chosen.serve == "global")
