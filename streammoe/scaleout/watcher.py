"""Rounds that merge the newest checkpoints of all shards into a global model, as often as there is something new."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple
from urllib.parse import quote

from streammoe.checked import is_count, require, restoring, table_of
from streammoe.errors import CheckpointError, RetriableCheckpointError, StreammoeError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.persistence import FolderLock, decode, pieces
from streammoe.scaleout import global_model
from streammoe.scaleout.global_model import KEEP, Contained, GlobalModel, contained_of
from streammoe.scaleout.metrics import ReduceMetrics
from streammoe.scaleout.overlap import overlapping
from streammoe.scaleout.places import MissingFileError, Place
from streammoe.scaleout.shard import Problem, Shard, differing, look
from streammoe.text import counted, shown

LOGGER = logging.getLogger("streammoe.shards")
COPY = "shard"
"""Entry of the metadata of a copy of a shard's model, which says what it contains."""
ONCE_MORE = "once that is mended or over, run the command again, or use --watch, which does so by itself"
"""What to do about a problem where no round follows."""
_NO_LONGER_THERE = {"empty", "unreadable", "damaged", "newer_format"}
"""Problems of a folder, not of its model: what was read before still counts."""


class Merged(NamedTuple):
    """What a reduction makes of several models."""

    model: MixtureOfExperts
    divergences: Sequence[float | None]
    """Mean divergence of each model from the result, in nats per event, in the order of the models."""


Reduction = Callable[[Mapping[str, MixtureOfExperts], Sequence[float], int], Merged]
"""Merges models, by the shards' names, by their weights, into one that counts so many events as learned.

Raises `StreammoeError` where they cannot be merged."""


class Round(NamedTuple):
    """What became of a round."""

    outcome: str
    """See `streammoe.scaleout.metrics.OUTCOMES`: a new version was written; nothing was new; there is no shard whose
    checkpoint counts yet; or it failed, and a next round tries again."""
    newest: GlobalModel | None
    """The newest global model."""
    problems: Mapping[str, Problem]
    """By the shards' names."""
    error: StreammoeError | None = None
    """Why it failed."""


@dataclass(frozen=True)
class _Newest:
    """The newest global model, and the shards' models that it was made of, as far as they are at hand."""

    merged: GlobalModel
    shards: Mapping[str, Shard]


class TakenPlaceError(CheckpointError):
    """Another process writes to the place by now; this one must end."""


class Watcher:
    """Merges shards' checkpoints into global models; only one process may do so for each place.

    A shard whose folder cannot be read, or holds only what is damaged, keeps the part that it has in the newest global
    model: next to the global models, the place holds a copy of each shard's model for this.

    No time of day and no time of a file matters: generations and digests tell what is new.

    Args:
        shards: the folders of the shards' checkpoints by the names of the shards.
        out: where to write.
        reduction: merges models.
        keep: number of versions to keep.
        lock: of the place; made sure of before each version. Object stores have none.
        retries: whether there is a next round, for messages.
        metrics: updated in each round.
        clock: seconds that only run on.
    """

    def __init__(
        self,
        shards: Mapping[str, Place],
        out: Place,
        reduction: Reduction,
        *,
        keep: int = KEEP,
        lock: FolderLock | None = None,
        retries: bool = True,
        metrics: ReduceMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = dict(shards)
        self._out = out
        self._reduction = reduction
        self._keep = keep
        self._lock = lock
        self._next_try = "the next round tries again" if retries else ONCE_MORE
        self._metrics = metrics or ReduceMetrics(list(shards), clock)
        self._clock = clock
        self._begun = False
        self._newest: _Newest | None = None
        self._known: dict[str, Shard] = {}
        """What was read last of each shard."""
        self._problems: dict[str, Problem] = {}
        self._n_experts: set[int] = set()
        """Different numbers of experts of the shards' models, of which the log says once that they differ."""
        self._failure = ""
        """Why the last round failed; the log says it once."""

    @property
    def newest(self) -> GlobalModel | None:
        """The newest global model, if there is one."""
        return None if self._newest is None else self._newest.merged

    def round(self) -> Round:
        """Read all shards once, and write a new version if any of them has learned something new.

        Raises:
            TakenPlaceError: the place was removed, and another process has locked it since.
        """
        began = self._clock()
        error: StreammoeError | None = None
        try:
            if not self._begun:
                self._begin()
            outcome = self._merge()
        except TakenPlaceError:
            raise
        except StreammoeError as failure:
            outcome, error = "failed", failure
        self._report_failure("" if error is None else str(error))
        self._metrics.count_round(outcome, self._clock() - began)
        return Round(outcome, self.newest, dict(self._problems), error)

    def _begin(self) -> None:
        """Continue with the newest global model and the copies of the shards' models that an earlier process left."""
        newest = global_model.read_newest(self._out)
        if newest is not None:
            shards = {name: self._copy_of(name) for name in newest.shards if name in self._places}
            found = {name: shard for name, shard in shards.items() if shard is not None}
            self._newest = _Newest(newest, found)
            self._known = dict(found)
            self._show()
            LOGGER.info("%s: continuing after version %d of the global model", self._out.name, newest.version)
        self._begun = True

    def _merge(self) -> str:
        looks = {name: look(place, self._known.get(name)) for name, place in self._places.items()}
        shards: dict[str, Shard] = {}
        problems: dict[str, Problem] = {}
        for name, (found, problem) in looks.items():
            if problem is not None:
                problems[name] = problem
            shard = self._kept(name, found, problem)
            if shard is not None:
                shards[name] = shard
        for name, difference in differing({name: shard.model for name, shard in shards.items()}).items():
            problems[name] = Problem("different", f"{self._places[name].name}: {difference}")
            del shards[name]
        for name, overlap in overlapping(shards).items():
            problems[name] = Problem("overlapping", f"{self._places[name].name}: {overlap}")
            del shards[name]
        self._known.update({name: found for name, (found, _) in looks.items() if found is not None})
        self._report_problems(problems, shards.keys())
        if not shards:
            return "waiting"
        newest = self._newest
        if newest is not None and not self._is_new(shards, newest):
            if newest.merged.version in global_model.versions(self._out):
                return "unchanged"
            LOGGER.warning(
                "%s: version %d is no longer there; writing another one", self._out.name, newest.merged.version
            )
            self._newest = replace(newest, shards={})  # their copies may be gone, too
        self._write(shards)
        return "written"

    def _kept(self, name: str, found: Shard | None, problem: Problem | None) -> Shard | None:
        """Return what counts for a shard: what was found, or what the newest global model contains of it."""
        if problem is None:
            return found
        if problem.reason not in _NO_LONGER_THERE:
            return None
        before = None if self._newest is None else self._newest.shards.get(name)
        if before is None or (found is not None and found.generation > before.generation):
            return found
        return before

    @staticmethod
    def _is_new(shards: Mapping[str, Shard], newest: _Newest) -> bool:
        """Return whether a shard has anything that the newest global model lacks.

        What only came by adopting is nothing new: versions would follow one another for ever if each was adopted.
        """
        parts = newest.merged.shards
        if shards.keys() != parts.keys():
            return True
        for name, shard in shards.items():
            part, before = parts[name], newest.shards.get(name)
            if (shard.n, shard.positions) != (part.n, part.positions):
                return True
            adopted = 0 if before is None else before.adopted
            if shard.state_digest != part.state_digest and shard.adopted <= adopted:
                return True
        return False

    def _write(self, shards: Mapping[str, Shard]) -> None:
        weights = [float(shard.n) for shard in shards.values()]
        reduced = self._reduced(shards, weights)
        self._renew_lock()
        total = sum(weights)
        contained = {
            name: Contained(
                generation=shard.generation,
                n=shard.n,
                positions=shard.positions,
                state_digest=shard.state_digest,
                weight=weight,
                share=weight / total,
                divergence=_known_divergence(divergence),
            )
            for (name, shard), weight, divergence in zip(shards.items(), weights, reduced.divergences, strict=True)
        }
        # Numbers of files that are damaged, or were removed, are not used again either.
        before = 0 if self._newest is None else self._newest.merged.version
        adopted = [shard.adopted for shard in shards.values()]
        version = 1 + max([before, *adopted, *global_model.versions(self._out)])
        for name, shard in shards.items():
            self._write_copy(name, shard, contained[name])
        merged = GlobalModel(version, reduced.model, contained)
        global_model.write(self._out, merged, self._keep)
        gone = set() if self._newest is None else self._newest.merged.shards.keys() - shards.keys()
        self._newest = _Newest(merged, dict(shards))
        self._remove_copies(gone)
        self._show()
        LOGGER.info(
            "%s: version %d of the global model contains %s of %s",
            self._out.name,
            version,
            counted(merged.n, "event"),
            counted(len(shards), "shard"),
        )

    def _renew_lock(self) -> None:
        """Make sure that no other process can write to the place, which may have been removed and created again."""
        if self._lock is None:
            return
        try:
            renewed = self._lock.renew()
        except OSError as error:
            rule = "make it a folder that this user may write"
            raise RetriableCheckpointError(
                f"{self._out.name}: cannot be locked again ({error.strerror}); {rule}"
            ) from error
        except CheckpointError as error:
            raise TakenPlaceError(str(error)) from error
        if renewed and self._newest is not None:
            self._newest = replace(self._newest, shards={})  # the copies of their models are gone, too

    def _reduced(self, shards: Mapping[str, Shard], weights: Sequence[float]) -> Merged:
        """Merge the shards' models, unless only their positions are new."""
        newest = self._newest
        if newest is not None:
            parts = newest.merged.shards
            now = {name: (shard.state_digest, shard.n) for name, shard in shards.items()}
            if now == {name: (part.state_digest, part.n) for name, part in parts.items()}:
                return Merged(newest.merged.model, [parts[name].divergence for name in shards])
        # What shards have adopted, or what they began with, counts once: numbers that grew with each adoption would
        # make steps ever smaller.
        n = sum(shard.n for shard in shards.values()) + max(shard.before for shard in shards.values())
        return self._reduction({name: shard.model for name, shard in shards.items()}, weights, n)

    # -- Copies of the shards' models ----------------------------------------------------------------------------------

    def _write_copy(self, name: str, shard: Shard, contained: Contained) -> None:
        before = None if self._newest is None else self._newest.shards.get(name)
        if before is not None and replace(before, model=shard.model, adopted=shard.adopted) == shard:
            return
        metadata = {**shard.model.describe(), COPY: {"name": name, "before": shard.before, **asdict(contained)}}
        self._out.write(_copy_name(name), *pieces(shard.model.arrays(), metadata))

    def _remove_copies(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                self._out.delete(_copy_name(name))
            except RetriableCheckpointError as error:  # a surplus file must not stop anything
                LOGGER.warning("the copy of a shard's model was not removed: %s", error)

    def _copy_of(self, name: str) -> Shard | None:
        """Return a shard as it was when its copy was written; None, with a warning, if there is no sound one."""
        origin = self._out.file(_copy_name(name))
        try:
            checkpoint = decode(self._out.read(_copy_name(name)), origin)
            with restoring(origin):
                table = table_of(checkpoint.metadata, COPY)
                require(table.get("name") == name, f"it is of shard {shown(table.get('name'))}, not of {shown(name)}")
                contained, before = contained_of(name, table), table.get("before", -1)
                require(is_count(before), f"before is {shown(before)}, not a whole number from 0 on")
            model = model_of(checkpoint, origin)
        except MissingFileError:
            return None
        except RetriableCheckpointError:
            raise
        except CheckpointError as error:
            LOGGER.warning("the copy of a shard's model cannot be used: %s", error)
            return None
        return Shard(contained.generation, contained.n, contained.positions, contained.state_digest, model, int(before))

    # -- Reports -------------------------------------------------------------------------------------------------------

    def _report_problems(self, problems: Mapping[str, Problem], counted_names: Collection[str]) -> None:
        """Log each problem once, and once that it is over.

        Args:
            problems: by the shards' names.
            counted_names: of the shards that count nevertheless.
        """
        for name in self._places:
            before, now = self._problems.get(name), problems.get(name)
            self._metrics.show_problem(name, now)
            if now is not None and not _is_same(now, before):
                contained = {} if self._newest is None else self._newest.merged.shards
                if name not in counted_names:
                    becomes = "is left out"
                elif name in contained and now.reason in _NO_LONGER_THERE:
                    becomes = "keeps its part of the global model"
                else:
                    becomes = "counts by an earlier checkpoint"
                LOGGER.log(
                    logging.INFO if now.reason in {"warming_up", "no_events"} else logging.WARNING,
                    "shard %s %s: %s",
                    name,
                    becomes,
                    now.text,
                )
            elif now is None and before is not None:
                LOGGER.info("shard %s: its newest checkpoint counts again", name)
        self._problems = dict(problems)

    def _report_failure(self, failure: str) -> None:
        if failure and failure != self._failure:
            LOGGER.warning("no global model was written; %s: %s", self._next_try, failure)
        elif self._failure and not failure:
            LOGGER.info("rounds succeed again")
        self._failure = failure

    def _show(self) -> None:
        assert self._newest is not None  # noqa: S101 - for the type checker
        experts = {name: shard.model.chosen_n_experts or 0 for name, shard in self._newest.shards.items()}
        self._metrics.show(self._newest.merged, experts)
        different = set(experts.values())
        if len(different) > 1 and different != self._n_experts:
            words = ", ".join(f"{name} {n}" for name, n in experts.items())
            LOGGER.info("the shards have different numbers of experts: %s", words)
        self._n_experts = different


def _is_same(problem: Problem, before: Problem | None) -> bool:
    """Return whether a problem is the one that there was; how far a shard has come, or which try failed, is no news."""
    if before is None or problem.reason != before.reason:
        return False
    return problem.reason not in {"damaged", "different"} or problem.text == before.text


def _copy_name(name: str) -> str:
    return f"shard-{quote(name, safe='')}.safetensors"


def _known_divergence(value: float | None) -> float | None:
    """Return a divergence as a file may hold it; rounding may take one that is 0 below it."""
    return None if value is None or not math.isfinite(value) else max(float(value), 0.0)
