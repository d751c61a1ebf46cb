"""Events of every kind, written in every format, for what the pipeline promises of all of them."""

import math
from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.ports import Batch
from streammoe.testing.batches import batch_of

FORMATS = ("csv", "jsonl", "arrow")
TARGETS = {"regressor": ("y",), "outputs": ("y", "z"), "classifier": ("label",)}
KINDS = tuple(TARGETS)
WARM_UP = 40
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


# --- events ---------------------------------------------------------------------------------------------------------


def event(kind, i):
    """The i-th event: numbers, a category, a time and a weight."""
    a, b = math.sin(3 * i), math.cos(5 * i)
    y = round(2 * a if a > 0 else b - 1, 4)
    targets = {
        "regressor": {"y": y},
        "outputs": {"y": y, "z": round(100 * b, 4)},
        "classifier": {"label": "low" if y < -0.5 else "high" if y > 0.5 else "some"},
    }
    return {
        "a": round(a, 4),
        "b": round(b, 4),
        "c": "red" if i % 3 else "green",
        "t": datetime.fromtimestamp(NEW_YEAR + 1800 * i, UTC).isoformat(),
        "w": 0.5 + i % 4,
        **targets[kind],
    }


def files_of(events):
    """The same events in runs of equal keys, as files have them: the columns of a csv file are in its header."""
    files = []
    for held in events:
        if not files or files[-1][-1].keys() != held.keys():
            files.append([])
        files[-1].append(held)
    return files


# --- records --------------------------------------------------------------------------------------------------------


class Stream(NamedTuple):
    """Batches in order, and which event each of their records holds."""

    batches: list[Batch]
    events: list[dict]


def stream_of(events, format, sizes=()):
    """Batches of these sizes, over and over again; in all formats but jsonl a new one where the columns change."""
    batches = []
    files = [list(events)] if format == "jsonl" else files_of(events)
    first, at = 0, 0
    for held in files:
        start = 0
        while start < len(held):
            stop = start + (sizes[at % len(sizes)] if sizes else len(held))
            if format == "arrow":
                stop = start + uniform(held[start:stop])
            stop = min(stop, len(held))
            batches.append(batch_of(held[start:stop], format, first))
            at += 1
            first += stop - start
            start = stop
    return Stream(batches, list(events))


def uniform(events):
    """How many events at the beginning go into one table: a column of it has one type."""
    for i, held in enumerate(events):
        for name, value in held.items():
            types = {type(other[name]) for other in events[: i + 1]} - {type(None)}
            if len(types) > 1 or isinstance(value, list | dict):
                return max(i, 1)
    return len(events)


# --- pipelines ------------------------------------------------------------------------------------------------------


def pipeline(kind, *, schema=None, predictions=None, **arguments):
    """A pipeline over events of a kind, with all columns meaning what they should."""
    columns = {"categorical": ("c", "d"), "timestamps": ("t",)}
    estimator = {"regressor": MoERegressor, "outputs": MoEMultiTargetRegressor, "classifier": MoEClassifier}[kind]
    model = estimator(
        **{"n_experts": 2, "warmup": WARM_UP, "warmup_restarts": 1, "standardize": True, **columns, **arguments}
    )
    if kind == "outputs":
        model.set_targets(TARGETS[kind])
    meanings = {"weight": "w", **{name: frozenset(names) for name, names in columns.items()}}
    scores = ClassificationScores() if kind == "classifier" else PrequentialScores(len(TARGETS[kind]))
    return Pipeline(model, Schema(TARGETS[kind], **{**meanings, **(schema or {})}), scores, predictions)


class Said(NamedTuple):
    """All that became of a stream, apart from the model."""

    outcomes: Counter
    letters: list[tuple[int, str, str]]
    """Row, reason and stage."""
    digests: list[str]
    """Of the model after each batch."""


def run(line, stream):
    outcomes, letters, digests = Counter(), [], []
    for batch in stream.batches:
        processed = line.process(batch)
        outcomes.update(processed.outcomes)
        letters += [(letter.place["row"], letter.reason, letter.stage) for letter in processed.letters]
        assert processed.reasons == Counter(letter.reason for letter in processed.letters)
        assert int(processed.bad.sum()) == len(processed.letters)
        digests.append(line.model.state_digest())
    assert outcomes.total() == len(stream.events)
    assert outcomes["learned"] == line.model.n == line.scores.log_loss.count
    return Said(outcomes, letters, digests)


def run_one(line, held, at):
    """Process one event by itself."""
    return line.process(batch_of([held], "jsonl", at))
