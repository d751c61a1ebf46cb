"""Rows of predictions: their files, their intervals, and what a pipeline writes into them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pyarrow import parquet

from streammoe.distributions import mixture_of
from streammoe.errors import CheckpointError
from streammoe.noise import NORMAL, RoundedLaplace, StudentT
from streammoe.pipeline import predictions as predictions_module
from streammoe.pipeline.pipeline import PredictionWriter
from streammoe.pipeline.predictions import prediction_sink
from streammoe.quantiles import mixture_intervals
from tests.unit.pipeline.streams import TARGETS, event, features_of, pipeline, run
from tests.unit.pipeline.written_rows import lines, names_in, rows_from, write

VALUES = np.array([[0.0, 1.0], [2.0, 3.0]])
FULL = rows_from(
    intervals=np.array([[[0.0, 1.0]], [[-1.0, 2.5]]]),
    gate=np.array([[0.5, 0.5], [1.0, math.nan]]),
    losses=np.array([0.25, math.nan]),
)
SEVERAL = rows_from(
    outputs=("y", "z"),
    predictions=VALUES,
    targets=np.array([[1.0, 2.0], [math.nan, math.nan]]),
    intervals=np.stack([VALUES - 1.0, VALUES + 1.0], axis=2),
)
LABELS = rows_from(
    predictions=["cat", None],
    targets=[None, "dog"],
    classes=("cat", "dog"),
    probabilities=np.array([[0.75, 0.25], [0.0, 0.0]]),
)
OBJECTS = {
    "one output": (
        FULL,
        {"prediction": 0.5, "interval": [0.0, 1.0], "target": 1.0, "loss": 0.25, "gate": [0.5, 0.5]},
        {"prediction": 1.5, "interval": [-1.0, 2.5], "target": None, "loss": None, "gate": [1.0, None]},
    ),
    "several outputs": (
        SEVERAL,
        {"prediction": {"y": 0, "z": 1}, "interval": {"y": [-1, 1], "z": [0, 2]}, "target": {"y": 1, "z": 2}},
        {"prediction": {"y": 2, "z": 3}, "interval": {"y": [1, 3], "z": [2, 4]}, "target": None},
    ),
    "classes": (
        LABELS,
        {"prediction": "cat", "target": None, "probabilities": {"cat": 0.75, "dog": 0.25}},
        {"prediction": None, "target": "dog", "probabilities": {"cat": 0.0, "dog": 0.0}},
    ),
}


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTS)
def test_lines_and_parts_hold_the_same_rows(tmp_path, name):
    rows, *expected = OBJECTS[name]
    for i, row in enumerate(expected):
        row |= {"place": {"path": "a.csv", "offset": 10 * i}, "model_version": i}
    write(tmp_path / "new" / "out.jsonl", rows)
    assert lines(tmp_path / "new" / "out.jsonl") == expected
    write(tmp_path / "parts" / "out.parquet", rows)
    assert parquet.read_table(tmp_path / "parts").to_pylist(maps_as_pydicts="strict") == expected


def test_each_flush_leaves_a_whole_part_named_by_its_first_version_and_replaces_none(tmp_path):
    sink = prediction_sink(tmp_path / "out.parquet", "parquet")
    sink.write(rows_from(0))
    sink.write(rows_from(2))
    assert names_in(tmp_path) == []
    sink.flush()
    sink.flush()
    sink.write(rows_from(4))
    sink.flush()
    sink.write(rows_from(n=0))
    sink.flush()
    sink.write(rows_from(6))
    sink.close()
    assert parquet.read_table(tmp_path)["model_version"].to_pylist() == list(range(6))
    # Events that are not learned leave the version as it is, so that it names several parts.
    for i in (6, 8):
        write(tmp_path / "out.parquet", rows_from(i, versions=np.array([4, 4])))
    names = [f"out-00000000000{name}.parquet" for name in ("0", "4", "4_1", "4_2")]
    assert names_in(tmp_path) == names
    assert [parquet.read_table(tmp_path / name)["prediction"][0].as_py() for name in names] == [0.5, 4.5, 6.5, 8.5]


def test_classes_may_grow_within_a_part_and_places_of_another_form_begin_a_new_one(tmp_path):
    none = replace(LABELS, classes=(), probabilities=np.empty((2, 0)))
    more = replace(LABELS, classes=("cat", "dog", "eel"), probabilities=np.full((2, 3), 0.25))
    elsewhere = [{"topic": "t", "partition": 0, "offset": i} for i in range(2)]
    write(tmp_path / "out.parquet", none, LABELS, more, replace(LABELS, places=elsewhere, versions=np.array([9, 9])))
    first, second = (parquet.read_table(tmp_path / name) for name in names_in(tmp_path))
    found = first["probabilities"].to_pylist(maps_as_pydicts="strict")
    assert found[::2] == [{}, {"cat": 0.75, "dog": 0.25}, {"cat": 0.25, "dog": 0.25, "eel": 0.25}]
    assert second["place"].to_pylist() == elsewhere


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    left = tmp_path / ".out[1]-000000000003.parquet.0123.tmp"
    others = [tmp_path / ".out1-000000000003.parquet.0123.tmp", tmp_path / "out[1].tmp"]
    for path in (left, *others):
        path.write_bytes(b"PAR1")
    prediction_sink(tmp_path / "out[1].parquet", "parquet").close()
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_parts_that_cannot_be_written_wait_and_stop_learning_only_when_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_module, "MOST_ROWS", 4)
    attempts = []

    def full(path, data):
        attempts.append(path)
        raise OSError(28, "No space left on device")

    sink = prediction_sink(tmp_path / "out.parquet", "parquet")
    with monkeypatch.context() as patched:
        patched.setattr(predictions_module.durable, "replace", full)
        sink.write(rows_from(0))
        assert not sink.overdue
        for i in range(2, 10, 2):
            sink.write(rows_from(i))
        assert sink.overdue
        assert len(attempts) == 1, "between flushes it is not tried again and again"
        with pytest.raises(CheckpointError) as failed:
            sink.flush()
        assert failed.value.retriable
    assert names_in(tmp_path) == []
    sink.flush()
    assert not sink.overdue
    assert parquet.read_table(tmp_path)["model_version"].to_pylist() == list(range(10))
    assert [parquet.read_table(tmp_path / name).num_rows for name in names_in(tmp_path)] == [4, 4, 2]


def test_a_folder_that_was_removed_is_made_again_for_the_next_part(tmp_path):
    sink = prediction_sink(tmp_path / "rows" / "out.parquet", "parquet")
    (tmp_path / "rows").rmdir()
    sink.write(rows_from())
    sink.flush()
    assert parquet.read_table(tmp_path / "rows").num_rows == 2


# --- intervals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [NORMAL, StudentT(2.5), RoundedLaplace(0.1)], ids=str)
def test_the_ends_of_an_interval_are_quantiles_and_there_are_none_without_a_prediction(law):
    rng = np.random.default_rng(1)
    for K, level in ((3, 0.9), (1, 0.5), (2, 0.9999)):
        shares, means = rng.dirichlet(np.full(K, 0.5), 5), rng.normal(scale=10.0, size=(5, K, 2))
        squares = 10.0 ** rng.uniform(-2, 2, (5, K, 2))
        means[4, 0] = math.nan
        found = mixture_intervals(shares, means, squares, level, law)
        for i, q in np.ndindex(4, 2):
            expected = mixture_of(law, shares[i], means[i, :, q], squares[i, :, q]).interval(level)
            np.testing.assert_allclose(found[i, q], expected, rtol=1e-7, atol=1e-7)
        assert np.isnan(found[4]).all()
        assert mixture_intervals(shares[:0], means[:0], squares[:0], level, law).shape == (0, 2, 2)


# --- what a pipeline writes -----------------------------------------------------------------------------------------


def mixed(kind):
    """Good events, and some that are rejected, come without target, bring a level or a class, or weigh nothing."""
    events = [event(kind, i) for i in range(54)]
    for at in (0, 1, 25, 28, 30, 31, 51):
        events[at] |= dict.fromkeys(TARGETS[kind])
    for at in (10, 29, 44):
        events[at] |= {"a": 1e60}
    events[12] |= {"c": "violet"}
    events[14] |= {"w": 0}
    if kind == "classifier":
        events[22] |= {"label": "rare"}
        events[48] |= {"label": "rarer"}
    return events


def written(path, kind, events, format="jsonl", sizes=(), *, interval=0.9, gate=True, **arguments):
    """Return the rows of a stream, as objects."""
    sink = prediction_sink(path, path.suffix[1:])
    run(pipeline(kind, predictions=PredictionWriter(sink, interval, gate), **arguments), events, format, sizes)
    sink.flush()
    sink.close()
    if path.suffix == ".jsonl":
        return lines(path)
    return parquet.read_table(path.parent).to_pylist(maps_as_pydicts="strict")


@pytest.mark.parametrize(
    ("kind", "format", "to", "arguments"),
    [
        ("regressor", "csv", "jsonl", {}),
        ("regressor", "jsonl", "parquet", {"expert": "laplace"}),
        ("outputs", "jsonl", "jsonl", {"expert": "student_t"}),
        ("classifier", "arrow", "jsonl", {"gate": False}),
    ],
)
def test_each_used_event_has_one_row_of_what_the_model_said_before_it_learned(tmp_path, kind, format, to, arguments):
    events = mixed(kind)
    rows = written(tmp_path / "whole" / f"out.{to}", kind, events, **arguments)
    again = written(tmp_path / "cut" / f"out.{to}", kind, events, format, [1, 9, 17], **arguments)
    places = [row.pop("place")["row"] for row in rows]
    # A restart reads other batches, and has to repeat the same rows.
    assert [row.pop("place") for row in again] == [{"path": format, "row": i} for i in places]
    assert again == rows
    by_row = dict(zip(places, rows, strict=True))
    assert len(by_row) == len(places)
    line = pipeline(kind, **{name: value for name, value in arguments.items() if name == "expert"})
    for i, held in enumerate(events):
        row, n = by_row.get(i), line.model.n
        if row is not None and line.model.fields:
            check = check_classes if kind == "classifier" else check_numbers
            check(row, line.model, features_of(held), held)
        rejected = run(line, [held]).letters
        assert bool(rejected) == (row is None)
        if row is not None:
            assert row["model_version"] == n
            values = {name: held[name] for name in TARGETS[kind]}
            shown = None if None in values.values() or (line.model.n == n and kind != "classifier") else values
            assert row["target"] == (shown if kind == "outputs" or shown is None else shown[TARGETS[kind][0]])
    assert ("gate" in row, "interval" in row) == (kind != "classifier",) * 2


def check_numbers(row, model, x, held):
    predicted, gate = model.predict_one(x), model.gate_one(x)
    assert row["prediction"] == (pytest.approx(predicted, rel=1e-9, abs=1e-12) if predicted else predicted)
    assert row["gate"][: len(gate)] == pytest.approx([1.0, 0.0] if model.is_warming_up else gate, abs=1e-12)
    if model.n and isinstance(predicted, float):
        assert row["interval"] == pytest.approx(list(model.predict_distribution_one(x).interval(0.9)), rel=1e-6)


def check_classes(row, model, x, held):
    known = list(model.class_labels)
    assert list(row["probabilities"]) == known
    assert row["prediction"] == max(known, key=row["probabilities"].__getitem__, default=None)
    # With a level that is new the average starts again, before the event is predicted.
    if known and f"c={held['c']}" in model.feature_names:
        assert row["probabilities"] == pytest.approx(model.predict_proba_one(x), abs=1e-12)
