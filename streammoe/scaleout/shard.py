"""A shard as others see it: the newest sound checkpoint of its folder, read without its lock while its daemon runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from streammoe.checked import is_count, require, restoring, table_of
from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.fields import facts_of
from streammoe.persistence import Checkpoint, NewerCheckpointError, decode, generation_of
from streammoe.ports import Position
from streammoe.scaleout.global_model import are_positions, is_digest
from streammoe.scaleout.places import MissingFileError, Place
from streammoe.text import cut, shown

PROBLEMS = ("empty", "unreadable", "damaged", "newer_format", "warming_up", "no_events", "different", "overlapping")
"""Why a shard's checkpoint does not count."""
ATTEMPTS = 3
"""How often a folder is listed whose daemon removes a checkpoint before it is read."""
_FREE = {"n_experts", "seed", "reservoir"}
"""Arguments that shards of one global model may have different values of, besides those that may change anyway."""


@dataclass(frozen=True)
class Shard:
    """What a shard had learned at a checkpoint."""

    generation: int
    n: int
    """See `streammoe.scaleout.global_model.Contained`, as for the next two."""
    positions: list[Position | None]
    state_digest: str
    model: MixtureOfExperts
    before: int = 0
    """Number of events that the model had learned before those of the source, elsewhere (``--from-model``)."""
    adopted: int = 0
    """Version of the global model that it has adopted last; 0 if there is none."""


class Problem(NamedTuple):
    """Why a shard's checkpoint, its newest one, or a version of the global model does not count."""

    reason: str
    """One of `PROBLEMS`, or of `metrics.FOLLOWER_PROBLEMS`."""
    text: str
    """For the log: the place, and what is wrong."""


class Look(NamedTuple):
    """What there is to see in a shard's folder."""

    shard: Shard | None
    problem: Problem | None
    """There may be both: an earlier checkpoint is sound."""


def look(place: Place, known: Shard | None = None) -> Look:
    """Read the newest sound checkpoint of a folder.

    Args:
        place: the folder of a daemon's checkpoints; the daemon may write and remove some at the same time.
        known: what was read before, which saves restoring the same model again.
    """
    try:
        for _ in range(ATTEMPTS):
            found = _look(place, known)
            if found is not None:
                return found
    except RetriableCheckpointError as error:
        return Look(None, Problem("unreadable", str(error)))
    gone = f"{place.name}: its checkpoints are removed faster than they can be read; raise checkpoint.keep"
    return Look(None, Problem("unreadable", gone))


def _look(place: Place, known: Shard | None) -> Look | None:
    """Read it once; return None if what was listed is there no more."""
    names = {generation_of(Path(name)): name for name in place.names()}
    generations = sorted((generation for generation in names if generation is not None), reverse=True)
    if not generations:
        return Look(
            None,
            Problem(
                "empty",
                f"{place.name}: there is no checkpoint in this folder yet; it must be a daemon's checkpoint.dir",
            ),
        )
    problem: Problem | None = None
    for generation in generations:
        origin = place.file(names[generation])
        try:
            shard = _shard_of(decode(place.read(names[generation]), origin), origin, generation, known)
        except MissingFileError:
            return None  # there is a newer one by now
        except RetriableCheckpointError:
            raise
        except NewerCheckpointError as error:  # an older one would undo what was learned since
            return Look(None, Problem("newer_format", str(error)))
        except CheckpointError as error:
            problem = problem or Problem("damaged", str(error))
            continue
        return Look(shard, _unready(place, shard) or problem)
    return Look(None, problem)


def _unready(place: Place, shard: Shard) -> Problem | None:
    if shard.model.is_warming_up:
        return Problem("warming_up", f"{place.name}: is warming up; it has learned {shard.model.n:,} events")
    if not shard.n:
        return Problem("no_events", f"{place.name}: has learned no event of its own source yet")
    return None


def _shard_of(checkpoint: Checkpoint, origin: str, generation: int, known: Shard | None) -> Shard:
    metadata = checkpoint.metadata
    with restoring(origin):
        positions, digest = metadata.get("positions", []), metadata.get("state_digest")
        require(are_positions(positions), f"positions are {shown(positions)}, not a list of positions")
        require(is_digest(digest), f"state_digest is {shown(digest)}")
        n, contains = own_events(metadata), table_of(metadata, "contains")
        adopted, adopted_n = contains.get("version", 0), contains.get("adopted_n", 0)
        require(is_count(adopted), f"contains.version is {shown(adopted)}, not a whole number from 0 on")
        require(type(adopted_n) is int, f"contains.adopted_n is {shown(adopted_n)}, not a whole number")
    same = known is not None and (known.generation, known.state_digest) == (generation, digest)
    model = known.model if known is not None and same else model_of(checkpoint, origin)
    return Shard(generation, n, positions, str(digest), model, max(model.n - adopted_n - n, 0), adopted)


def own_events(metadata: Mapping[str, Any]) -> int:
    """Return how many events of its own source the model of a checkpoint contains.

    Only those are counted as learned: neither the events of `--from-model` nor those of other shards that came with a
    global model are. So each event counts once in a model of all shards.

    Raises:
        CheckpointError: it is no count.
    """
    n = metadata.get("n")
    if "counters" in metadata:
        n = table_of(table_of(metadata, "counters"), "outcomes").get("learned", 0)
    require(is_count(n), f"counts {shown(n)} events; a count is a whole number from 0 on")
    return int(n)  # type: ignore[arg-type] # checked just above


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
