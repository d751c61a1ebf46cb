"""Write the golden files of the current checkpoint format: one for each family and phase, as a daemon writes them.

Run it once for each new format number, and never again after its release: tests/golden/format-N is what users have on
their disks, so existing files are left alone, and a test compares their bytes with tests/golden/format-N/expected.json.
Before the release remove the files of a format that has changed first.

    python scripts/golden_checkpoints.py

Each folder also has the events, so that a daemon can resume from the checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.persistence import FORMAT, CheckpointStore

FOLDER = Path(__file__).parents[1] / "tests" / "golden" / f"format-{FORMAT}"
EVENTS = 36
LABELS = 30
"""Number of delayed labels that have arrived."""
WARMUP = 24
PROBES = [[0.5, -1.0], [-1.5, 0.25]]
"""Inputs whose predictions are recorded."""


def events() -> list[dict[str, Any]]:
    """Create events with two inputs, a category and a time; with a number, two numbers and a label as targets."""
    rng = np.random.default_rng(20)
    found = []
    for i, (a, b, noise) in enumerate(rng.normal(size=(EVENTS, 3)).round(3).tolist()):
        y = round((2 * a if a > 0 else b) + 0.1 * noise, 3)
        kinds = {"color": "red" if i % 3 else "blue", "at": 1_700_000_000 + 3_600 * i}
        found.append({"a": a, "b": b, **kinds, "y": y, "z": round(y - b, 3), "kind": "up" if y > 0 else "down"})
    return found


def delayed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Split events into features that come first and labels that come later."""
    features = [{"id": f"e{i}", "a": event["a"], "b": event["b"]} for i, event in enumerate(found)]
    labels = [{"id": f"e{i}", "y": event["y"]} for i, event in enumerate(found[:LABELS])]
    return [*features, *labels]


FAMILIES: dict[str, dict[str, Any]] = {
    "regressor": {"schema": {"target": "y"}},
    "diagonal": {"schema": {"target": ["y", "z"]}},
    "full": {"schema": {"target": ["y", "z"]}, "model": {"expert": {"kind": "gaussian", "covariance": "full"}}},
    "student_t": {"schema": {"target": "y"}, "model": {"expert": {"kind": "student_t", "df": 5.0}}},
    "laplace": {"schema": {"target": "y"}, "model": {"expert": "laplace"}},
    "classifier": {"schema": {"target": "kind"}, "model": {"kind": "classifier"}},
    "columns": {
        "schema": {"target": "y", "features": ["a", "color", "at"], "categorical": ["color"], "timestamps": ["at"]},
        "model": {"averaging": "none"},
    },
    "labels": {"schema": {"target": "y"}, "labels": {"key": "id"}, "source": {"path": "delayed.jsonl"}},
}


def tables(family: str, phase: str) -> dict[str, Any]:
    """Return the settings of one golden file."""
    given = FAMILIES[family]
    warmup = WARMUP if phase == "learned" else 10 * EVENTS
    return {
        "source": {"kind": "file", "path": "events.jsonl", **given.get("source", {})},
        "schema": {"features": ["a", "b"], **given["schema"]},
        "labels": given.get("labels", {}),
        "model": {"n_experts": 2, "warmup": warmup, **given.get("model", {})},
        "metrics": {"enabled": False},
    }


def golden_names() -> list[tuple[str, str]]:
    """Return family and phase of each file."""
    return [(family, phase) for family in FAMILIES for phase in ("warming-up", "learned")]


def write() -> None:
    """Write missing files and their expected properties."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, records in (("events.jsonl", events()), ("delayed.jsonl", delayed(events()))):
        if not (FOLDER / name).exists():
            (FOLDER / name).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    index = FOLDER / "expected.json"
    expected: dict[str, Any] = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}
    for family, phase in golden_names():
        name = f"{family}-{phase}.safetensors"
        if (FOLDER / name).exists():
            print(f"{name}: exists, left as it is")
            continue
        data = _checkpoint(family, phase)
        (FOLDER / name).write_bytes(data)
        expected[name] = {"sha256": hashlib.sha256(data).hexdigest(), **_facts(FOLDER / name)}
        print(f"{name}: {len(data):,} bytes")
    index.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _checkpoint(family: str, phase: str) -> bytes:
    """Return the checkpoint that a daemon writes."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for path in FOLDER.glob("*.jsonl"):
            (Path(folder) / path.name).write_bytes(path.read_bytes())
        os.chdir(folder)  # paths in positions are those of the settings
        try:
            settings = settings_from(tables(family, phase), "the golden files")
            with open_daemon(settings) as running, StopFlag() as stop:
                running.daemon.run(stop)
            return CheckpointStore("state").path(1).read_bytes()
        finally:
            os.chdir(here)


def _facts(path: Path) -> dict[str, Any]:
    """Summarize a file and the predictions of its model."""
    found = describe_checkpoint(path)
    facts = {"kind": found["model"]["kind"], **{name: found[name] for name in ("n", "state_digest", "pending")}}
    model = load(path)
    if isinstance(model, MoEClassifier):
        facts["predictions"] = model.predict_proba_array(np.array(PROBES), feature_names=["a", "b"]).tolist()
    elif isinstance(model, MoERegressor | MoEMultiTargetRegressor) and model.fields == ["a", "b"]:
        facts["predictions"] = model.predict_array(np.array(PROBES), feature_names=["a", "b"]).tolist()
    return facts


if __name__ == "__main__":
    write()
