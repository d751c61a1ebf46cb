"""A shard as others see it: the newest sound checkpoint of its folder, read without its lock while its daemon runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from streammoe.checked import is_count, require, restoring, table_of
from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.fields import facts_of
from streammoe.persistence import Checkpoint, CheckpointStore, NewerCheckpointError
from streammoe.ports import Position
from streammoe.text import cut, shown

PROBLEMS = ("empty", "unreadable", "damaged", "warming_up", "no_events", "different", "overlapping")
"""Why a shard's checkpoint does not count."""
_FREE = {"n_experts", "seed", "reservoir"}
"""Arguments that shards of one global model may have different values of, besides those that may change anyway."""
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """What a shard had learned at a checkpoint."""

    generation: int
    n: int
    """Number of events of its own source that it has learned."""
    positions: list[Position | None]
    """Where its sources were; what they hold is not checked."""
    state_digest: str
    model: MixtureOfExperts

    @property
    def n_before(self) -> int:
        """Number of events that the model had learned before those of the source, elsewhere (``--from-model``)."""
        return max(self.model.n - self.n, 0)


class FolderProblem(NamedTuple):
    """Why a shard's checkpoint, its newest one, or a version of the global model does not count."""

    reason: str
    """One of `PROBLEMS`, or of `metrics.FOLLOWER_PROBLEMS`."""
    text: str
    """For the log: the place, and what is wrong."""


def newest(
    store: CheckpointStore, restored: Callable[[int, Checkpoint], T], *, after: int = 0
) -> tuple[T | None, FolderProblem | None]:
    """Return what the newest sound checkpoint of a folder holds, and what is wrong with newer ones, or the folder.

    Args:
        store: of the folder; another process may write and remove checkpoints at the same time.
        restored: makes something of a generation and its checkpoint.
        after: a generation; only later ones count, so that what is known need not be read again.
    """
    try:
        generations = store.generations()
    except RetriableCheckpointError as error:
        return None, FolderProblem("unreadable", str(error))
    if not generations:
        reason = f"{store.folder}: there is no checkpoint in this folder yet; it must be a daemon's checkpoint.dir"
        return None, FolderProblem("empty", reason)
    problem: FolderProblem | None = None
    for generation in reversed([each for each in generations if each > after]):
        try:
            return restored(generation, store.load(generation)), problem
        except NewerCheckpointError as error:  # an older one would undo what was learned since
            return None, FolderProblem("unreadable", str(error))
        except CheckpointError as error:
            if store.path(generation).exists():  # else it was replaced by newer ones since it was listed
                problem = problem or FolderProblem("damaged", str(error))
    return None, problem


def read_shard(folder: Path, known: Shard | None = None) -> tuple[Shard | None, FolderProblem | None]:
    """Return the newest sound checkpoint of a shard, and why it, or a newer one, does not count; there may be both.

    Args:
        folder: of a daemon's checkpoints.
        known: what was read before, which saves restoring the same model again.
    """
    store = CheckpointStore(folder)
    shard, problem = newest(
        store, lambda generation, found: _shard_of(found, str(store.path(generation)), generation, known)
    )
    if shard is not None and shard.model.is_warming_up:
        problem = FolderProblem("warming_up", f"{folder}: is warming up; it has learned {shard.model.n:,} events")
    elif shard is not None and not shard.n:
        problem = FolderProblem("no_events", f"{folder}: has learned no event of its own source yet")
    return shard, problem


def _shard_of(checkpoint: Checkpoint, origin: str, generation: int, known: Shard | None) -> Shard:
    """Return what a checkpoint holds; of its events only those that its own source brought count as learned.

    Those of `--from-model` do not, so that each event counts once in a model of all shards.
    """
    metadata = checkpoint.metadata
    with restoring(origin):
        digest, n = metadata.get("state_digest"), metadata.get("n")
        if "counters" in metadata:
            n = table_of(table_of(metadata, "counters"), "outcomes").get("learned", 0)
        require(is_count(n), f"counts {shown(n)} events; a count is a whole number from 0 on")
    same = known is not None and (known.generation, known.state_digest) == (generation, digest)
    model = known.model if known is not None and same else model_of(checkpoint, origin)
    return Shard(generation, int(n or 0), list(metadata.get("positions", [])), str(digest), model)


def differing(models: Mapping[str, MixtureOfExperts]) -> dict[str, str]:
    """Return the models that cannot be merged with what most of them agree on, and why.

    Of several groups of the same size the one with the first model counts.

    Args:
        models: by the shards' names.
    """
    if not models:
        return {}
    facts = {name: dict(_facts(model)) for name, model in models.items()}
    groups = {name: json.dumps(own, default=str) for name, own in facts.items()}
    ((largest, _),) = Counter(groups.values()).most_common(1)  # of equal ones the first
    most = facts[next(name for name, group in groups.items() if group == largest)]
    return {name: _first_difference(facts[name], most) for name, group in groups.items() if group != largest}


def _first_difference(own: Mapping[str, object], most: Mapping[str, object]) -> str:
    what = next((what for what in {**most, **own} if own.get(what) != most.get(what)), "a setting")
    has, others = (cut(shown(facts.get(what))) for facts in (own, most))
    return f"{what} is {has}, and {others} in the other shards"


def _facts(model: MixtureOfExperts) -> Iterator[tuple[str, object]]:
    """Yield all that the shards' models must have in common."""
    yield "model.kind", type(model).__name__
    known, changeable = model.options_type.model_fields, model.options.changeable()
    for name, value in model.arguments().items():
        facts = facts_of(known[name]) if name in known else None
        free = name in _FREE or name in changeable or (facts is not None and facts.warm_up_only)
        if facts is None:
            yield f"schema.{name}", list(value or ())
        elif not free:
            yield f"model.{name}", value
    yield "the list of its features", dict(sorted(model.column_kinds.items(), key=lambda column: str(column[0])))
    if not model.is_classifier:  # not each shard need have seen each class
        yield "the list of its outputs", sorted(map(str, model.output_names))
