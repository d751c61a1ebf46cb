"""Records whose values are all in range, and that would yet leave no finite model, amid a batch."""

from contextlib import contextmanager

import numpy as np
import pytest

from streammoe import assembly, configuration, schedules
from streammoe.daemon.signals import StopFlag
from streammoe.errors import PoisonedModel
from streammoe.pipeline.label_join import LabelJoin, Limits
from tests.unit.pipeline.streams import WARM_UP, batches_of, event, pipeline

N = 80
HUGE = {"a": 9e49, "w": 1e6, "new": 1.0}
"""Its cube has a square of 5e299."""
FRAGILE = {
    "degree": 3,
    "range_factor": 0.0,
    "prior_strength": 0.0,
    "schedule": schedules.constant(0.999999),
    "standardize": False,
}


def test_with_joined_labels_the_event_is_set_aside_and_waiting_records_still_wait():
    def joined(records):
        line = pipeline("regressor", schema={"ignore": ("id",), "late_columns": True}, **FRAGILE)
        join, letters = LabelJoin("id", line.schema, Limits(1000)), []
        for batch in batches_of(records, "jsonl", (40,)):
            letters += join.settle(line.process(join.join(batch))).letters
        return line.model.state_digest(), join.pending, [(letter.reason, letter.stage) for letter in letters]

    features, labels = [], []
    for i in range(N):
        held = {"id": i, **event("regressor", i), **(HUGE if i == 60 else {})}
        labels.append({"id": i, "y": held.pop("y"), "w": held.pop("w")})
        features.append(held)
    digest, pending, letters = joined([*features, *labels[:-10]])
    assert (pending, letters) == (10, [("poison", "learn")])
    assert (digest, 11, []) == joined([*features, *(label for label in labels[:-10] if label["id"] != 60)])


# --- the whole daemon -----------------------------------------------------------------------------------------------


@contextmanager
def opened(folder, records):
    """Open a daemon that has learned these records, and yield it with its summary."""
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(batches_of(records, "jsonl")[0].block)
    tables = {
        "source": {"kind": "file", "path": str(folder / "events.jsonl"), "block_bytes": 4096},
        "schema": {"target": "y", "weight": "w", "categorical": ["c"], "timestamps": ["t"], "late_columns": True},
        "model": {"n_experts": 2, "warmup": WARM_UP, **FRAGILE, "schedule": {"kind": "constant", "gamma": 0.999999}},
        "checkpoint": {"dir": str(folder / "state")},
        "metrics": {"enabled": False},
        "predictions": {"kind": "file", "path": str(folder / "predictions.jsonl")},
        "dead_letters": {"path": str(folder / "letters.jsonl")},
    }
    with assembly.open_daemon(configuration.settings_from(tables, "test")) as running:
        yield running.daemon, running.daemon.run(StopFlag())


@pytest.mark.parametrize("what", ["expert_grams", "log_loss"])
def test_a_poisoned_model_is_never_saved_nor_are_poisoned_scores(what, tmp_path):
    folder = tmp_path / "run" / "state"
    with opened(tmp_path / "run", [event("regressor", i) for i in range(N)]) as (running, _):
        kept = {path.name: path.read_bytes() for path in folder.iterdir()}
        if what == "log_loss":
            running.scores.log_loss.total = np.inf
        else:
            running.model.learner.state.expert_grams[0, 0, 1] = np.inf  # off the diagonal, which no step reads
        with pytest.raises(PoisonedModel) as error:
            running.checkpoint()
    assert error.value.exit_code == 7
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
