"""A daemon with lags whose labels come late: a restart anywhere leaves no trace."""

import json
import math
from pathlib import Path

import pytest

from tests.unit import daemons

DELAY = 5


def records():
    """Features, and labels of the features so many records before."""
    for i in range(300 + DELAY):
        if i < 300:
            yield {"id": i, "a": round(math.cos(3 * i), 3)}
        if i >= DELAY:
            yield {"id": i - DELAY, "y": round(math.sin(0.3 * (i - DELAY)), 3)}


def write(name, lines):
    Path(name).write_text("".join(json.dumps(record) + "\n" for record in lines))


@pytest.mark.parametrize("until", [3, 41, 400])
def test_a_restart_leaves_no_trace(tmp_path, monkeypatch, until):
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "file", path = "events-*.jsonl", block_bytes = 4096 }
        schema = { target = "y" }
        labels.key = "id"
        model = { n_experts = 2, warmup.size = 60, warmup.restarts = 1, lags = { size = 2, inputs = ["a"] } }
        metrics.enabled = false
        """,
    )
    lines = list(records())
    write("whole.jsonl", lines)
    whole = daemons.run("source.path=whole.jsonl", "checkpoint.dir=whole")
    assert (whole.learned, whole.pending) == (300, 0)
    write("events-1.jsonl", lines[:until])
    assert daemons.run().pending
    write("events-2.jsonl", lines[until:])
    assert daemons.run().state_digest == whole.state_digest
