"""Events of every kind, for what the pipeline promises of all of them."""

import math
from collections import Counter
from datetime import UTC, datetime
from itertools import accumulate, cycle, islice, pairwise
from typing import NamedTuple

from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from tests.batches import batch_of

TARGETS = {"regressor": ("y",), "outputs": ("y", "z"), "classifier": ("label",)}
WARM_UP = 30
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def event(kind, i):
    """Return the i-th event: numbers, a category, a time and a weight."""
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


def features_of(held):
    """Return what an estimator takes of an event as `x`."""
    return {name: value for name, value in held.items() if name not in {"w", "y", "z", "label"}}


def batches_of(events, format, sizes=()):
    """Return batches of these sizes, over and over again; outside of jsonl each has the columns of all its events."""
    edges = list(accumulate(islice(cycle(sizes or [len(events)]), len(events)), initial=0))
    parts = [(first, events[first:stop]) for first, stop in pairwise(edges) if first < len(events)]
    return [batch_of(held, format, first) for first, held in parts]


def pipeline(kind, *, schema=None, predictions=None, **arguments):
    """Return a pipeline over events of a kind, with all columns meaning what they should."""
    columns = {"categorical": ("c", "d"), "timestamps": ("t",)}
    estimator = {"regressor": MoERegressor, "outputs": MoEMultiTargetRegressor, "classifier": MoEClassifier}[kind]
    model = estimator(**{"n_experts": 2, "warmup": WARM_UP, "standardize": True, **columns, **arguments})
    if kind == "outputs":
        model.set_targets(TARGETS[kind])
    meanings = {"weight": "w", **{name: frozenset(names) for name, names in columns.items()}}
    scores = ClassificationScores() if kind == "classifier" else PrequentialScores(len(TARGETS[kind]))
    return Pipeline(model, Schema(TARGETS[kind], **{**meanings, **(schema or {})}), scores, predictions)


class Result(NamedTuple):
    """All that became of a stream, apart from the model."""

    outcomes: Counter
    letters: list[tuple[int, str, str]]
    """Row, reason and stage."""
    losses: list[float]


def run(line, events, format="jsonl", sizes=()):
    """Process events, or records as bytes, in batches of these sizes."""
    outcomes, letters, losses, n = Counter(), [], [], line.model.n
    for batch in batches_of(events, format, sizes):
        processed = line.process(batch)
        outcomes.update(processed.outcomes)
        losses += processed.losses.tolist()
        letters += [(letter.location["row"], letter.reason, letter.stage) for letter in processed.letters]
        assert processed.reasons == Counter(letter.reason for letter in processed.letters)
        assert int(processed.bad.sum()) == len(processed.letters)
    assert outcomes.total() == len(events)
    assert outcomes["learned"] == line.model.n - n
    assert line.model.n == line.scores.log_loss.count
    return Result(outcomes, letters, losses)
