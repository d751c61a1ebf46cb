"""Records whose values are all in range, and that would yet leave no finite model, amid a batch."""

import numpy as np
import pytest

from streammoe import schedules
from streammoe.daemon.signals import StopFlag
from streammoe.errors import PoisonedModel
from streammoe.pipeline.label_join import LabelJoin
from streammoe.settings import Labels
from tests.unit import daemons
from tests.unit.pipeline.streams import batches_of, event, pipeline

N = 80
HUGE = {"a": 9e49, "w": 1e6, "new": 1.0}
"""Its cube has a square of 5e299."""
FRAGILE = {
    "degree": 3,
    "range_factor": 0.0,
    "prior_strength": 0.0,
    "schedule": schedules.Constant(0.999999),
    "standardize": False,
}


def test_with_joined_labels_the_event_is_set_aside_and_waiting_records_still_wait():
    def joined(records):
        line = pipeline("regressor", schema={"ignore": ("id",), "late_columns": True}, **FRAGILE)
        join, letters = LabelJoin(Labels(key="id"), line.schema), []
        for batch in batches_of(records, "jsonl", (40,)):
            letters += join.process(batch, line).letters
        return line.model.state_digest(), join.pending, [(letter.reason, letter.stage) for letter in letters]

    features, labels = [], []
    for i in range(N):
        held = {"id": i, **event("regressor", i), **(HUGE if i == 60 else {})}
        labels.append({"id": i, "y": held.pop("y"), "w": held.pop("w")})
        features.append(held)
    digest, pending, letters = joined([*features, *labels[:-10]])
    assert (pending, letters) == (10, [("poison", "learn")])
    assert (digest, 11, []) == joined([*features, *(label for label in labels[:-10] if label["id"] != 60)])


@pytest.mark.parametrize("what", ["expert_grams", "log_loss"])
def test_a_poisoned_model_is_never_saved_nor_are_poisoned_scores(what, tmp_path, monkeypatch):
    daemons.enter_small(tmp_path, monkeypatch, 80, warmup=30)
    with daemons.opened() as running:
        running.daemon.run(StopFlag())
        kept = daemons.checkpoints()
        if what == "log_loss":
            running.daemon.state.pipeline.scores.log_loss.total = np.inf
        else:
            running.daemon.model.learner.state.expert_grams[0, 0, 1] = np.inf  # off the diagonal, which no step reads
        with pytest.raises(PoisonedModel) as error:
            running.daemon.checkpoints.save()
    assert error.value.exit_code == 7
    assert daemons.checkpoints() == kept
