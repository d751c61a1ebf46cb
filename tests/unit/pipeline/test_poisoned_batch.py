"""Records whose values are all in range, and that would yet leave no finite model, amid a batch."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from streammoe import assembly, configuration, schedules
from streammoe.daemon.signals import StopFlag
from streammoe.errors import PoisonedModel
from streammoe.pipeline.label_join import LabelJoin, Limits
from streammoe.pipeline.pipeline import PredictionWriter
from streammoe.ports import Predictions
from tests.unit.pipeline.streams import TARGETS, WARM_UP, event, pipeline, run, stream_of

N = 150
HUGE = {"a": 9e49, "w": 1e6}
"""Its cube has a square of 5e299."""
FRAGILE = {"degree": 3, "range_factor": 0.0, "prior_strength": 0.0, "schedule": schedules.constant(0.999999)}
BAD = [WARM_UP + 1, WARM_UP + 2, 90, N + 2]


class Kept:
    """A sink that keeps the rows."""

    def __init__(self):
        self.rows = []

    def write(self, rows: Predictions):
        self.rows += [
            (place["row"], int(version), np.asarray(prediction).tobytes(), str(loss))
            for place, version, prediction, loss in zip(
                rows.places, rows.versions, rows.predictions, rows.losses, strict=True
            )
        ]


def sound(kind):
    return [event(kind, i) for i in range(N)]


def poisoned(kind):
    records = sound(kind)
    for at in BAD:
        records.insert(at, {**event(kind, at), **HUGE})
    return records


def line(kind, sink=None, **arguments):
    predictions = None if sink is None else PredictionWriter(sink, 0.9, gate=True)
    return pipeline(kind, predictions=predictions, **{**FRAGILE, "standardize": False, **arguments})


def all_of(line):
    """The model and all averages, to the last bit."""
    arrays = {**line.model.arrays(), **line.scores.arrays()}
    return {name: array.tobytes() for name, array in arrays.items()}, json.dumps(line.scores.to_json())


@pytest.mark.parametrize(
    ("kind", "format", "sizes"), [("regressor", "csv", ()), ("outputs", "jsonl", (1,)), ("classifier", "csv", (7, 50))]
)
def test_the_culprits_are_set_aside_and_the_rest_is_learned_as_if_they_had_never_come(kind, format, sizes):
    rows, twin_rows = Kept(), Kept()
    spoilt, twin = line(kind, rows), line(kind, twin_rows)
    said = run(spoilt, stream_of(poisoned(kind), format, sizes))
    run(twin, stream_of(sound(kind), format))
    assert said.letters == [(at, "poison", "learn") for at in BAD]
    assert said.outcomes["rejected"] == len(BAD)
    assert said.outcomes["learned"] == N
    if sizes:  # averages are summed batch by batch
        assert spoilt.model.state_digest() == twin.model.state_digest()
    else:
        assert all_of(spoilt) == all_of(twin)
    # Each event is predicted once, by the model that learned all before it.
    kept = [at for at in range(N + len(BAD)) if at not in BAD]
    assert [row for row, *_ in rows.rows] == kept
    assert [rest for _, *rest in rows.rows] == [rest for _, *rest in twin_rows.rows]


def test_a_record_with_a_new_column_may_be_poison():
    kind = "regressor"
    schema = {"late_columns": True}
    spoilt, twin = (pipeline(kind, schema=schema, **FRAGILE, standardize=False) for _ in range(2))
    records = sound(kind)
    records.insert(70, {**event(kind, 70), **HUGE, "extra": 1.0})
    said = run(spoilt, stream_of(records, "jsonl"))
    run(twin, stream_of(sound(kind), "jsonl"))
    assert said.letters == [(70, "poison", "learn")]
    assert "extra" not in spoilt.model.fields
    assert spoilt.model.state_digest() == twin.model.state_digest()


def test_of_joined_labels_the_event_is_set_aside_and_what_waits_goes_on_waiting():
    def joined(records):
        made = line("regressor")
        joining = LabelJoin("id", made.schema._replace(ignore=("id",)), Limits(1000))
        made.schema = made.schema._replace(ignore=("id",))
        batches = stream_of(records, "jsonl", (40,)).batches
        outcomes = [joining.settle(made.process(joining.join(batch))) for batch in batches]
        return made, joining, outcomes

    def halves(i, instead):
        held = {**event("regressor", i), **instead}
        label = {"id": i, "y": held.pop("y"), "w": held.pop("w")}
        return {"id": i, **held}, label

    features, labels = zip(*(halves(i, HUGE if i == 60 else {}) for i in range(100)), strict=True)
    spoilt, joining, outcomes = joined([*features, *labels[:90]])
    twin, other, _ = joined([*features, *(label for i, label in enumerate(labels[:90]) if i != 60)])
    letters = [letter for each in outcomes for letter in each.letters]
    assert [(letter.reason, letter.stage) for letter in letters] == [("poison", "learn")]
    assert spoilt.model.state_digest() == twin.model.state_digest()
    assert joining.pending == 10
    assert other.pending == 11


# --- the whole daemon -----------------------------------------------------------------------------------------------


def written(path, kind, format, records):
    batch = stream_of(records, format).batches[0]
    header = ",".join(batch.columns).encode() + b"\n" if format == "csv" else b""
    path.write_bytes(header + batch.block)


@contextmanager
def opened(folder, kind, format, records):
    folder.mkdir()
    written(folder / f"events.{format}", kind, format, records)
    targets = TARGETS[kind]
    model = {
        "kind": "classifier" if kind == "classifier" else "regressor",
        "n_experts": 2,
        "degree": 3,
        "warmup": WARM_UP,
        "warmup_restarts": 1,
        "standardize": False,
        "range_factor": 0.0,
        "prior_strength": 0.0,
        "schedule": {"kind": "constant", "gamma": 0.999999},
    }
    tables = {
        "source": {"kind": "file", "path": str(folder / f"events.{format}"), "block_bytes": 4096},
        "schema": {"target": list(targets), "weight": "w", "categorical": ["c"], "timestamps": ["t"]},
        "model": model,
        "checkpoint": {"dir": str(folder / "state")},
        "metrics": {"enabled": False},
        "predictions": {"kind": "file", "path": str(folder / "predictions.jsonl")},
        "dead_letters": {"path": str(folder / "letters.jsonl")},
    }
    with assembly.open_daemon(configuration.settings_from(tables, "test")) as running:
        yield running.daemon, running.daemon.run(StopFlag())


@pytest.mark.parametrize(("kind", "format"), [("outputs", "csv"), ("classifier", "jsonl")])
def test_a_daemon_sets_them_aside_and_goes_on(kind, format, tmp_path):
    summaries, rows = [], []
    for name, records in (("spoilt", poisoned(kind)), ("twin", sound(kind))):
        with opened(tmp_path / name, kind, format, records) as (_, summary):
            summaries.append(summary)
        found = [json.loads(text) for text in (tmp_path / name / "predictions.jsonl").read_text().splitlines()]
        rows.append([{key: value for key, value in row.items() if key != "place"} for row in found])
    assert summaries[0].state_digest == summaries[1].state_digest
    assert (summaries[0].learned, summaries[0].rejected) == (N, len(BAD))
    assert len(rows[0]) == N
    assert rows[0] == rows[1]
    letters = [json.loads(text) for text in (tmp_path / "spoilt" / "letters.jsonl").read_text().splitlines()]
    assert [(letter["stage"], letter["reason"]) for letter in letters] == [("learn", "poison")] * len(BAD)


@pytest.mark.parametrize("what", ["expert_grams", "log_loss"])
def test_a_poisoned_model_is_never_saved_nor_are_poisoned_scores(what, tmp_path):
    folder = tmp_path / "run" / "state"
    with opened(tmp_path / "run", "regressor", "jsonl", sound("regressor")) as (running, _):
        kept = {path.name: path.read_bytes() for path in folder.iterdir()}
        if what == "log_loss":
            running.scores.log_loss.total = np.inf
        else:
            running.model._state.expert_grams[0, 0, 1] = np.inf  # beside the diagonal, where no step looks
        with pytest.raises(PoisonedModel) as error:
            running.checkpoint()
    assert error.value.exit_code == 7
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
