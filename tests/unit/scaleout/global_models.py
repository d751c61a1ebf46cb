"""Global models as a reduction would write them: what a shard has learned, and events of another shard after that."""

import copy
import json
from pathlib import Path

import numpy as np

from streammoe import assembly
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.estimators import model_of
from streammoe.persistence import CheckpointStore
from streammoe.scaleout.global_model import Contained, GlobalModel, write
from streammoe.scaleout.places import Folder


def taught(model, rows):
    """Return the model after more events, (a, b, y)."""
    taught = copy.copy(model)
    table = np.array(rows)
    taught.learn_array(table[:, :2], table[:, 2], feature_names=["a", "b"])
    return taught


def publish(version, model, shards, folder="shared"):
    write(Folder(Path(folder)), GlobalModel(version, model, shards))


def contained(generation, metadata):
    """What a model contains of a shard that went on from this checkpoint."""
    n = metadata["counters"]["outcomes"]["learned"]
    return Contained(generation, n, metadata["positions"], metadata["state_digest"], float(n), 0.5, None)


def of_others(n):
    """What it contains of another shard."""
    return Contained(7, n, [{"kind": "x"}], "0" * 64, float(n), 0.5, 0.1)


def reduced(store, rows, generation=None):
    """A model of two shards: a checkpoint of one, by default its newest, and then these events of another.

    Where the first has adopted events of the other before, these are further ones.
    """
    generation = generation or store.generations()[-1]
    checkpoint = store.load(generation)
    model, own = taught(model_of(checkpoint, "here"), rows), contained(generation, checkpoint.metadata)
    return model, {store.folder.name: own, "elsewhere": of_others(model.n - own.n)}


def adopting_daemon(folder):
    """Run a daemon that adopts a global model at the checkpoint after its third batch."""
    folder.mkdir(exist_ok=True)
    rows = np.random.default_rng(1).normal(size=(400, 2)).round(4).tolist()
    lines = [json.dumps({"a": a, "b": b, "y": a - b}) for a, b in rows]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    tables = {
        "source": {"kind": "file", "path": str(folder / "data.jsonl"), "block_bytes": 4096},
        "schema": {"target": "y"},
        "model": {"n_experts": 2, "warmup": {"size": 40, "restarts": 1}},
        "checkpoint": {"dir": str(folder / "state"), "every_events": 1},
        "dead_letters": {"path": str(folder / "letters.jsonl")},
        "guard": {"on_jump": "stop"},
        "metrics": {"enabled": False},
        "global": {"path": str(folder / "shared"), "every": 1e6, "adopt": True},
    }
    batches = []

    def follow(progress):
        batches.append(progress)
        if len(batches) == 4:
            publish(1, *reduced(CheckpointStore(folder / "state"), [(1.0, 2.0, 3.0)]), folder / "shared")
            running.daemon._observer._reader.look()

    with assembly.open_daemon(settings_from(tables, "test"), on_batch=follow) as running:
        running.daemon.run(StopFlag())
