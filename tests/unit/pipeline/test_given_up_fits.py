"""A stop during a fit: nothing of its batch stays, what came before is saved, and the next start learns it again."""

import json
import math
from types import SimpleNamespace

import pytest

from streammoe.assembly import open_daemon
from streammoe.configuration import settings_from
from streammoe.engine import warmup

N, WARMUP = 500, 300
PLAIN = [{"a": round(math.sin(i), 4), "y": round(math.cos(i), 4)} for i in range(N)]
HALVES = [half for i, row in enumerate(PLAIN) for half in ({"a": row["a"], "id": i}, {"id": i, "y": row["y"]})]
WIDER = [{**row, "b": 1.0} if i > 240 else row for i, row in enumerate(PLAIN)]


def run(folder, rows, stop, **sections):
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = {
        "source": {"kind": "file", "path": str(path), "block_bytes": 4096},
        "schema": {"target": "y"},
        "model": {"n_experts": 2, "warmup": WARMUP, "warmup_restarts": 1},
        "checkpoint": {"dir": str(folder / "state")},
        "dead_letters": {"path": str(folder / "dead.jsonl")},
        "predictions": {"kind": "file", "path": str(folder / "predictions.jsonl")},
        "metrics": {"enabled": False},
    }
    for name, section in sections.items():
        tables.setdefault(name, {}).update(section)
    with open_daemon(settings_from(tables, "the test")) as running:
        summary = running.daemon.run(stop)
    predicted = (folder / "predictions.jsonl").read_text().splitlines()
    return summary, sorted(json.dumps(json.loads(row)["prediction"]) for row in predicted)


@pytest.mark.parametrize(
    ("rows", "sections"),
    [
        (PLAIN, {}),
        (HALVES, {"labels": {"key": "id"}}),
        (WIDER, {"schema": {"late_columns": True}}),
        (PLAIN, {"source": {"block_bytes": 1 << 20}}),
    ],
    ids=["plain", "joined labels", "late columns", "in the first batch"],
)
def test_what_a_given_up_fit_belongs_to_is_learned_once_by_the_next_start(tmp_path, monkeypatch, rows, sections):
    whole, predicted = run(tmp_path / "whole", rows, SimpleNamespace(requested=False), **sections)
    stop = SimpleNamespace(requested=False)
    fit = warmup.fit

    def fit_and_stop(*arguments, **more):
        stop.requested = bool(len(arguments[1].W) == WARMUP)
        return fit(*arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr("streammoe.engine.interruption.GRACE_SECONDS", 0.0)
        patched.setattr(warmup, "fit", fit_and_stop)
        patched.setattr("streammoe.assembly.compile_kernels", lambda *_: None)
        stopped, _ = run(tmp_path / "stopped", rows, stop, **sections)
    assert stop.requested
    assert stopped.model_events < WARMUP
    assert stopped.checkpoint
    summary, rest = run(tmp_path / "stopped", rows, SimpleNamespace(requested=False), **sections)
    assert summary.state_digest == whole.state_digest
    assert summary._replace(checkpoint="", events_per_second=0.0) == whole._replace(
        checkpoint="", events_per_second=0.0
    )
    assert rest == predicted
