"""Rounds that merge the newest checkpoints of all shards into a global model, as often as there is something new."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from streammoe.errors import CheckpointError, StreammoeError
from streammoe.persistence import CheckpointStore
from streammoe.reduction import reduce_with_details
from streammoe.scaleout import global_model
from streammoe.scaleout.global_model import Contained, GlobalModel
from streammoe.scaleout.overlap import overlapping
from streammoe.scaleout.shard import FolderProblem, Shard, differing, read_shard
from streammoe.scaleout.shard_metrics import ReduceMetrics
from streammoe.text import counted

LOGGER = logging.getLogger("streammoe.shards")
ONCE_MORE = "once that is mended or over, run the command again, or use --watch, which does so by itself"
"""What to do about a problem where no round follows."""
_NO_LONGER_THERE = {"empty", "unreadable", "damaged"}
"""Problems of a folder, not of its model: what was read before still counts."""


class ReduceRound(NamedTuple):
    """What became of a round."""

    outcome: str
    """One of `streammoe.scaleout.shard_metrics.OUTCOMES`: a new version was written; nothing was new; there is no shard
    whose checkpoint counts yet; or it failed, and a next round tries again."""
    newest: GlobalModel | None
    """The newest global model."""
    problems: Mapping[str, FolderProblem]
    """By the shards' names."""
    error: StreammoeError | None = None
    """Why it failed."""


class Watcher:
    """Merges the checkpoints of shards, daemons that share a stream, into global models; one process for each folder.

    A shard whose folder cannot be read any more, or holds only damaged checkpoints, counts by what was last read of it.
    Numbers of events and digests, not times of files, tell what is new.

    Args:
        shards: the folders of the shards' checkpoints by the names of the shards.
        store: where global models are saved.
        n_experts: of a global model; by default the number by which most events were learned.
        retries: whether there is a next round, for messages.
        metrics: updated in each round.
    """

    def __init__(
        self,
        shards: Mapping[str, Path],
        store: CheckpointStore,
        *,
        n_experts: int | None = None,
        retries: bool = True,
        metrics: ReduceMetrics | None = None,
    ) -> None:
        self._folders = dict(shards)
        self._store, self._out = store, store.folder
        self._n_experts = n_experts
        self._next_try = "the next round tries again" if retries else ONCE_MORE
        self._metrics = metrics or ReduceMetrics(list(shards))
        self._begun = False
        self.newest: GlobalModel | None = None
        """The newest global model, if there is one."""
        self._known: dict[str, Shard] = {}
        """What was read last of each shard."""
        self._problems: dict[str, FolderProblem] = {}
        self._failure = ""
        """Why the last round failed; the log says it once."""

    def round(self) -> ReduceRound:
        """Read all shards once, and write a new version if any of them has learned something new."""
        error: StreammoeError | None = None
        try:
            if not self._begun:
                self._begin()
            outcome = self._merge()
        except StreammoeError as failure:
            outcome, error = "failed", failure
        self._report_failure("" if error is None else str(error))
        self._metrics.count_round(outcome)
        return ReduceRound(outcome, self.newest, dict(self._problems), error)

    def _begin(self) -> None:
        """Continue with the newest global model that an earlier process has left."""
        self.newest, problem = global_model.read_newest(self._store)
        if problem is not None and problem.reason == "unreadable":
            raise CheckpointError(problem.text)
        if problem is not None:
            LOGGER.warning("a global model is passed over: %s", problem.text)
        if self.newest is not None:
            self._metrics.show(self.newest)
            LOGGER.info("%s: continuing after version %d of the global model", self._out, self.newest.version)
        self._begun = True

    def _merge(self) -> str:
        shards: dict[str, Shard] = {}
        problems: dict[str, FolderProblem] = {}
        for name, folder in self._folders.items():
            known = self._known.get(name)
            found, problem = read_shard(folder, known)
            if problem is not None:
                problems[name] = problem
                if problem.reason not in _NO_LONGER_THERE:
                    continue
                if known is not None and (found is None or found.generation <= known.generation):
                    found = known
            if found is not None:
                shards[name] = self._known[name] = found
        for name, difference in differing({name: shard.model for name, shard in shards.items()}).items():
            problems[name] = FolderProblem("different", f"{self._folders[name]}: {difference}")
            del shards[name]
        for name, overlap in overlapping(shards).items():
            problems[name] = FolderProblem("overlapping", f"{self._folders[name]}: {overlap}")
            del shards[name]
        self._report_problems(problems, shards.keys())
        if not shards:
            return "waiting"
        newest = self.newest
        if newest is not None:
            before = {name: (part.n, part.state_digest) for name, part in newest.shards.items()}
            if before == {name: (shard.n, shard.state_digest) for name, shard in shards.items()}:
                if newest.version in self._store.generations():
                    return "unchanged"
                LOGGER.warning("%s: version %d is no longer there; writing another one", self._out, newest.version)
        self._write(shards)
        return "written"

    def _write(self, shards: Mapping[str, Shard]) -> None:
        # The model with which all shards began (--from-model) counts once.
        n = sum(shard.n for shard in shards.values()) + max(shard.n_before for shard in shards.values())
        reduced = reduce_with_details(
            [shard.model for shard in shards.values()],
            n_experts=self._n_experts,
            weights=[float(shard.n) for shard in shards.values()],
            names=list(shards),
            n=n,
        )
        contained = {
            name: Contained(
                generation=shard.generation,
                n=shard.n,
                state_digest=shard.state_digest,
                # Rounding may make a divergence of 0 negative.
                divergence=max(divergence, 0.0) if math.isfinite(divergence) else None,
            )
            for (name, shard), divergence in zip(shards.items(), reduced.divergences.tolist(), strict=True)
        }
        # Versions whose files are damaged or were removed are not used again either.
        before = 0 if self.newest is None else self.newest.version
        self.newest = merged = global_model.save(self._store, reduced.model, contained, after=before)
        self._metrics.show(merged)
        LOGGER.info(
            "%s: version %d of the global model contains %s of %s",
            self._out,
            merged.version,
            counted(merged.n, "event"),
            counted(len(shards), "shard"),
        )

    # -- Reports -------------------------------------------------------------------------------------------------------

    def _report_problems(self, problems: Mapping[str, FolderProblem], counted_names: Collection[str]) -> None:
        """Log each problem once, and its end once.

        Args:
            problems: by the shards' names.
            counted_names: names of the shards that count nevertheless.
        """
        for name in self._folders:
            before, now = self._problems.get(name), problems.get(name)
            self._metrics.show_problem(name, now)
            if now is not None and not _is_same(now, before):
                LOGGER.log(
                    logging.INFO if now.reason in {"warming_up", "no_events"} else logging.WARNING,
                    "shard %s %s: %s",
                    name,
                    "counts by an earlier checkpoint" if name in counted_names else "is left out",
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


def _is_same(problem: FolderProblem, before: FolderProblem | None) -> bool:
    """Return whether a problem was there before; how far a shard has come, or which try failed, is no news."""
    if before is None or problem.reason != before.reason:
        return False
    return problem.reason not in {"damaged", "different"} or problem.text == before.text
