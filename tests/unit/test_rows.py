"""Predictions as JSON, next to what msgspec makes of objects with the same entries."""

import json
import math

import msgspec
import numpy as np
import pytest

from streammoe.ports import Locations, Predictions
from streammoe.rows import json_lines

N = 5
RNG = np.random.default_rng(0)
ODD = 'a"\\é\n'
LOCATIONS = {
    "offset": Locations({"path": ODD}, {"offset": np.arange(N) * 10**12}),
    "no common part": Locations({}, {"partition": np.arange(N), "offset": np.arange(N)[::-1] - 2}),
    "objects": [{"topic": f"{ODD}{i}", "offset": i} for i in range(N)],
}
NUMBERS = np.array([0.5, math.nan, -math.inf, 1e300, -1.0])
KINDS = {
    "one output": {"predictions": NUMBERS[:, None], "targets": NUMBERS[::-1, None], "outputs": (ODD,)},
    "interval": {
        "predictions": NUMBERS[:, None],
        "targets": NUMBERS[:, None],
        "outputs": ("y",),
        "intervals": RNG.normal(size=(N, 1, 2)).copy,
        "gate": RNG.random((N, 3)),
        "losses": NUMBERS,
    },
    "outputs": {
        "predictions": RNG.normal(size=(N, 2)),
        "targets": np.column_stack([NUMBERS, np.arange(N)]),
        "outputs": ("b", ODD),
        "intervals": RNG.normal(size=(N, 2, 2)).copy,
        "gate": RNG.random((N, 1)),
    },
    "outputs, all known": {
        "predictions": RNG.normal(size=(N, 2)),
        "targets": RNG.normal(size=(N, 2)),
        "outputs": ("a", "b"),
    },
    "labels": {
        "predictions": [None, "a", ODD, "a", "b"],
        "targets": ["a", None, "b", ODD, "a"],
        "outputs": ("y",),
        "classes": ("1", ODD, "1"),
        "probabilities": RNG.random((N, 3)),
        "losses": NUMBERS,
    },
    "no classes": {
        "predictions": [None] * N,
        "targets": ["a"] * N,
        "outputs": ("y",),
        "probabilities": np.empty((N, 0)),
    },
}


def by_output(values, outputs):
    if len(outputs) == 1:
        return values[:, 0].tolist()
    return [dict(zip(outputs, row, strict=True)) for row in values.tolist()]


def as_objects(rows):
    """Return what `json_lines` documents, as one dict per event."""
    columns = {"place": list(rows.locations), "model_version": rows.versions.tolist()}
    if rows.global_versions is not None:
        columns["global_version"] = rows.global_versions.tolist()
    if isinstance(rows.predictions, list):
        columns |= {"prediction": rows.predictions, "target": rows.targets}
    else:
        columns["prediction"] = by_output(rows.predictions, rows.outputs)
        if rows.intervals is not None:
            columns["interval"] = by_output(rows.intervals(), rows.outputs)
        columns["target"] = by_output(rows.targets, rows.outputs)
        if len(rows.outputs) > 1:
            known = ~np.isnan(rows.targets).any(axis=1)
            columns["target"] = [target if k else None for target, k in zip(columns["target"], known, strict=True)]
    if rows.losses is not None:
        columns["loss"] = rows.losses.tolist()
    if rows.probabilities is not None:
        columns["probabilities"] = [dict(zip(rows.classes, row, strict=True)) for row in rows.probabilities.tolist()]
    if rows.gate is not None:
        columns["gate"] = rows.gate.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("kind", "locations", "has_global"),
    [
        ("one output", "offset", True),
        ("interval", "no common part", False),
        ("outputs", "objects", True),
        ("outputs, all known", "offset", False),
        ("labels", "objects", False),
        ("labels", "offset", True),
        ("no classes", "no common part", False),
    ],
)
def test_lines_are_those_of_objects(kind, locations, has_global):
    rows = Predictions(
        locations=LOCATIONS[locations],
        versions=np.arange(N) + 2**40,
        global_versions=np.arange(N) if has_global else None,
        **KINDS[kind],
    )
    assert json_lines(rows) == b"".join(msgspec.json.encode(each) + b"\n" for each in as_objects(rows))


def test_a_path_that_is_not_utf8_is_escaped():
    locations = Locations({"path": "x\udcff.csv"}, {"row": np.arange(N)})
    rows = Predictions(locations=locations, versions=np.arange(N), **KINDS["one output"])
    found = [json.loads(line) for line in json_lines(rows).splitlines()]
    assert [each["place"] for each in found] == list(locations)


def test_locations_are_a_sequence_of_objects():
    locations = LOCATIONS["offset"]
    objects = [{"path": ODD, "offset": i * 10**12} for i in range(N)]
    assert list(locations) == objects
    assert all(type(each["offset"]) is int for each in locations)
    assert (list(locations[1:3]), locations[-1]) == (objects[1:3], objects[-1])
    assert list(locations.take(np.array([3, 0]))) == [objects[3], objects[0]]
