"""Rows of predictions: their files, and what a pipeline writes into them."""

import numpy as np
import pytest
from pyarrow import parquet

from streammoe.errors import CheckpointError
from streammoe.pipeline import predictions as predictions_module
from streammoe.pipeline.pipeline import PredictionWriter
from streammoe.pipeline.predictions import prediction_sink
from tests.unit.pipeline.streams import TARGETS, event, features_of, pipeline, run
from tests.unit.pipeline.written_rows import lines, names_in, rows_from

# --- files ----------------------------------------------------------------------------------------------------------


def test_each_flush_leaves_a_whole_part_named_by_its_first_version_and_replaces_none(tmp_path):
    sink = prediction_sink(tmp_path / "out.parquet", "parquet")
    sink.write(rows_from(0))
    sink.write(rows_from(2))
    assert names_in(tmp_path) == []
    sink.flush()
    sink.flush()
    # Events that are not learned leave the version as it is, so that it names several parts.
    for rows in (rows_from(4), rows_from(8, versions=np.array([4, 4]))):
        sink.write(rows)
        sink.flush()
    sink.close()
    names = [f"out-00000000000{name}.parquet" for name in ("0", "4", "4_1")]
    assert names_in(tmp_path) == names
    found = [parquet.read_table(tmp_path / name)["prediction"].to_pylist() for name in names]
    assert found == [[0.5, 1.5, 2.5, 3.5], [4.5, 5.5], [8.5, 9.5]]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    left, other = (tmp_path / f".{name}-000000000003.parquet.0123.tmp" for name in ("out[1]", "out1"))
    for path in (left, other):
        path.write_bytes(b"PAR1")
    prediction_sink(tmp_path / "out[1].parquet", "parquet").close()
    assert names_in(tmp_path) == [other.name]


def test_parts_that_cannot_be_written_wait_and_stop_learning_only_when_they_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_module, "MAX_PART_ROWS", 4)

    def full(path, data):
        raise OSError(28, "No space left on device")

    sink = prediction_sink(tmp_path / "out.parquet", "parquet")
    with monkeypatch.context() as patched:
        patched.setattr(predictions_module.durable, "replace", full)
        sink.write(rows_from(0))
        assert not sink.overdue
        for i in range(2, 10, 2):
            sink.write(rows_from(i))
        assert sink.overdue
        with pytest.raises(CheckpointError) as failed:
            sink.flush()
        assert failed.value.retriable
    sink.flush()
    assert not sink.overdue
    assert [parquet.read_table(tmp_path / name).num_rows for name in names_in(tmp_path)] == [4, 4, 2]


def test_a_folder_that_was_removed_is_made_again_for_the_next_part(tmp_path):
    sink = prediction_sink(tmp_path / "rows" / "out.parquet", "parquet")
    (tmp_path / "rows").rmdir()
    sink.write(rows_from())
    sink.flush()
    assert parquet.read_table(tmp_path / "rows").num_rows == 2


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


def written(folder, to, kind, events, format, *, gate=True, **arguments):
    """Return the rows of a stream, as objects."""
    sink = prediction_sink(folder / f"out.{to}", to)
    run(pipeline(kind, predictions=PredictionWriter(sink, 0.9, gate), **arguments), events, format, [1, 9, 17])
    sink.flush()
    sink.close()
    if to == "jsonl":
        return lines(folder / "out.jsonl")
    return parquet.read_table(folder).to_pylist(maps_as_pydicts="strict")


@pytest.mark.parametrize(
    ("kind", "format", "arguments"),
    [
        ("regressor", "jsonl", {"expert": "laplace"}),
        ("outputs", "csv", {"expert": "student_t"}),
        ("classifier", "arrow", {"gate": False}),
    ],
)
def test_each_used_event_has_one_row_of_what_the_model_said_before_it_learned(tmp_path, kind, format, arguments):
    events = mixed(kind)
    rows = written(tmp_path / "lines", "jsonl", kind, events, format, **arguments)
    assert written(tmp_path / "parts", "parquet", kind, events, format, **arguments) == rows
    by_row = {row["place"]["row"]: row for row in rows}
    assert len(by_row) == len(rows)
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
    special = {"probabilities"} if kind == "classifier" else {"interval", "gate"}
    assert rows[0].keys() == {"place", "model_version", "prediction", "target", "loss"} | special


def check_numbers(row, model, x, held):
    predicted, gate = model.predict_one(x), model.gate_one(x)
    assert row["prediction"] == (pytest.approx(predicted, rel=1e-9, abs=1e-12) if predicted else predicted)
    assert row["gate"][: len(gate)] == pytest.approx([1.0, 0.0] if model.is_warming_up else gate, abs=1e-12)
    if model.n and predicted:
        found, expected = row["interval"], model.predict_distribution_one(x).interval(0.9)
        for name in found if isinstance(found, dict) else [slice(None)]:
            assert found[name] == pytest.approx(list(expected[name]), rel=1e-6)


def check_classes(row, model, x, held):
    known = list(model.class_labels)
    assert list(row["probabilities"]) == known
    assert row["prediction"] == max(known, key=row["probabilities"].__getitem__, default=None)
    # With a level that is new the average starts again, before the event is predicted.
    if known and f"c={held['c']}" in model.feature_names:
        assert row["probabilities"] == pytest.approx(model.predict_proba_one(x), abs=1e-12)
