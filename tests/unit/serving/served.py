"""Servers of predictions by models that have learned what tests need."""

import copy
import random
import time
from contextlib import closing, contextmanager

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.pipeline.schema import Schema
from streammoe.serving.server import PredictionServer
from streammoe.serving.snapshot import Snapshot
from streammoe.settings import ServeSettings

MODEL = "/v2/models/streammoe"


def events(n, seed=0):
    """Events of numbers, truth values, categories and times, some of them missing, with a number."""
    draw = random.Random(seed)
    for i in range(n):
        x = {
            "size": draw.gauss(0, 1),
            "it's <new>": draw.random() < 0.5,
            "colour": draw.choice(["red", "blue"]),
            "when": f"2026-01-{1 + i % 28:02}T12:00:00Z",
        }
        if i > 20 and draw.random() < 0.2:
            x[draw.choice(list(x))] = None
        y = (x["size"] or 0.0) * (2.0 if x["colour"] == "red" else -1.0) + 0.1 * draw.gauss(0, 1)
        yield x, y


def regressor(n=120, **options):
    model = MoERegressor(n_experts=2, warmup=50, **options)
    for x, y in events(n):
        model.learn_one(x, y)
    return model


def of_several_outputs(n=120):
    model = MoEMultiTargetRegressor(n_experts=2, warmup=50)
    for x, y in events(n):
        model.learn_one(x, {"up": y, "down": -y})
    return model


def classifier(n=120):
    model = MoEClassifier(n_experts=2, warmup=50)
    for x, y in events(n):
        model.learn_one(x, "high" if y > 0 else "low")
    return model


def schema_of(model):
    return Schema(("down", "up") if isinstance(model, MoEMultiTargetRegressor) else ("y",))


def snapshot_of(model, positions=()):
    return Snapshot(copy.copy(model), schema_of(model), list(positions), None, time.monotonic())


@contextmanager
def answering(model=None, *, positions=(), problem="", interval=0.9, **settings):
    """A server; by default of a small regressor."""
    with closing(PredictionServer(ServeSettings(port=0, **settings), interval)) as server:
        server.take(snapshot_of(model or regressor(30), positions))
        server.show({"problem": problem})
        yield server
