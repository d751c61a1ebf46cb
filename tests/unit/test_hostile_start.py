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


@pytest.mark.parametrize("name", ["regressor", "warming-up", "classifier", "joining"])
def test_what_was_not_changed_goes_on(start, name):
    assert start(name, lambda arrays, metadata: None) is None


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
    "no settings": (without("settings"), "no daemon wrote its checkpoint"),
    "settings": (setting("settings", value=[]), r"settings is \[\], and must be a table"),
    "section": (setting("settings", "model", value=3), "model is 3, and must be a table"),
    "other settings": (setting("settings", "model", "seed", value=7), "model.seed was 7 and is 0 now"),
    "escapes": (setting("settings", "model", "seed", value="\x1b[2J"), r"model.seed was '\\x1b\[2J' and is 0"),
    "no positions": (without("positions"), "positions is nothing, and must be a list of one table"),
    "two positions": (setting("positions", value=[{}, {}]), "positions is .* must be a list of one table"),
    "position": (setting("positions", value=["a.csv"]), "positions is .* must be a list of one table"),
    "no counters": (setting("counters", value={}), "counters lacks outcomes"),
    "negative": (setting("counters", "outcomes", "learned", value=-1), "outcomes counts -1 of 'learned'"),
    "half": (setting("counters", "reasons", value={"malformed": 0.5}), "reasons counts 0.5 of 'malformed'"),
    "endless": (setting("counters", "outcomes", "learned", value=10**400), "outcomes counts 1000"),
    "runs": (setting("runs", value={"a": "b"}), "runs counts 'b' of 'a'"),
    "replayed": (setting("replayed", value={"file": [1]}), r"replayed names \[1\] of 'file', which are no texts"),
    "transactional": (setting("transactional", value="no"), "transactional is neither true nor false"),
    "no guard": (without("guard.latest"), "array guard.latest is missing"),
    "guard": (holding("guard.latest", np.zeros(3)), "array guard.latest is float64"),
    "scores": (setting("scores", value=[]), r"scores is \[\], and must be a table"),
    "average": (setting("scores", "log_loss", value=[]), r"log_loss is \[\], and must be a table"),
    "part": (setting("scores", "log_loss", "update", value=1), "scores.log_loss holds .*'update'.*, and must hold"),
    "events": (setting("scores", "log_loss", "count", value=-1), "scores.log_loss counts -1 events"),
    "square": (setting("scores", "squared_error", "total", value=-1.0), "scores.squared_error has -1.0 for its total"),
    "weight": (setting("scores", "log_loss", "weight", value=0.0), "scores.log_loss has events and no weight"),
    "text": (setting("scores", "log_loss", "total", value="1"), "scores.log_loss has '1' for its total"),
    "window": (holding("scores.log_loss", np.zeros(3)), r"array scores.log_loss is float64 of shape \(3,\); here it"),
    "windows": (holding("scores.squared_error", np.zeros((60, 1))), "array scores.squared_error is float64 of shape"),
    "sums": (setting("scores", "target_sums", value=[0.0, 0.0]), r"scores.squared_error.0 holds \[\], and must hold"),
    "no sums": (setting("scores", "target_sums", value=[]), r"scores has the sums \[\]"),
    "targets": (setting("scores", "targets", value=-3), "scores has the sums .* of -3 targets"),
    "kind": (setting("model", "kind", value="MoEClassifier"), "no version|array encoder.classes is missing"),
    "arguments": (setting("model", "arguments", "seed", value=7), "other arguments .*: seed"),
    "features": (
        holding("encoder.columns", np.frombuffer(b'["p", "y"]', np.uint8)),
        r"its model has features that are none, as its settings say: \['y'\]",
    ),
    "numbers": (
        holding("encoder.columns", np.frombuffer(b'["p", 3]', np.uint8)),
        "its model has features whose names are no texts",
    ),
}


@pytest.mark.parametrize("name", METADATA)
def test_bookkeeping_that_is_none_is_refused(start, name):
    change, message = METADATA[name]
    refused = start("regressor", change)
    assert isinstance(refused, CheckpointError)
    assert str(refused).isprintable()
    with pytest.raises(CheckpointError, match=message):
        raise refused


LABELS = {
    "ends": (holding("labels.ends", np.array([5, 3])), "labels.numbers is|labels.ends does not divide"),
    "beyond": (lambda a, m: a["labels.ends"].__setitem__(-1, 10**6), "labels.ends does not divide the"),
    "below": (lambda a, m: a["labels.ends"].__setitem__(0, -1), "labels.ends holds values outside"),
    "missing": (without("labels.refused"), "array labels.refused is missing"),
    "no clock": (holding("labels.clock", np.zeros(3, np.int64)), "array labels.clock is int64 of shape"),
    "clock": (holding("labels.clock", np.array([-1, -1])), "array labels.clock counts -1 records"),
    "places": (holding("labels.places", np.frombuffer(b"[1]", np.uint8)), "no version of streammoe writes"),
    "keys": (holding("labels.keys", np.frombuffer(b"{}", np.uint8)), "no version of streammoe writes"),
    "records": (lambda a, m: a["labels.records"].fill(ord("x")), "no version of streammoe writes"),
}


@pytest.mark.parametrize("name", LABELS)
def test_waiting_records_that_are_none_are_refused(start, name):
    change, message = LABELS[name]
    refused = start("joining", change)
    assert isinstance(refused, CheckpointError)
    with pytest.raises(CheckpointError, match=message):
        raise refused


POSITIONS = {
    "another kind": ({"kind": "kafka"}, "is of kind 'kafka', and source.kind is 'file'"),
    "no kind": ({}, "is of kind None"),
    "no files": ({"kind": "file"}, "is not one of files"),
    "text": ({"kind": "file", "files": "a.csv"}, "is not one of files"),
    "texts": ({"kind": "file", "files": ["a.csv"]}, "is not one of files"),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_that_is_none_is_refused(start, name):
    position, message = POSITIONS[name]
    refused = start("regressor", setting("positions", value=[position]))
    assert isinstance(refused, SourceError)
    with pytest.raises(SourceError, match=message):
        raise refused


@pytest.mark.parametrize("path", ["/etc/passwd", "../../secret.csv", "/proc/self/environ", "/dev/zero"])
def test_a_checkpoint_does_not_choose_what_is_read(start, path):
    def change(arrays, metadata):
        metadata["positions"][0]["files"][0] |= {"path": path, "done": False, "offset": 0}

    refused = start("regressor", change)
    assert isinstance(refused, SourceError)
    assert "which source.path" in str(refused)


def test_counts_of_classes_ask_for_no_table_beyond_the_classes(start):
    tracemalloc.start()
    try:
        refused = start("classifier", setting("scores", "counts", value=[1] * 100_000))  # of 4,097 such rows: 3 GB
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "scores counts 100000 classes, and the model knows 2" in str(refused)
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
