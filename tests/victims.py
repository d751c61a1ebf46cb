"""Checkpoints of daemons of every kind, and what each must do when an enemy has rewritten it."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np

from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, SourceError, StreammoeError
from streammoe.persistence import CheckpointStore, read_checkpoint
from tests.unit.estimators.damages import quiet

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 3))
Y = np.where(X[:, 0] > 0, X[:, 1], -X[:, 2])


class Victim:
    """A daemon's folder, whose checkpoint was written in the middle of its input."""

    def __init__(self, name, folder, settings, target="y"):
        self.name = name
        self.folder = Path(folder, name)
        self.folder.mkdir()
        labels = (Y > 0).astype(int) if target == "label" else Y
        late = "labels.key" in settings
        for part, rows in (("a", range(60)), ("later", range(60, 120))):
            records = [{"id": str(i), "p": X[i, 0], "q": X[i, 1], target: float(labels[i])} for i in rows]
            come_later = [{"id": record["id"], target: record.pop(target)} for record in records if late]
            records += come_later[:40]
            (self.folder / f"{part}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        self.config = self.folder / "config.toml"
        self.config.write_text(f"""
            source = {{ kind = "file", path = "{self.folder}/?.jsonl", block_bytes = 4096 }}
            schema = {{ target = "{target}", ignore = ["id"] }}
            checkpoint.dir = "{self.folder}/state"
            dead_letters.path = "{self.folder}/refused/letters.jsonl"
            dead_letters.max_ratio = 1
            metrics.enabled = false
            {settings}
        """)
        self.run()
        (self.folder / "later.jsonl").rename(self.folder / "b.jsonl")
        self.checkpoint = read_checkpoint(self.folder / "state")

    def run(self):
        settings = load_settings(self.config, environment={})
        with open_daemon(settings) as running, StopFlag() as stop:
            running.daemon.run(stop)

    def attack(self, data):
        """Look into the folder and start there; what went wrong, which must be a sentence, or ``None``."""
        state = self.folder / "state"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        CheckpointStore(state).path(1).write_bytes(data)
        with quiet():
            with contextlib.suppress(CheckpointError):
                json.dumps(describe_checkpoint(state), indent=2)
            try:
                self.run()
            except (CheckpointError, SourceError) as refused:
                return refused
            except StreammoeError as error:
                # Finite numbers that no learning makes may overflow in the first batch; nothing of it is saved.
                if "not finite" not in str(error):
                    raise
                return error
        return None


def victims(folder):
    """A daemon of each kind."""
    few = "n_experts = 2, warmup = 30"
    yield Victim("regressor", folder, f"model = {{ {few} }}")
    yield Victim("warming-up", folder, "model = { n_experts = 2, warmup = 500 }")
    yield Victim("classifier", folder, f'model = {{ kind = "classifier", {few} }}', target="label")
    yield Victim("joining", folder, f'model = {{ {few} }}\nlabels.key = "id"')
