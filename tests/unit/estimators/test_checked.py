"""Models from checkpoints whose digest is right and whose content is not: each claim is held to something.

That arrays of no model are rejected is among the messages.
"""

import tracemalloc

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.errors import CheckpointError
from tests.unit.estimators.damages import DAMAGES, SHORT, classes, outputs, restored, text


def is_accepted(folder, *arguments, **metadata):
    try:
        restored(folder, *arguments, **metadata)
    except CheckpointError as error:
        return not str(error).isprintable()
    return True


def test_what_was_not_changed_is_restored(tmp_path):
    for model in (*(make() for make, _ in DAMAGES.values()), classes(60), outputs(), MoERegressor()):
        again = restored(tmp_path, model)
        assert again.state_digest() == model.state_digest()
        assert again.chosen_n_experts == model.chosen_n_experts


def test_a_model_that_lacks_any_array_that_there_may_be_is_rejected(tmp_path):
    tried = set()
    for make in [*(make for make, _ in DAMAGES.values()), outputs]:
        model = make()
        names = model.arrays().keys() - tried
        tried |= names
        assert [
            name for name in names if is_accepted(tmp_path, model, lambda arrays, name=name: arrays.pop(name))
        ] == []


def levels(arrays):
    fields = count = 4_000  # a table of 16 million places, from half a megabyte
    names = ["c", *(f"f{i}" for i in range(fields))]
    arrays["encoder.columns"], arrays["encoder.kinds"] = text(names), text(["categorical"] * len(names))
    arrays["encoder.plan"] = text(
        [[0, None], *([0, str(i)] for i in range(count)), *([i + 1, None] for i in range(fields))]
    )


def targets(arrays):
    names = [f"y{i}" for i in range(5_000)]  # of which a covariance would take 200 MB
    arrays["encoder.targets"] = text(names)
    for name in ("target_center", "target_scale", "target_largest"):
        arrays[f"encoder.{name}"] = np.ones(len(names))
    arrays["encoder.target_largest.blocks"] = np.zeros((len(names), 31))
    arrays["encoder.target_largest.filled"] = np.zeros(len(names), dtype=np.int64)


@pytest.mark.parametrize("change", [pytest.param(levels, marks=pytest.mark.slow), targets])  # thousands of columns
def test_a_short_file_asks_for_no_more_memory_than_its_size(change, tmp_path):
    if change is levels:
        names = ("c", *(f"f{i}" for i in range(4_000)))
        model = MoERegressor(**SHORT, categorical=names, max_levels=4_000)
    else:
        model = outputs()
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            restored(tmp_path, model, change)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
