"""A daemon that finds a checkpoint whose digest is right and whose content is not."""

import copy
import tracemalloc

import numpy as np
import pytest

from streammoe.commands.inspect import describe_checkpoint
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import CheckpointStore, encode
from tests.victims import victims


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    return {victim.name: victim for victim in victims(tmp_path_factory.mktemp("victims"))}


@pytest.fixture
def start(daemons):
    """Starts a daemon after a change to its arrays and metadata, and returns what it raises."""

    def start(name, change):
        victim = daemons[name]
        arrays = {name: array.copy() for name, array in victim.checkpoint.arrays.items()}
        metadata = copy.deepcopy(victim.checkpoint.metadata)
        change(arrays, metadata)
        return victim.attack(encode(arrays, metadata))

    return start


def setting(*path, value):
    """A change of one value in the metadata."""

    def change(arrays, metadata):
        inner = metadata
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value

    return change


def without(name):
    def change(arrays, metadata):
        del (metadata if name in metadata else arrays)[name]

    return change


def holding(name, array):
    return lambda arrays, metadata: arrays.update({name: array})


def reading(path):
    """A change by which the daemon would go on in the middle of another file."""

    def change(arrays, metadata):
        metadata["positions"][0]["files"][0] |= {"path": path, "done": False, "offset": 0}

    return change


def text(data):
    return np.frombuffer(data, np.uint8)


GUARDS = [("sum", "1"), ("high", [None]), ("count", 10**6), ("jumps", -1), ("\x1b[2J", 1)]
METADATA = [
    without("settings"),
    setting("settings", "model", value=3),
    setting("settings", "model", "seed", value=7),
    setting("settings", "model", "seed", value="\x1b[2J"),
    without("positions"),
    setting("positions", value=[{}, {}]),
    setting("counters", value={}),
    setting("counters", "outcomes", "learned", value=-1),
    setting("counters", "reasons", value={"malformed": 0.5}),
    setting("counters", "outcomes", "learned", value=10**400),
    setting("transactional", value="no"),
    *(setting("guard", "jumps", name, value=value) for name, value in GUARDS),
    setting("guard", "saved", value=[[1]]),
    without("guard.latest"),
    holding("guard.latest", np.zeros(3)),
    *(holding("scores", np.full((3, 4), value)) for value in (-1.0, 0.5, 1e17)),
    *(holding("scores", found) for found in (np.ones(4), np.ones((2, 4)), np.zeros((3, 4), np.int64))),
    holding("scores.log_loss", np.zeros(3)),
    setting("scores", "target_sums", value=[0.0, 0.0]),
    setting("scores", "targets", value=-3),
    setting("model", "kind", value="MoEClassifier"),
    setting("model", "arguments", "seed", value=7),
    holding("encoder.columns", text(b'["p", "y"]')),
    holding("encoder.columns", text(b'["p", 3]')),
]
LABELS = [
    *(holding("labels.waiting", text(found)) for found in (b"", b"\x90", b"[" * 10_000)),
    lambda arrays, metadata: arrays["labels.waiting"].fill(ord("x")),
    without("labels.refused"),
    holding("labels.clock", np.array([-1, -1])),
    *(
        holding("labels.origins", text(found))
        for found in (b"", b"\x90", b"\x91\x93\xc4\x01[\xc0\x90", b"\x91" * 10_000)
    ),
]
POSITIONS = [
    *(setting("positions", value=[position]) for position in ({"kind": "kafka"}, {"kind": "file", "files": ["a.csv"]})),
    *(reading(path) for path in ("/etc/passwd", "../../secret.csv", "/dev/zero")),
]
CHANGES = {
    "metadata": ("regressor", METADATA, CheckpointError),
    "labels": ("joining", LABELS, CheckpointError),
    "positions": ("regressor", POSITIONS, SourceError),
}


def test_without_a_change_it_resumes(start):
    for name in ("regressor", "warming-up", "classifier", "joining"):
        assert start(name, lambda arrays, metadata: None) is None


@pytest.mark.parametrize("changed", CHANGES)
def test_what_no_daemon_wrote_is_rejected(changed, start):
    name, changes, error = CHANGES[changed]
    for i, change in enumerate(changes):
        raised = start(name, change)
        assert isinstance(raised, error), i
        assert str(raised).isprintable()


def test_counts_of_classes_ask_for_no_table_beyond_the_classes(start):
    tracemalloc.start()
    try:
        refused = start("classifier", setting("scores", "counts", value=[1] * 20_000))  # of 4,097 such rows: 655 MB
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(refused, CheckpointError)
    assert used < 200_000_000


def test_events_that_are_predicted_without_bound_are_set_aside(start, daemons):
    def change(arrays, metadata):
        arrays["state.average_experts"][...] = 1e308

    assert start("regressor", change) is None
    _, found = CheckpointStore(daemons["regressor"].folder / "state").latest()
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
