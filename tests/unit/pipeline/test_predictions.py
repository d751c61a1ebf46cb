import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from streammoe.distributions import mixture_of
from streammoe.errors import CheckpointError, ConfigError
from streammoe.noise import NORMAL, RoundedLaplace, StudentT
from streammoe.pipeline import predictions as predictions_module
from streammoe.pipeline.pipeline import PredictionWriter
from streammoe.pipeline.predictions import prediction_sink
from streammoe.ports import Predictions
from streammoe.quantiles import mixture_intervals
from tests.unit.pipeline import streams


def rows_from(first=0, n=2, **others):
    """Rows of a regressor with one output."""
    given = {
        "places": [{"path": "a.csv", "offset": 10 * i} for i in range(first, first + n)],
        "versions": np.arange(first, first + n),
        "predictions": np.arange(first, first + n)[:, None] + 0.5,
        "targets": np.where(np.arange(n) % 2, math.nan, 1.0)[:, None],
        "outputs": ("y",),
    }
    return Predictions(**given | others)


def several_outputs(n=2):
    values = np.arange(2.0 * n).reshape(n, 2)
    return {
        "outputs": ("y", "z"),
        "predictions": values,
        "targets": np.where(np.arange(n)[:, None] % 2, math.nan, values + 1.0),
        "intervals": np.stack([values - 1.0, values + 1.0], axis=2),
        "gate": np.full((n, 3), 0.25),
    }


LABELS = {
    "predictions": ["cat", None],
    "targets": [None, "dog"],
    "classes": ("cat", "dog"),
    "probabilities": np.array([[0.75, 0.25], [0.0, 0.0]]),
}


def write(path, format, *parts):
    sink = prediction_sink(path, format)
    for rows in parts:
        sink.write(rows)
    sink.flush()
    sink.close()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# --- JSON Lines -----------------------------------------------------------------------------------------------------


def test_a_row_becomes_an_object(tmp_path):
    path = tmp_path / "new" / "out.jsonl"
    write(path, "jsonl", rows_from(intervals=np.array([[[0.0, 1.0]], [[-1.0, 2.5]]]), gate=np.full((2, 2), 0.5)))
    assert lines(path) == [
        {
            "place": {"path": "a.csv", "offset": 0},
            "model_version": 0,
            "prediction": 0.5,
            "interval": [0.0, 1.0],
            "target": 1.0,
            "gate": [0.5, 0.5],
        },
        {
            "place": {"path": "a.csv", "offset": 10},
            "model_version": 1,
            "prediction": 1.5,
            "interval": [-1.0, 2.5],
            "target": None,
            "gate": [0.5, 0.5],
        },
    ]


@pytest.mark.parametrize("to", ["jsonl", "parquet"])
def test_the_loss_is_there_where_an_event_was_learned(tmp_path, to):
    path = tmp_path / "out.parquet"
    write(path, to, rows_from(losses=np.array([0.25, math.nan])))
    found = lines(path) if to == "jsonl" else parquet.read_table(tmp_path).to_pylist()
    assert [row["loss"] for row in found] == [0.25, None]


def test_outputs_and_classes_are_objects_by_name_and_what_is_not_finite_is_null(tmp_path):
    odd = rows_from(n=1, predictions=np.array([[math.nan]]), gate=np.array([[math.inf]]))
    write(tmp_path / "out", "jsonl", rows_from(**several_outputs()), rows_from(**LABELS), odd)
    first, second, third, fourth, fifth = lines(tmp_path / "out")
    assert first["prediction"] == {"y": 0.0, "z": 1.0}
    assert first["interval"] == {"y": [-1.0, 1.0], "z": [0.0, 2.0]}
    assert (first["target"], second["target"]) == ({"y": 1.0, "z": 2.0}, None)
    assert (third["prediction"], third["target"], third["probabilities"]) == ("cat", None, {"cat": 0.75, "dog": 0.25})
    assert (fourth["prediction"], fourth["target"]) == (None, "dog")
    assert not {"gate", "interval"} & third.keys()
    assert (fifth["prediction"], fifth["gate"]) == (None, [None])


def test_a_torn_line_spoils_no_other(tmp_path):
    path = tmp_path / "out"
    write(path, "jsonl", rows_from())
    path.write_bytes(path.read_bytes()[:-20])
    write(path, "jsonl", rows_from(2))
    whole, torn, *after = path.read_bytes().splitlines()
    assert json.loads(whole)["model_version"] == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(torn)
    assert [json.loads(line)["model_version"] for line in after] == [2, 3]


# --- Parquet --------------------------------------------------------------------------------------------------------


def test_each_flush_leaves_a_whole_part_named_by_its_first_version(tmp_path):
    path = tmp_path / "new" / "out.parquet"
    sink = prediction_sink(path, "parquet")
    sink.write(rows_from(0))
    sink.write(rows_from(2))
    assert names_in(path.parent) == []
    sink.flush()
    sink.flush()
    sink.write(rows_from(4))
    sink.flush()
    sink.write(rows_from(n=0))
    sink.flush()
    sink.write(rows_from(6))
    sink.close()
    assert names_in(path.parent) == ["out-000000000000.parquet", "out-000000000004.parquet"]
    rows = parquet.read_table(path.parent).to_pylist()
    assert [row["model_version"] for row in rows] == list(range(6))
    assert rows[1] == {
        "place": {"path": "a.csv", "offset": 10},
        "model_version": 1,
        "prediction": 1.5,
        "target": None,
    }


def test_a_part_never_replaces_another_one(tmp_path):
    """Events that are not learned leave the version as it is, so that it names several parts."""
    for i in range(3):
        write(tmp_path / "out.parquet", "parquet", rows_from(i, versions=np.array([7, 7])))
    names = ["out-000000000007.parquet", "out-000000000007_1.parquet", "out-000000000007_2.parquet"]
    assert names_in(tmp_path) == names
    assert [parquet.read_table(tmp_path / name)["prediction"][0].as_py() for name in names] == [0.5, 1.5, 2.5]


def test_parts_hold_what_the_lines_hold(tmp_path):
    for name, others in {"several": several_outputs(), "labels": LABELS}.items():
        write(tmp_path / name / "out.parquet", "parquet", rows_from(**others))
        write(tmp_path / f"{name}.jsonl", "jsonl", rows_from(**others))
        rows = parquet.read_table(tmp_path / name).to_pylist(maps_as_pydicts="strict")
        assert rows == lines(tmp_path / f"{name}.jsonl")


def test_places_of_another_form_begin_a_new_part(tmp_path):
    other = [{"topic": "t", "partition": 0, "offset": i} for i in range(2)]
    write(tmp_path / "out.parquet", "parquet", rows_from(0), rows_from(2, places=other))
    first, second = names_in(tmp_path)
    assert parquet.read_table(tmp_path / first)["place"].to_pylist()[0] == {"path": "a.csv", "offset": 0}
    assert parquet.read_table(tmp_path / second)["place"].to_pylist() == other


def test_classes_may_grow_within_a_part(tmp_path):
    more = {**LABELS, "classes": ("cat", "dog", "eel"), "probabilities": np.full((2, 3), 0.25)}
    none = {**LABELS, "classes": (), "probabilities": np.empty((2, 0))}
    write(tmp_path / "out.parquet", "parquet", rows_from(0, **none), rows_from(2, **LABELS), rows_from(4, **more))
    (name,) = names_in(tmp_path)
    found = parquet.read_table(tmp_path / name)["probabilities"].to_pylist(maps_as_pydicts="strict")
    assert found[::2] == [{}, {"cat": 0.75, "dog": 0.25}, {"cat": 0.25, "dog": 0.25, "eel": 0.25}]


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    left = tmp_path / ".out[1]-000000000003.parquet.0123.tmp"
    others = [tmp_path / ".out1-000000000003.parquet.0123.tmp", tmp_path / "out[1].tmp"]
    for path in (left, *others):
        path.write_bytes(b"PAR1")
    prediction_sink(tmp_path / "out[1].parquet", "parquet").close()
    assert not left.exists()
    assert all(path.exists() for path in others)


# --- failures -------------------------------------------------------------------------------------------------------


def test_settings_that_cannot_be_followed_are_errors_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    for path, to in (("file/out", "jsonl"), ("file/out", "parquet"), ("out", "csv")):
        with pytest.raises(ConfigError):
            prediction_sink(tmp_path / path, to)


def test_a_full_disk_keeps_the_checkpoint_from_being_saved():
    sink = prediction_sink("/dev/full", "jsonl")
    sink.write(rows_from())
    for fails in (sink.flush, sink.close):
        with pytest.raises(CheckpointError):
            fails()


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
def test_the_ends_are_quantiles_whatever_the_law(law):
    rng = np.random.default_rng(1)
    for K, level in ((3, 0.9), (1, 0.5), (2, 0.9999)):
        shares, means = rng.dirichlet(np.full(K, 0.5), 10), rng.normal(scale=10.0, size=(10, K, 2))
        squares = 10.0 ** rng.uniform(-2, 2, (10, K, 2))
        found = mixture_intervals(shares, means, squares, level, law)
        for i, q in np.ndindex(10, 2):
            expected = mixture_of(law, shares[i], means[i, :, q], squares[i, :, q]).interval(level)
            np.testing.assert_allclose(found[i, q], expected, rtol=1e-7, atol=1e-7)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(-1e50, 1e50), st.floats(1e-20, 1e60)), min_size=1, max_size=4).filter(
        lambda mixture: sum(share for share, *_ in mixture) > 0.1
    )
)
def test_intervals_of_any_mixture_are_ordered_and_within_those_of_its_components(mixture):
    shares, means, variances = np.array(mixture).T[:, None, :]
    shares = shares / shares.sum()
    low, high = mixture_intervals(shares, means[:, :, None], variances[:, :, None], 0.9)[0, 0]
    there = shares[0] > 0
    deviations = np.sqrt(variances[0][there])
    ends = means[0][there] + 1.6448536269514729 * np.array([[-1], [1]]) * deviations
    slack = 1e-8 * deviations.min() + 1e-12 * np.abs(ends).max()
    assert ends.min() - slack <= low <= high + slack <= ends.max() + 2 * slack


def test_where_nothing_was_predicted_there_is_no_interval():
    means = np.array([[[0.0], [0.0]], [[math.nan], [0.0]]])
    found = mixture_intervals(np.full((2, 2), 0.5), means, np.ones((2, 2, 1)), 0.9)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()
    assert mixture_intervals(np.empty((0, 2)), np.empty((0, 2, 3)), np.empty((0, 2, 3)), 0.9).shape == (0, 3, 2)


# --- what a pipeline writes -----------------------------------------------------------------------------------------


def written(folder, kind, events, format="jsonl", sizes=(), *, to="jsonl", interval=0.9, gate=True, **arguments):
    """The rows of a stream, as objects."""
    path = folder / f"out-{len(names_in(folder))}.{to}"
    sink = prediction_sink(path, to)
    line = streams.pipeline(kind, predictions=PredictionWriter(sink, interval, gate), **arguments)
    said = streams.run(line, streams.stream_of(events, format, sizes))
    sink.flush()
    sink.close()
    if to == "jsonl":
        return lines(path), said, line
    parts = sorted(folder.glob(f"{path.stem}-*.parquet"))
    return [row for part in parts for row in parquet.read_table(part).to_pylist()], said, line


def mixed(kind, n=70):
    """Good events, and some that are refused, come without target, bring a level or a class, or weigh nothing."""
    events = [streams.event(kind, i) for i in range(n)]
    none = dict.fromkeys(streams.TARGETS[kind])
    for at in (0, 1, 25, 38, 39, 40, 41, 66):
        events[at] |= none
    for at in (10, 39, 55):
        events[at] |= {"a": 1e60}
    events[12] |= {"c": "violet"}
    events[14] |= {"w": 0}
    if kind == "classifier":
        events[30] |= {"label": "rare"}
        events[60] |= {"label": "rarer"}
    return events


@pytest.mark.parametrize(("kind", "format"), list(zip(streams.KINDS, streams.FORMATS, strict=True)))
def test_each_used_event_has_one_row_whose_version_is_what_was_learned_before(tmp_path, kind, format):
    events = mixed(kind)
    rows, said, _ = written(tmp_path, kind, events, format, [9])
    refused = {row for row, _, _ in said.letters}
    assert refused == {10, 39, 55}
    assert [row["place"] for row in rows] == [
        {"path": format, "row": i} for i in range(len(events)) if i not in refused
    ]
    targets = streams.TARGETS[kind]
    learned = 0
    for row in rows:
        held = events[row["place"]["row"]]
        assert row["model_version"] == learned
        values = [held[name] for name in targets]
        given_ = held["w"] and None not in values
        shown = (
            None if None in values or not (given_ or kind == "classifier") else dict(zip(targets, values, strict=True))
        )
        assert row["target"] == (shown if kind == "outputs" or shown is None else shown[targets[0]])
        learned += bool(given_)
    assert said.outcomes["learned"] == learned


@pytest.mark.parametrize(
    ("kind", "to"), [("regressor", "jsonl"), ("outputs", "jsonl"), ("classifier", "jsonl"), ("classifier", "parquet")]
)
@settings(max_examples=3, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_where_batches_are_cut_shows_in_no_row(tmp_path_factory, kind, to, sizes):
    # A restart reads other batches, and has to repeat the same rows.
    folder = tmp_path_factory.mktemp("cut")
    whole = written(folder, kind, mixed(kind), to=to)[0]
    assert written(folder, kind, mixed(kind), sizes=sizes, to=to)[0] == whole
    assert len({json.dumps(row["place"]) for row in whole}) == len(whole)


@pytest.mark.parametrize(
    ("kind", "expert"), [("regressor", "gaussian"), ("regressor", "laplace"), ("outputs", "student_t")]
)
def test_rows_hold_what_the_model_would_have_said_before_it_learned(tmp_path, kind, expert):
    events = mixed(kind)
    rows, *_ = written(tmp_path, kind, events, sizes=[11], expert=expert)
    twin = streams.pipeline(kind, expert=expert)
    by_place = {row["place"]["row"]: row for row in rows}
    for i, held in enumerate(events):
        x = {name: held[name] for name in ("a", "b", "c", "t")}
        row = by_place.get(i)
        if row is not None and twin.model.fields:
            predicted = twin.model.predict_one(x)
            assert row["prediction"] == (pytest.approx(predicted, rel=1e-9, abs=1e-12) if predicted else predicted)
            assert row["gate"][: len(twin.model.gate_one(x))] == pytest.approx(
                twin.model.gate_one(x) if not twin.model.is_warming_up else [1.0, 0.0], abs=1e-12
            )
            if twin.model.n:
                mixture = twin.model.predict_distribution_one(x)
                if kind == "regressor":
                    assert row["interval"] == pytest.approx(list(mixture.interval(0.9)), rel=1e-6)
        streams.run_one(twin, held, i)


def test_a_classifiers_row_holds_label_and_probabilities_of_the_classes_known_then(tmp_path):
    events = mixed("classifier")
    rows, _, line = written(tmp_path, "classifier", events, sizes=[13])
    assert sorted(line.model.class_labels) == ["high", "low", "rare", "rarer", "some"]
    known = []
    twin = streams.pipeline("classifier")
    by_place = {row["place"]["row"]: row for row in rows}
    for i, held in enumerate(events):
        row = by_place.get(i)
        if row is not None:
            assert list(row["probabilities"]) == known
            assert row["target"] == held["label"]
            if known:
                assert sum(row["probabilities"].values()) == pytest.approx(1.0)
                assert row["prediction"] == max(known, key=row["probabilities"].__getitem__)
                # With a level that is new the average starts again, before the event is predicted.
                if f"c={held['c']}" in twin.model.feature_names:
                    x = {name: held[name] for name in ("a", "b", "c", "t")}
                    assert row["probabilities"] == pytest.approx(twin.model.predict_proba_one(x), abs=1e-12)
            else:
                assert row["prediction"] is None
        streams.run_one(twin, held, i)
        known = list(twin.model.class_labels)


def test_intervals_and_shares_can_be_left_out(tmp_path):
    events = mixed("outputs")
    for to in ("jsonl", "parquet"):
        rows, *_ = written(tmp_path, "outputs", events, to=to, interval=0.0, gate=False)
        assert rows[-1].keys() == {"place", "model_version", "prediction", "target", "loss"}
    rows, *_ = written(tmp_path, "outputs", events)
    assert rows[-1]["interval"].keys() == {"y", "z"}
    assert len(rows[-1]["gate"]) == 2


def test_intervals_hold_as_many_targets_as_they_say(tmp_path):
    rng = np.random.default_rng(4)
    events = []
    for _ in range(3000):
        a, b = rng.normal(size=2)
        # Two regimes with spreads of their own, so that one width for all would not do.
        if rng.random() < 1 / (1 + math.exp(-3 * b)):
            y, z = 2 * a + 0.3 * rng.normal(), 5.0 + rng.normal()
        else:
            y, z = -a + rng.normal(), 5 * a + 3 * rng.normal()
        events.append({"a": a, "b": b, "w": 1.0, "y": y, "z": z})
    rows, *_ = written(tmp_path, "outputs", events, sizes=[500], interval=0.9, warmup=400)
    for name in ("y", "z"):
        inside = [row["interval"][name][0] <= row["target"][name] <= row["interval"][name][1] for row in rows[1000:]]
        assert np.mean(inside) == pytest.approx(0.9, abs=0.04)
