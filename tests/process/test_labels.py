"""Labels that come later in a second source, and what becomes of those whose features have expired."""

import json
import random

import pytest

from tests.process.place import Place

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 1_000


def test_a_file_of_features_and_then_one_of_labels(tmp_path):
    place = Place(tmp_path / "here")
    rng = random.Random(11)
    features, labels, whole = [], [], []
    for i in range(EVENTS):
        event = {"id": f"k{i}", "a": rng.gauss(0, 1), "b": rng.gauss(0, 1)}
        label = {"id": f"k{i}", "y": 2 * event["a"] if event["a"] > 0 else event["b"] - 1}
        features.append(event)
        labels.append(label)
        whole.append(event | label)
    files = {"features": features, "labels": [*labels, {"id": "nobody", "y": 1.0}], "whole": whole}
    for name, records in files.items():
        (place.folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = place.folder / "config.toml"
    model = 'schema.target = "y"\nmodel = { n_experts = 2, warmup = 300, warmup_restarts = 2 }\n'
    sources = "".join(f'[[source]]\nkind = "file"\npath = "{name}.jsonl"\n' for name in ("features", "labels"))
    config.write_text(f'{model}labels.key = "id"\n{sources}')
    summary = place.run_here()
    assert (summary["events"], summary["learned"], summary["pending"]) == (EVENTS + 1, EVENTS, 1)
    assert place.run_here()["state_digest"] == summary["state_digest"]
    bounded = place.run_here("config.toml", f"labels.max_pending={EVENTS // 2}", fresh=True)
    # Labels whose features have expired wait in their turn, and push out the features of those that follow.
    assert (bounded["learned"], bounded["expired"]) == (0, EVENTS + EVENTS // 2 + 1)
    config.write_text(f'{model}schema.ignore = ["id"]\nsource = {{ kind = "file", path = "whole.jsonl" }}\n')
    together = place.run_here("config.toml", "checkpoint.dir=together")
    assert summary["rmse"] == pytest.approx(together["rmse"], rel=1e-9)
