"""Checkpoints as released versions wrote them: they load, are what they were, and go on learning.

`scripts/golden_checkpoints.py` made them, once for each format. A change that breaks a test here would leave users with
checkpoints that they cannot use: it needs a new format number, and a reader for the old one or an error message. Until
the first release of a format its files are written anew instead (docs/checkpoint-format.md).
"""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from scripts.golden_checkpoints import EVENTS, LABELS, PROBES, events, golden_names, tables
from streammoe import MoEClassifier, assembly, load
from streammoe.assembly import open_daemon
from streammoe.commands.inspect import describe_checkpoint
from streammoe.configuration import settings_from
from streammoe.daemon.signals import StopFlag
from streammoe.persistence import FORMAT, CheckpointStore, decode, encode

HERE = Path(__file__).parent
FOLDER = HERE / "format-1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
NAMES = [f"{family}-{phase}.safetensors" for family, phase in golden_names()]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)


def test_every_format_that_there_has_been_has_its_files():
    assert [path.name for path in sorted(HERE.glob("format-*"))] == [f"format-{n}" for n in range(1, FORMAT + 1)]
    assert sorted(path.name for path in FOLDER.glob("*.safetensors")) == sorted(EXPECTED) == sorted(NAMES)


def test_they_load_and_are_what_they_were():
    for name, expected in EXPECTED.items():
        data = (FOLDER / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == expected["sha256"]
        assert encode(*decode(data, name)) == data
        found = describe_checkpoint(FOLDER / name)
        assert found["state_digest"] == expected["state_digest"] == decode(data, name).metadata["state_digest"]
        assert (found["model"]["kind"], found["n"], found["pending"]) == tuple(
            expected[key] for key in ("kind", "n", "pending")
        )
        assert found["warming_up"] == ("warming-up" in name)
        if "predictions" in expected:
            model = load(FOLDER / name)
            predict = model.predict_proba_array if isinstance(model, MoEClassifier) else model.predict_array
            predictions = predict(np.array(PROBES), feature_names=["a", "b"])
            np.testing.assert_allclose(predictions, expected["predictions"], rtol=1e-9)


def go_on(family, phase, more, **named):
    """A daemon that takes a golden file up, with these further records and settings of the model."""
    for path in FOLDER.glob("*.jsonl"):
        shutil.copy(path, path.name)
    store = CheckpointStore("state")
    store.prepare()
    shutil.copy(FOLDER / f"{family}-{phase}.safetensors", store.path(1))
    given = tables(family, phase)
    stem = Path(given["source"]["path"]).stem
    Path(f"{stem}-2.jsonl").write_text("".join(json.dumps(record) + "\n" for record in more))
    given["source"]["path"] = f"{stem}*.jsonl"
    given["model"] |= named
    with open_daemon(settings_from(given, "the golden files")) as running, StopFlag() as stop:
        return running.daemon.run(stop)


@pytest.mark.parametrize(("family", "phase"), golden_names())
def test_a_daemon_resumes_from_them_and_learns_each_event_once(family, phase):
    if family == "labels":
        more = [{"id": f"e{i}", "y": event["y"]} for i, event in enumerate(events())][LABELS:]
    else:
        more = events()[:20]
    n = EXPECTED[f"{family}-{phase}.safetensors"]["n"]
    summary = go_on(family, phase, more)
    assert (summary.learned, summary.rejected, summary.pending) == (n + len(more), 0, 0)
    assert n + len(more) == (EVENTS if family == "labels" else EVENTS + 20)
    found = describe_checkpoint("state")
    assert (found["n"], found["state_digest"]) == (n + len(more), summary.state_digest)
