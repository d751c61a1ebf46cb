"""Labels that come later, as users meet them: in the same file, in a second source, and where they cannot be joined."""

import json
import random

import pytest

from tests.process.place import Place, counts, flags_of

pytestmark = [pytest.mark.process, pytest.mark.slow]

EVENTS = 3_000
KEYED = flags_of(**{"labels.key": "id"})


def written(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def halves():
    """Features and labels of the same events."""
    rng = random.Random(11)
    features, labels = [], []
    for i in range(EVENTS):
        a, b = rng.gauss(0, 1), rng.gauss(0, 1)
        features.append({"id": f"k{i}", "a": a, "b": b})
        labels.append({"id": f"k{i}", "y": 2 * a if a > 0 else b - 1})
    return features, labels


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "here")


def test_labels_later_in_the_same_file(place, tmp_path):
    features, labels = halves()
    mixed = [record for i in range(EVENTS) for record in [features[i], *([labels[i - 500]] if i >= 500 else [])]]
    whole = [features[i] | labels[i] for i in range(EVENTS - 500)]
    path = written(tmp_path / "mixed.jsonl", mixed)
    rows = flags_of(**{"predictions.kind": "file", "predictions.path": tmp_path / "rows.jsonl"})
    summary = place.run(place.config(path), *KEYED, *rows)
    assert counts(summary) == {
        "events": EVENTS,
        "learned": EVENTS - 500,
        "predicted_only": 0,
        "rejected": 0,
        "skipped": 0,
        "pending": 500,
        "expired": 0,
    }
    assert place.inspect()["pending"] == 500
    assert place.inspect()["state_digest"] == summary["state_digest"]
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(found) == 2 * EVENTS - 500
    assert sum(row["target"] is None for row in found) == EVENTS
    assert len({row["place"]["offset"] for row in found}) == EVENTS
    together = place.config(written(tmp_path / "whole.jsonl", whole), dir="together")
    scores = place.run(together, *flags_of(**{"schema.ignore": ["id"]}))
    assert scores["learned"] == EVENTS - 500
    assert summary["rmse"] == pytest.approx(scores["rmse"], rel=1e-9)


def test_a_file_of_features_and_then_one_of_labels(place, tmp_path):
    features, labels = halves()
    written(tmp_path / "features.jsonl", features)
    written(tmp_path / "labels.jsonl", [*labels, {"id": "nobody", "y": 1.0}])
    config = place.folder / "config.toml"
    config.write_text(f"""
        schema.target = "y"
        labels.key = "id"
        model = {{ n_experts = 2, warmup = 300, warmup_restarts = 2 }}
        metrics.port = 0
        [[source]]
        kind = "file"
        path = "{tmp_path}/features.jsonl"
        [[source]]
        kind = "file"
        path = "{tmp_path}/labels.jsonl"
    """)
    summary = place.run(config)
    assert (summary["events"], summary["learned"], summary["pending"]) == (EVENTS + 1, EVENTS, 1)
    assert place.run(config)["state_digest"] == summary["state_digest"]
    bounded = place.run(config, "--fresh", *flags_of(**{"labels.max_pending": EVENTS // 2}))
    # Labels whose features have expired wait in their turn, and push out the features of those that follow.
    assert (bounded["learned"], bounded["expired"]) == (0, EVENTS + EVENTS // 2 + 1)


def test_csv_is_refused(place, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("id,a,y\n1,2,3\n")
    config = place.config(path)
    done = place.run(config, *KEYED, code=3)
    assert "holds csv, and labels.key = 'id' joins records of JSON Lines only" in done.stderr
    checked = place.call("check-config", config, *KEYED, *flags_of(**{"source.format": "csv"}))
    assert checked.returncode == 2
    assert "labels.key: must be left out where a source has the format 'csv'" in checked.stderr
