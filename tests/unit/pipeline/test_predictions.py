"""Rows of predictions that a pipeline writes."""

import pytest

from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.pipeline.writing import PredictionWriter
from tests.unit.pipeline.streams import TARGETS, event, features_of, pipeline, run
from tests.unit.pipeline.written_rows import lines


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


def written(folder, kind, events, format, *, gate=True, **arguments):
    """Return the rows of a stream, as objects."""
    sink = JsonlPredictions(folder / "out.jsonl")
    run(pipeline(kind, predictions=PredictionWriter(sink, 0.9, gate), **arguments), events, format, [1, 9, 17])
    sink.flush()
    sink.close()
    return lines(folder / "out.jsonl")


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
    rows = written(tmp_path, kind, events, format, **arguments)
    by_row = {row["place"]["row"]: row for row in rows}
    assert len(by_row) == len(rows)
    line = pipeline(kind, **{name: value for name, value in arguments.items() if name == "expert"})
    for i, held in enumerate(events):
        row, n = by_row.get(i), line.model.n
        if row is not None and line.model.fields:
            if line.model.n:  # what is learned sees the last targets
                is_learned = held.get("w") != 0 and None not in {held[name] for name in TARGETS[kind]}
                line.model.learner.context.past.is_timely = is_learned
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
    if f"c={held['c']}" not in model.feature_names:  # with a new level averages begin again, before it is predicted
        return
    predicted, gate = model.predict_one(x), model.gate_one(x)
    assert row["prediction"] == (pytest.approx(predicted, rel=1e-9, abs=1e-12) if predicted else predicted)
    assert row["gate"][: len(gate)] == pytest.approx([1.0, 0.0] if model.is_warming_up else gate, abs=1e-12)
    if model.n and predicted:
        found, expected = row["interval"], model.predict_interval_one(x, 0.9)
        for name in found if isinstance(found, dict) else [slice(None)]:
            assert found[name] == pytest.approx(list(expected[name]), rel=1e-6)


def check_classes(row, model, x, held):
    known = list(model.output_names)
    assert list(row["probabilities"]) == known
    assert row["prediction"] == max(known, key=row["probabilities"].__getitem__, default=None)
    if known and f"c={held['c']}" in model.feature_names:
        assert row["probabilities"] == pytest.approx(model.predict_proba_one(x), abs=1e-12)


@pytest.mark.parametrize("size", [1, 10])
def test_intervals_of_one_batch_in_so_many_events_are_scored(size):
    line = pipeline("regressor")
    line.scores.every = 5
    for start in range(0, 120, size):
        run(line, [event("regressor", i) for i in range(start, start + size)])
    found = {average.count for average in line.scores.intervals.values()}
    assert len(found) == 1
    assert found.pop() == pytest.approx(line.model.n / 5, abs=size)
