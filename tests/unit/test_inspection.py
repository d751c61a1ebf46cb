"""What `streammoe inspect` shows of a folder and of a file."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.inspect import inspect_path
from tests.unit import daemons

pytestmark = pytest.mark.usefixtures("logging_as_before")

STATE = Path("state")


@pytest.fixture
def summary(tmp_path, monkeypatch):
    daemons.enter(
        tmp_path,
        monkeypatch,
        """
        source = { kind = "file", path = "data-*.csv" }
        schema.target = "y"
        model = { kind = "classifier", n_experts = 2, warmup = 50 }
        metrics.enabled = false
        """,
    )
    for part in range(3):  # each run leaves one checkpoint
        daemons.write_csv(f"data-{part}.csv", [(i % 7, i % 5, i % 3) for i in range(100)])
        summary = daemons.run()
    return summary


def test_file_and_folder_show_the_newest_sound_one_and_what_is_wrong_with_others(summary):
    store = daemons.store()
    first, second, third = store.generations()
    store.path(third + 1).write_bytes(b"")
    store.path(second).write_bytes(store.path(second).read_bytes()[:-1])
    (STATE / "set-aside-x").mkdir()
    found = inspect_path(STATE, now=datetime.now(UTC) + timedelta(hours=1))
    assert (found["generation"], found["n"], found["state_digest"]) == (third, 300, summary.state_digest)
    assert (found["scores"], found["counters"]["outcomes"]["learned"]) == (summary.scores, 300)
    assert 3_600 <= found["age_seconds"] < 3_700
    assert found["positions"][0]["files"][0]["path"] == "data-0.csv"
    assert found["set_aside"] == ["state/set-aside-x"]
    states = {entry["generation"]: entry for entry in found["generations"]}
    assert [states[number]["sound"] for number in sorted(states)] == [True, False, True, False]
    assert "damaged" in states[second]["problem"]
    assert states[first]["n"] == 100
    file = inspect_path(Path(summary.checkpoint))
    for name in ("generation", "n", "state_digest", "scores", "counters"):
        assert file[name] == found[name]


def test_the_command_prints_all_of_it(summary):
    as_json, text = (CliRunner().invoke(main, ["inspect", "state", *more]).stdout for more in (["--json"], []))
    found, lines = json.loads(as_json), text.splitlines()
    assert len(lines) == len(found) - 2 + len(found["generations"]) + len(found["experts"])
    line = re.compile(r"experts        1  alive, share 0\.\d+, loss -?\d\S*, \S+ nats from expert 0")
    assert any(map(line.fullmatch, lines))
    for entry in found["generations"]:
        assert any(line.startswith(f"generations    {entry['generation']}  sound, n {entry['n']}, ") for line in lines)
    assert f"state_digest   {summary.state_digest}" in lines
    assert not {"None", "True", "False"}.intersection(text.split())
