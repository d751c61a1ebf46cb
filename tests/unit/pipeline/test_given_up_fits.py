"""A stop during a fit: nothing of its batch stays, what came before is saved, and the next start learns it again."""

import json
import math
from types import SimpleNamespace

import pytest

from streammoe.assembly import open_daemon
from streammoe.commands.inspect import inspect_path
from streammoe.configuration import settings_from
from streammoe.model import fits
from tests.unit.pipeline.written_rows import lines

N, WARMUP = 500, 200
PLAIN = [{"a": round(math.sin(i), 4), "y": round(math.cos(i), 4)} for i in range(N)]
HALVES = [half for i, row in enumerate(PLAIN) for half in ({"a": row["a"], "id": i}, {"id": i, "y": row["y"]})]
WIDER = [{**row, "b": 1.0} if i > 150 else row for i, row in enumerate(PLAIN)]
NO_FITS = {"n_experts": 2, "warmup": 0}
CASES = {
    "joined labels": (HALVES, {"labels": {"key": "id"}}),
    "late columns": (WIDER, {"schema": {"target": "y", "late_columns": True}}),
    "in the first batch": (PLAIN, {"block_bytes": 1 << 20}),
    "a further fit": (PLAIN, {}),
    "a further fit to joined labels": (HALVES, {"labels": {"key": "id"}}),
    "the challenger's": (PLAIN, {"challenger": {"warmup": 300}}),
    "the challenger's, alone": (HALVES, {"model": NO_FITS, "challenger": {"warmup": 300}, "labels": {"key": "id"}}),
}


def run(folder, rows, stop, block_bytes=4096, **sections):
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = {
        "source": {"kind": "file", "path": str(folder / "rows.jsonl"), "block_bytes": block_bytes},
        "schema": {"target": "y"},
        "model": {"n_experts": 2, "warmup": WARMUP},
        "checkpoint": {"dir": str(folder / "state")},
        "dead_letters": {"path": str(folder / "dead.jsonl")},
        "predictions": {"kind": "file", "path": str(folder / "predictions.jsonl")},
        "metrics": {"enabled": False},
        **sections,
    }
    with open_daemon(settings_from(tables, "the test")) as running:
        summary = running.daemon.run(stop)
    predicted = sorted(json.dumps(row["prediction"]) for row in lines(folder / "predictions.jsonl"))
    return summary, (predicted, inspect_path(folder / "state")["challenger"])


@pytest.mark.parametrize("name", CASES)
def test_what_a_given_up_fit_belongs_to_is_learned_once_by_the_next_start(tmp_path, monkeypatch, name):
    rows, sections = CASES[name]
    due = 2 * WARMUP if "further" in name else sections.get("challenger", {"warmup": WARMUP})["warmup"]
    monkeypatch.setattr("streammoe.assembly.compile_kernels", lambda *_: None)
    whole, predicted = run(tmp_path / "whole", rows, SimpleNamespace(requested=False), **sections)
    stop = SimpleNamespace(requested=False)
    advance = fits.Fit.advance

    def advance_and_stop(fit, n):
        stop.requested = stop.requested or fit.plan.n == due
        return advance(fit, n)

    with monkeypatch.context() as patched:
        patched.setattr("streammoe.engine.interruption.GRACE_SECONDS", 0.0)
        patched.setattr(fits.Fit, "advance", advance_and_stop)
        stopped, _ = run(tmp_path / "stopped", rows, stop, **sections)
    assert stop.requested
    assert stopped.model_events < due
    assert stopped.checkpoint
    summary, rest = run(tmp_path / "stopped", rows, SimpleNamespace(requested=False), **sections)
    own = {"checkpoint": "", "events_per_second": 0.0}
    assert summary._replace(**own) == whole._replace(**own)
    assert rest == predicted
