"""Shards' folders for tests, as daemons leave them, and a reduction that takes the model of the largest weight."""

import numpy as np

from streammoe import MoEClassifier, MoERegressor
from streammoe.persistence import CheckpointStore
from streammoe.reduction import Reduced


def learned(draw=1, n=30, kind=MoERegressor, n_experts=2, columns=("a", "b"), **options):
    """Return a model that has learned n events, with a mixture from the first one on."""
    model = kind(n_experts=n_experts, **{"warmup": 0, **options})
    X = np.random.default_rng(draw).normal(size=(n, len(columns)))
    y = np.where(X[:, 0] > 0, "a", "b") if kind is MoEClassifier else X[:, 0] - X[:, -1]
    model.learn_array(X, y, feature_names=list(columns))
    return model


class Daemon:
    """One that writes checkpoints into its folder; its source's position is the number of its events."""

    def __init__(self, folder, model=None, n=None, **metadata):
        self.store = CheckpointStore(folder)
        self.model = model or learned()
        self.n = self.model.n if n is None else n
        self.metadata = metadata
        folder.mkdir(parents=True, exist_ok=True)

    def save(self):
        metadata = {
            **self.model.describe(),
            "positions": [self.position],
            "counters": {"outcomes": {"learned": self.n}},
            **self.metadata,
        }
        return self.store.save(self.model.arrays(), metadata)

    @property
    def position(self):
        return {"kind": "kafka", "offset": self.n}

    def learn(self, n=1):
        """Learn n events more, and write a checkpoint."""
        for i in range(n):
            self.model.learn_one({"a": 0.1 * i, "b": 0.2}, 0.3)
        self.n += n
        return self.save()

    def path(self, generation):
        return self.store.path(generation)


def damage(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


class Largest:
    """A reduction that notes its calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, models, *, n_experts, weights, names, n):
        self.n = n
        self.calls.append(([model.n for model in models], weights))
        best = max(range(len(models)), key=lambda index: weights[index])
        return Reduced(models[best], 0.5 * np.arange(len(models)))
