"""A daemon that finds a checkpoint whose digest is right and whose content is not."""

import copy
import tracemalloc

import numpy as np
import pytest

from streammoe.commands.inspect import describe_checkpoint
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import CheckpointStore, encode
from tests.fuzz.victims import victims


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    return {victim.name: victim for victim in victims(tmp_path_factory.mktemp("victims"))}


@pytest.fixture
def start(daemons):
    """Starts a daemon after a change to its arrays and metadata; what it says to that."""

    def start(name, change):
        victim = daemons[name]
        arrays = {name: array.copy() for name, array in victim.checkpoint.arrays.items()}
        metadata = copy.deepcopy(victim.checkpoint.metadata)
        change(arrays, metadata)
        return victim.attack(encode(arrays, metadata))

    return start


def setting(*place, value):
    """A change of one place in the metadata."""

    def change(arrays, metadata):
        inner = metadata
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = value

    return change


def without(name):
    def change(arrays, metadata):
        del (metadata if name in metadata else arrays)[name]

    return change


def holding(name, array):
    return lambda arrays, metadata: arrays.update({name: array})


METADATA = {
    "no settings": without("settings"),
    "settings": setting("settings", value=[]),
    "section": setting("settings", "model", value=3),
    "other settings": setting("settings", "model", "seed", value=7),
    "escapes": setting("settings", "model", "seed", value="\x1b[2J"),
    "no positions": without("positions"),
    "two positions": setting("positions", value=[{}, {}]),
    "position": setting("positions", value=["a.csv"]),
    "no counters": setting("counters", value={}),
    "negative": setting("counters", "outcomes", "learned", value=-1),
    "half": setting("counters", "reasons", value={"malformed": 0.5}),
    "endless": setting("counters", "outcomes", "learned", value=10**400),
    "runs": setting("runs", value={"a": "b"}),
    "replayed": setting("replayed", value={"file": [1]}),
    "transactional": setting("transactional", value="no"),
    "no guard": without("guard.latest"),
    "guard": holding("guard.latest", np.zeros(3)),
    "scores": setting("scores", value=[]),
    "average": setting("scores", "log_loss", value=[]),
    "part": setting("scores", "log_loss", "update", value=1),
    "events": setting("scores", "log_loss", "count", value=-1),
    "square": setting("scores", "squared_error", "total", value=-1.0),
    "weight": setting("scores", "log_loss", "weight", value=0.0),
    "text": setting("scores", "log_loss", "total", value="1"),
    "window": holding("scores.log_loss", np.zeros(3)),
    "windows": holding("scores.squared_error", np.zeros((60, 1))),
    "sums": setting("scores", "target_sums", value=[0.0, 0.0]),
    "no sums": setting("scores", "target_sums", value=[]),
    "targets": setting("scores", "targets", value=-3),
    "kind": setting("model", "kind", value="MoEClassifier"),
    "arguments": setting("model", "arguments", "seed", value=7),
    "features": holding("encoder.columns", np.frombuffer(b'["p", "y"]', np.uint8)),
    "numbers": holding("encoder.columns", np.frombuffer(b'["p", 3]', np.uint8)),
}


LABELS = {
    "ends": holding("labels.ends", np.array([5, 3])),
    "beyond": lambda a, m: a["labels.ends"].__setitem__(-1, 10**6),
    "below": lambda a, m: a["labels.ends"].__setitem__(0, -1),
    "missing": without("labels.refused"),
    "no clock": holding("labels.clock", np.zeros(3, np.int64)),
    "clock": holding("labels.clock", np.array([-1, -1])),
    "places": holding("labels.places", np.frombuffer(b"[1]", np.uint8)),
    "keys": holding("labels.keys", np.frombuffer(b"{}", np.uint8)),
    "records": lambda a, m: a["labels.records"].fill(ord("x")),
}


POSITIONS = {
    "another kind": setting("positions", value=[{"kind": "kafka"}]),
    "no kind": setting("positions", value=[{}]),
    "no files": setting("positions", value=[{"kind": "file"}]),
    "text": setting("positions", value=[{"kind": "file", "files": "a.csv"}]),
    "texts": setting("positions", value=[{"kind": "file", "files": ["a.csv"]}]),
}


def elsewhere(path):
    def change(arrays, metadata):
        metadata["positions"][0]["files"][0] |= {"path": path, "done": False, "offset": 0}

    return change


FILES = {path: elsewhere(path) for path in ("/etc/passwd", "../../secret.csv", "/proc/self/environ", "/dev/zero")}
CHANGES = {
    "metadata": ("regressor", METADATA, CheckpointError),
    "labels": ("joining", LABELS, CheckpointError),
    "position": ("regressor", POSITIONS, SourceError),
    "file": ("regressor", FILES, SourceError),
}


def test_what_was_not_changed_goes_on(start):
    for name in ("regressor", "warming-up", "classifier", "joining"):
        assert start(name, lambda arrays, metadata: None) is None


@pytest.mark.parametrize("of", CHANGES)
def test_what_no_daemon_wrote_is_rejected(of, start):
    name, changes, error = CHANGES[of]
    found = {each: start(name, change) for each, change in changes.items()}
    assert {each for each, said in found.items() if not isinstance(said, error)} == set()
    assert all(str(said).isprintable() for said in found.values())


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
    found = CheckpointStore(daemons["regressor"].folder / "state").latest()
    assert found is not None
    assert found[1].metadata["counters"]["reasons"]["poison"] > 0
    assert all(np.isfinite(array).all() for name, array in found[1].arrays.items() if name.startswith("scores."))


def test_nesting_is_bounded_where_a_checkpoint_is_read(daemons, tmp_path):
    arrays, metadata = daemons["regressor"].checkpoint
    for depth, sound in ((20, True), (100, False)):
        position: object = {"kind": "file"}
        for _ in range(depth):
            position = [position]
        data = encode(arrays, {**metadata, "created": position})
        CheckpointStore(tmp_path).path(1).write_bytes(data)
        if sound:
            assert describe_checkpoint(tmp_path)["created"] == position
        else:
            with pytest.raises(CheckpointError):
                describe_checkpoint(tmp_path)
