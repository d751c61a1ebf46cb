"""Predictions as JSON: one object per event, with what is known of it."""

import json
import math

import numpy as np

from streammoe.ports import Locations, Predictions
from streammoe.rows import json_lines

ODD = 'a"\\é\n'
OFFSETS = Locations({"path": ODD}, {"offset": np.arange(2) * 10**12})
OBJECTS = [{"topic": f"{ODD}{i}", "offset": i} for i in range(2)]
PLACES = [{"path": ODD, "offset": i * 10**12} for i in range(2)]
NAN, INF = math.nan, math.inf


def column(*values):
    return np.array(values)[:, None]


CASES = [
    (
        {"predictions": column(0.5, NAN), "targets": column(INF, 1e300), "outputs": (ODD,), "gate": np.eye(2)},
        [{"prediction": 0.5, "target": None, "gate": [1, 0]}, {"prediction": None, "target": 1e300, "gate": [0, 1]}],
    ),
    (
        {
            "predictions": column(1.5, 2.5),
            "targets": column(1.0, NAN),
            "outputs": ("y",),
            "intervals": np.array([[[1.0, 2.0]], [[-INF, 3.0]]]).copy,
            "losses": np.array([0.5, NAN]),
        },
        [
            {"prediction": 1.5, "interval": [1, 2], "target": 1, "loss": 0.5},
            {"prediction": 2.5, "interval": [None, 3], "target": None, "loss": None},
        ],
    ),
    (
        {
            "predictions": np.array([[1.0, 2.0], [3.0, NAN]]),
            "targets": np.array([[1.0, NAN], [5.0, 6.0]]),
            "outputs": ("b", ODD),
            "intervals": np.arange(8.0).reshape(2, 2, 2).copy,
            "global_versions": np.array([0, 7]),
        },
        [
            {
                "global_version": 0,
                "prediction": {"b": 1, ODD: 2},
                "interval": {"b": [0, 1], ODD: [2, 3]},
                "target": None,
            },
            {
                "global_version": 7,
                "prediction": {"b": 3, ODD: None},
                "interval": {"b": [4, 5], ODD: [6, 7]},
                "target": {"b": 5, ODD: 6},
            },
        ],
    ),
    (
        {
            "predictions": [None, ODD],
            "targets": ["a", None],
            "outputs": ("y",),
            "classes": ("1", ODD, "1"),
            "probabilities": np.array([[0.25, 0.5, 0.125], [0.0, 1.0, 0.5]]),
        },
        [
            {"prediction": None, "target": "a", "probabilities": {"1": 0.125, ODD: 0.5}},
            {"prediction": ODD, "target": None, "probabilities": {"1": 0.5, ODD: 1}},
        ],
    ),
    (
        {"predictions": [None] * 2, "targets": ["a"] * 2, "outputs": ("y",), "probabilities": np.empty((2, 0))},
        [{"prediction": None, "target": "a", "probabilities": {}}] * 2,
    ),
]


def test_lines_are_those_of_objects():
    for given, expected in CASES:
        for locations, places in ((OFFSETS, PLACES), (OBJECTS, OBJECTS)):
            rows = Predictions(locations=locations, versions=np.arange(2) + 2**40, **given)
            written = [
                {"place": place, "model_version": 2**40 + i, **each}
                for i, (place, each) in enumerate(zip(places, expected, strict=True))
            ]
            found = json_lines(rows)
            assert [json.loads(line) for line in found.splitlines()] == written
            assert [list(json.loads(line)) for line in found.splitlines()] == [list(each) for each in written]
            assert found.endswith(b"\n")


def test_a_path_that_is_not_utf8_is_escaped():
    locations = Locations({"path": "x\udcff.csv"}, {"row": np.arange(2)})
    rows = Predictions(locations=locations, versions=np.arange(2), **CASES[0][0])
    assert [json.loads(line)["place"] for line in json_lines(rows).splitlines()] == list(locations)


def test_locations_are_a_sequence_of_objects():
    assert list(OFFSETS) == PLACES
    assert all(type(each["offset"]) is int for each in OFFSETS)
    assert (list(OFFSETS[1:]), OFFSETS[-1]) == (PLACES[1:], PLACES[1])
