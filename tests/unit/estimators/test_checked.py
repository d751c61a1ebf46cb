"""Models from checkpoints whose digest is right and whose content is not: each claim that is held to something."""

import json
import tracemalloc

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.errors import CheckpointError
from streammoe.persistence import encode

SHORT = {"n_experts": 2, "warmup": 40, "warmup_restarts": 1}
X = np.random.default_rng(0).normal(size=(60, 2))


def learned():
    model = MoERegressor(**SHORT)
    model.learn_array(X, X[:, 0])
    return model


def warming():
    model = MoERegressor(**SHORT | {"warmup": 500}, categorical=("c",), timestamps=("t",), max_levels=3)
    for i in range(20):
        model.learn_one({"a": X[i, 0], "c": "rgb"[i % 3], "t": 1e9 + i}, X[i, 1])
    return model


def classes(events=20):
    model = MoEClassifier(**SHORT)
    model.learn_array(X[:events], np.array(["no", "yes"])[(X[:events, 0] > 0).astype(int)])
    return model


def outputs():
    model = MoEMultiTargetRegressor(**SHORT | {"warmup": 500}, covariance="full")
    model.learn_array(X, X)
    return model


@pytest.fixture
def restored(tmp_path):
    """Loads a model after a change to its arrays and to its description."""

    def restored(model, change=lambda arrays: None, /, **metadata):
        arrays = {name: array.copy() for name, array in model.arrays().items()}
        change(arrays)
        path = tmp_path / "model.safetensors"
        path.write_bytes(encode(arrays, {**model.describe(), **metadata}))
        return load(path)

    return restored


def text(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


@pytest.mark.parametrize("make", [learned, warming, classes, outputs, lambda: classes(60), MoERegressor])
def test_what_was_not_changed_is_restored(restored, make):
    model = make()
    assert restored(model).state_digest() == model.state_digest()


STATE = {
    "missing": (lambda a: a.pop("state.gate"), "array state.gate is missing"),
    "unknown": (lambda a: a.update({"state.more": np.zeros(1)}), r"no such model: \['state.more'\]"),
    "both": (lambda a: a.update({"warmup.X": np.zeros((0, 2))}), r"no such model: \['warmup.X'\]"),
    "wider": (lambda a: a.update({"state.gate": np.zeros((1, 8))}), r"state.gate is float64 of shape \(1, 8\); here"),
    "narrower": (lambda a: a.update({"state.experts": np.zeros((2, 1, 2))}), "state.experts is float64 of shape"),
    "flat": (lambda a: a.update({"state.expert_grams": a["state.expert_grams"].ravel()}), "state.expert_grams is"),
    "huge and empty": (lambda a: a.update({"state.gate": np.empty((0, 2**40))}), "state.gate is float64 of shape"),
    "whole numbers": (lambda a: a.update({"state.masses": np.ones(2, np.int64)}), "state.masses is int64"),
    "NaN": (lambda a: a["state.experts"].fill(np.nan), "state.experts holds NaN or infinity"),
    "infinity": (lambda a: a["state.gate_gram"].fill(np.inf), "state.gate_gram holds NaN or infinity"),
    "negative count": (lambda a: a["state.n"].fill(-1), "state.n holds values outside of 0 to"),
    "endless count": (lambda a: a["state.n"].fill(2**63 - 1), "state.n holds values outside of 0 to"),
    "no decay": (lambda a: a["state.decay"].fill(0.0), "state.decay is 0"),
    "growth": (lambda a: a["state.decay"].fill(2.0), "state.decay holds values outside of 0 to 1"),
    "heavy prior": (lambda a: a["state.prior_weight"].fill(2.0), "state.prior_weight holds values outside of 0 to 1"),
    "negative mass": (lambda a: a["state.masses"].__setitem__(0, -1.0), "state.masses holds values outside of 0"),
    "no mass": (lambda a: a["state.masses"].fill(0.0), "state.masses is all 0"),
    "no variance": (lambda a: a["state.variances"].fill(0.0), "state.variances holds variances that are not above 0"),
    "no average": (lambda a: a["state.average_variances"].fill(-1.0), "state.average_variances holds variances that"),
    "residual": (lambda a: a.update({"diagnostics.residual": np.zeros(3)}), r"diagnostics.residual is .* shape \(3,\)"),
    "columns": (lambda a: a.update({"encoder.columns": text(["x0", "x0"])}), "encoder.columns holds a name twice"),
    "column": (lambda a: a.update({"encoder.columns": text(["x0", None])}), "encoder.columns holds None"),
    "no list": (lambda a: a.update({"encoder.columns": text({"x0": 1})}), "encoder.columns is .* must be a JSON list"),
    "no JSON": (lambda a: a.update({"encoder.columns": np.zeros(3, np.uint8)}), "holds what no version .* writes"),
    "deep": (lambda a: a.update({"encoder.columns": np.full(9999, ord("["), np.uint8)}), "RecursionError"),
    "more columns": (lambda a: a.update({"encoder.columns": text(["x0", "x1", "x2"])}), "array encoder.fill is"),
    "no scale": (lambda a: a["encoder.target_scale"].fill(0.0), "encoder.target_scale holds scales that are not above"),
    "range": (lambda a: a["encoder.largest"].fill(-1.0), "encoder.largest holds values outside"),
}


@pytest.mark.parametrize("name", STATE)
def test_a_state_that_is_none_is_refused(restored, name):
    change, message = STATE[name]
    with pytest.raises(CheckpointError, match=f"model.safetensors: .*{message}.*restore a copy that you trust"):
        restored(learned(), change)


def buffered(name, at, value):
    return lambda a: a[name].__setitem__(at, value)


WARMING = {
    "out of range": (buffered("warmup.X", (0, 0), 1e300), "warmup.X holds values of 'a' outside of"),
    "a code beyond": (buffered("warmup.X", (0, 1), 3.0), "warmup.X holds values of 'c' outside of -1 to 2"),
    "half a code": (buffered("warmup.X", (0, 1), 0.5), "warmup.X holds what is no code of 'c'"),
    "a time beyond": (buffered("warmup.X", (0, 2), 1e15), "warmup.X holds values of 't' outside of"),
    "infinite target": (buffered("warmup.Y", (0, 0), np.inf), "warmup.Y holds NaN or infinity"),
    "no target": (buffered("warmup.Y", (0, 0), np.nan), "warmup.Y holds NaN or infinity"),
    "no weight": (buffered("warmup.weights", 0, 0.0), "warmup.weights holds weights that are not above 0"),
    "fewer rows": (lambda a: a.update({"warmup.X": a["warmup.X"][1:]}), "warmup.X is float64 of shape"),
    "kinds": (lambda a: a.update({"encoder.kinds": text(["numeric"])}), "encoder.kinds holds"),
    "another kind": (
        lambda a: a.update({"encoder.kinds": text(["numeric", "numeric", "timestamp"])}),
        "c: is numeric in the checkpoint and categorical here",
    ),
    "level of a number": (lambda a: a.update({"encoder.plan": text([[0, None], [0, "x"]])}), "which is no new level"),
    "level twice": (
        lambda a: a.update({"encoder.plan": text([[0, None], [1, None], [1, "r"], [1, "r"], [2, None]])}),
        "which is no new level",
    ),
    "levels": (
        lambda a: a.update({"encoder.plan": text([[0, None], [1, None], *([1, str(i)] for i in range(4)), [2, None]])}),
        "which is no new level",
    ),
    "field twice": (lambda a: a.update({"encoder.plan": text([[0, None], [0, None]])}), "where field 1 is due"),
    "field beyond": (
        lambda a: a.update({"encoder.plan": text([[0, None], [1, None], [2, None], [3, None]])}),
        r"\[3, None\] where field 3 is due|writes \(.IndexError",
    ),
    "fields": (lambda a: a.update({"encoder.plan": text([[0, None]])}), "encoder.plan has 1 of the 3 fields"),
}


@pytest.mark.parametrize("name", WARMING)
def test_a_buffer_that_is_none_is_refused(restored, name):
    change, message = WARMING[name]
    with pytest.raises(CheckpointError, match=message):
        restored(warming(), change)


@pytest.mark.parametrize("value", [2.0, -1.0, 0.5, np.nan])
def test_an_index_of_no_class_is_refused(restored, value):
    with pytest.raises(CheckpointError, match=r"warmup\.Y holds"):
        restored(classes(), buffered("warmup.Y", (0, 0), value))


@pytest.mark.parametrize("labels", [["no"], ["no", "no"], ["no", None], [["no"], "yes"], {"no": 1}, "no"])
def test_labels_that_are_none_are_refused(restored, labels):
    with pytest.raises(CheckpointError):
        restored(classes(), lambda a: a.update({"encoder.classes": text(labels)}))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("MoERegressor", "TypeError|AttributeError"),
        ({}, "KeyError: 'kind'"),
        ({"kind": "MoERegressor", "arguments": {}}, "KeyError: 'schedule'"),
        ({"kind": "os.system", "arguments": {}}, "holds a 'os.system', which this version does not know"),
        ({"kind": ["MoERegressor"], "arguments": {}}, "TypeError"),
        ({"kind": "MoERegressor", "arguments": {"schedule": None, "__class__": 1}}, "TypeError: .*__class__"),
        ({"kind": "MoERegressor", "arguments": {"schedule": None, "n_experts": -1}}, "ConfigError: n_experts"),
        ({"kind": "MoERegressor", "arguments": {"schedule": {"kind": "eval"}}}, "ConfigError: schedule kind must be"),
        ({"kind": "MoERegressor", "arguments": {"schedule": None, "degree": 10**400}}, "ConfigError: degree"),
        ({"kind": "MoERegressor", "arguments": {"schedule": None, "n_experts": 10**12}}, "ConfigError: n_experts"),
    ],
)
def test_a_description_of_no_model_is_refused(restored, model, message):
    with pytest.raises(CheckpointError, match=message):
        restored(learned(), model=model)


# --- a short file that asks for much memory -------------------------------------------------------------------------

MOST_BYTES = 200_000_000


def peak(call):
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as refused:
            call()
        return tracemalloc.get_traced_memory()[1], str(refused.value)
    finally:
        tracemalloc.stop()


def test_levels_ask_for_no_table_beyond_a_bound(restored):
    fields, levels = 8_000, 8_000  # a table of 64 million places, from a megabyte
    names = ["c", *(f"f{i}" for i in range(fields))]
    model = MoERegressor(**SHORT, categorical=tuple(names), max_levels=levels)
    plan = [[0, None], *([0, str(i)] for i in range(levels)), *([i + 1, None] for i in range(fields))]

    def change(arrays):
        arrays["encoder.columns"], arrays["encoder.plan"] = text(names), text(plan)
        arrays["encoder.kinds"] = text(["categorical"] * len(names))

    used, message = peak(lambda: restored(model, change))
    assert "encoder.plan has levels for a table of 64008000 places" in message
    assert used < MOST_BYTES


def test_outputs_ask_for_no_matrices_before_they_are_there(restored):
    names = [f"y{i}" for i in range(10_000)]  # of which a covariance would take 800 MB

    def change(arrays):
        arrays["encoder.targets"] = text(names)
        for name in ("target_center", "target_scale", "target_largest"):
            arrays[f"encoder.{name}"] = np.ones(len(names))

    used, message = peak(lambda: restored(outputs(), change))
    assert "warmup.recursive." in message
    assert used < MOST_BYTES
