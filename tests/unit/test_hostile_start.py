"""A daemon that finds a checkpoint whose digest is right and whose content is not."""

import copy
import tracemalloc

import numpy as np
import pytest

from streammoe.commands.inspect import describe_checkpoint
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import CheckpointStore, encode
from tests.victims import victims

GONE = object()
ELSEWHERE = [{"path": path, "done": False, "offset": 0} for path in ("/etc/passwd", "../../secret.csv", "/dev/zero")]


def text(data):
    return np.frombuffer(data, np.uint8)


METADATA = {
    "settings": [GONE],
    "settings.model": [3],
    "settings.model.seed": [7, "\x1b[2J"],
    "positions": [GONE, [{}, {}]],
    "counters": [{}],
    "counters.outcomes.learned": [-1, 10**400],
    "counters.reasons": [{"malformed": 0.5}],
    "transactional": ["no"],
    "guard.jumps": [{"sum": "1"}, {"high": [None]}, {"count": 10**6}, {"jumps": -1}, {"\x1b[2J": 1}],
    "guard.saved": [[[1]]],
    "guard.latest": [GONE, np.zeros(3)],
    "scores": [
        *(np.full((3, 4), value) for value in (-1.0, 0.5, 1e17)),
        *(np.ones(4), np.ones((2, 4)), np.zeros((3, 4), np.int64)),
    ],
    "scores.log_loss": [np.zeros(3)],
    "scores.target_sums": [[0.0, 0.0]],
    "scores.targets": [-3],
    "model.kind": ["MoEClassifier"],
    "model.arguments.seed": [7],
    "encoder.columns": [text(b'["p", "y"]'), text(b'["p", 3]')],
}
LABELS = {
    "labels.waiting": [
        *map(text, (b"", b"\x90", b"[" * 10_000)),
        lambda waiting: np.full_like(waiting, ord("x")),
    ],
    "labels.refused": [GONE],
    "labels.clock": [np.array([-1, -1])],
    "labels.origins": [*map(text, (b"", b"\x90", b"\x91\x93\xc4\x01[\xc0\x90", b"\x91" * 10_000))],
}
POSITIONS = {"positions": [[{"kind": "kafka"}], [{"kind": "file", "files": ["a.csv"]}]]}
POSITIONS["positions.0.files.0"] = ELSEWHERE
"""Places in the metadata, or arrays, and what is there instead; of a dict only those values."""


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    return {victim.name: victim for victim in victims(tmp_path_factory.mktemp("victims"))}


def changed(checkpoint, place, value):
    """The bytes of a checkpoint with another value."""
    arrays, metadata = dict(checkpoint.arrays), copy.deepcopy(dict(checkpoint.metadata))
    *path, name = place.split(".")
    inner = metadata
    if (place in arrays and not isinstance(value, dict | list)) or isinstance(value, np.ndarray):
        inner, name = arrays, place
    else:
        for step in path:
            inner = inner[int(step) if step.isdigit() else step]
        name = int(name) if name.isdigit() else name
    if value is GONE:
        del inner[name]
    elif isinstance(value, dict) and isinstance(inner[name], dict) and value:
        inner[name].update(value)
    else:
        inner[name] = value(inner[name]) if callable(value) else value
    return encode(arrays, metadata)


def test_without_a_change_it_resumes(daemons):
    for name in ("regressor", "warming-up", "classifier", "joining"):
        assert daemons[name].attack(encode(*daemons[name].checkpoint)) is None


@pytest.mark.parametrize(
    ("name", "changes", "error"),
    [
        ("regressor", METADATA, CheckpointError),
        ("joining", LABELS, CheckpointError),
        ("regressor", POSITIONS, SourceError),
    ],
    ids=["metadata", "labels", "positions"],
)
def test_what_no_daemon_wrote_is_rejected(name, changes, error, daemons):
    for place, values in changes.items():
        for value in values:
            raised = daemons[name].attack(changed(daemons[name].checkpoint, place, value))
            assert isinstance(raised, error), (place, value)
            assert str(raised).isprintable()


def test_counts_of_classes_ask_for_no_table_beyond_the_classes(daemons):
    victim = daemons["classifier"]
    tracemalloc.start()
    try:
        refused = victim.attack(changed(victim.checkpoint, "scores.counts", [1] * 20_000))  # of 4,097 such rows: 655 MB
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(refused, CheckpointError)
    assert used < 200_000_000


def test_events_that_are_predicted_without_bound_are_set_aside(daemons):
    victim = daemons["regressor"]
    endless = changed(victim.checkpoint, "state.average_experts", lambda array: np.full_like(array, 1e308))
    assert victim.attack(endless) is None
    _, found = CheckpointStore(victim.folder / "state").latest()
    assert found.metadata["counters"]["reasons"]["poison"] > 0
    assert all(np.isfinite(array).all() for name, array in found.arrays.items() if name.startswith("scores."))


def test_nesting_is_bounded_where_a_checkpoint_is_read(daemons, tmp_path):
    arrays, metadata = daemons["regressor"].checkpoint
    for depth, is_sound in ((20, True), (100, False)):
        position: object = {"kind": "file"}
        for _ in range(depth):
            position = [position]
        CheckpointStore(tmp_path).path(1).write_bytes(encode(arrays, {**metadata, "created": position}))
        if is_sound:
            assert describe_checkpoint(tmp_path)["created"] == position
        else:
            with pytest.raises(CheckpointError):
                describe_checkpoint(tmp_path)
