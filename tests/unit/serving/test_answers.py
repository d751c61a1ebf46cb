"""Predictions on request are those of the model, whoever asks at the same time, and whatever it learns meanwhile."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from streammoe import Lags
from tests.unit.serving.served import MODEL, answering, classifier, events, of_several_outputs, regressor, snapshot_of
from tests.unit.strangers import ask

MODELS = {
    "one output": regressor,
    "lags": lambda n=120: regressor(n, lags=Lags(2, inputs=("size",))),
    "several outputs": of_several_outputs,
    "classes": classifier,
}
X = [x for x, _ in events(40, seed=1)]


def post(server, path, content):
    status, _, body = ask(server, path, "POST", msgspec.json.encode(content))
    assert status == 200, body
    return json.loads(body)


def expected(model, x):
    """What the model in Python says of an event, in the words of a row."""
    row = {"prediction": model.predict_one(x), "gate": list(model.gate_one(x))}
    if model.is_classifier:
        return row | {"probabilities": model.predict_proba_one(x)}
    return row | {"interval": model.predict_interval_one(x, 0.8)}


def flat(value):
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    return [each for part in value for each in flat(part)] if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize("kind", MODELS)
def test_answers_are_what_a_twin_predicts_in_python_by_either_protocol(kind):
    twin = MODELS[kind]()
    tensors = [
        {"name": name, "shape": [len(X)], "datatype": datatype, "data": [x[name] for x in X]}
        for name, datatype in (("size", "FP64"), ("it's <new>", "BOOL"), ("colour", "BYTES"), ("when", "BYTES"))
    ]
    with answering(MODELS[kind](), interval=0.8) as server:
        rows = post(server, "/predict", X)
        parts = {each["name"]: each for each in post(server, f"{MODEL}/infer", {"inputs": tensors})["outputs"]}
    for x, row in zip(X, rows, strict=True):
        wanted = expected(twin, x)
        assert row.pop("model_version") == 120
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            assert flat(row[name]) == [
                each if isinstance(each, str) else pytest.approx(each, rel=1e-9, abs=1e-12) for each in flat(value)
            ], name
    for name, part in parts.items():
        values = [row[name] for row in rows]
        if name == "probabilities":
            values = [[value[label] for label in map(str, twin.output_names)] for value in values]
        assert math.prod(part["shape"]) == len(part["data"])
        assert part["data"] == flat(values)


def test_headers_name_columns_that_nobody_knows_whatever_they_are_called():
    record = {"size": 1.0, "y": 2.0, "Size": 1.0, "\r\nø": 1, "x" * 100: None} | {f"c{i}": i for i in range(30)}
    tensors = [{"name": name, "shape": [1], "datatype": "FP64", "data": [1.0]} for name in record]
    wanted = ["Size", "\r\nø", "x" * 60, *(f"c{i}" for i in range(17))]
    with answering() as server:
        for path, body in (("/predict", [record]), ("/explain", record), (f"{MODEL}/infer", {"inputs": tensors})):
            status, headers, _ = ask(server, path, "POST", msgspec.json.encode(body))
            assert (status, json.loads(headers["Streammoe-Ignored"])) == (200, wanted)
        for body in (b'{"size":1,"y":2}', b'[{"colour":"red"},{"size":1,"other":1}]', b'{"size":1}\n{"size":2}'):
            assert "Streammoe-Ignored" not in ask(server, "/predict", "POST", body)[1]


def test_requests_at_once_get_the_rows_of_their_own():
    with answering(regressor()) as server, ThreadPoolExecutor(8) as at_once:
        alone = [post(server, "/predict", x) for x in X]
        assert len({row["prediction"] for row in alone}) > 30
        wanted = [alone[i : i + 1 + i % 3] for i in range(len(X) - 3)]
        asked = [X[i : i + 1 + i % 3] for i in range(len(X) - 3)] * 4
        found = at_once.map(lambda rows: post(server, "/predict", rows), asked)
        bad = at_once.submit(ask, server, "/predict", "POST", b'[{"size":1},{"size":"x"}]')
        assert list(found) == wanted * 4
        assert bad.result()[0] == 422


def test_a_snapshot_stays_as_it_is_while_the_model_learns():
    model = regressor()
    with answering(model) as server:
        before = post(server, "/predict", X)
        assert before == post(server, "/predict", X)
        for x, y in events(300, seed=2):
            model.learn_one(x, 3.0 - y)
        assert post(server, "/predict", X) == before
        server.take(snapshot_of(model))
        after = post(server, "/predict", X)
        assert {row["model_version"] for row in after} == {420}
        assert after != before
        assert after[0]["prediction"] == pytest.approx(model.predict_one(X[0]), rel=1e-9)
