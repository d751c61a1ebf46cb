"""What `streammoe inspect` shows of a folder and of a file."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.commands import main
from streammoe.commands.inspect import look_into
from streammoe.configuration import load_settings
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore

pytestmark = pytest.mark.usefixtures("logging_as_before")

STATE = Path("state")


class Asked:
    requested = False


@pytest.fixture
def summary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    Path("config.toml").write_text("""
        source = { kind = "file", path = "data-*.csv" }
        schema.target = "y"
        model = { kind = "classifier", n_experts = 2, warmup = 50, warmup_restarts = 1 }
        metrics.enabled = false
    """)
    for part in range(3):  # each run leaves one checkpoint
        rows = "".join(f"{i % 7},{i % 5},{i % 3}\n" for i in range(500))
        Path(f"data-{part}.csv").write_text(f"a,b,y\n{rows}")
        with open_daemon(load_settings("config.toml", environment={})) as running:
            summary = running.daemon.run(Asked())
    return summary


def test_a_folder_shows_the_newest_sound_one_and_what_is_wrong_with_others(summary):
    store = CheckpointStore(STATE)
    first, second, third = store.generations()
    store.path(third + 1).write_bytes(b"")
    store.path(second).write_bytes(store.path(second).read_bytes()[:-1])
    (STATE / "set-aside-x").mkdir()
    found = look_into(STATE, now=datetime.now(UTC) + timedelta(hours=1))
    assert (found["generation"], found["n"], found["state_digest"]) == (third, summary.learned, summary.state_digest)
    assert found["scores"] == summary.scores
    assert 3_600 <= found["age_seconds"] < 3_700
    assert found["counters"]["outcomes"]["learned"] == 1_500
    assert found["positions"][0]["files"][0]["path"] == "data-0.csv"
    assert found["set_aside"] == ["state/set-aside-x"]
    states = {entry["generation"]: entry for entry in found["generations"]}
    assert [states[number]["sound"] for number in sorted(states)] == [True, False, True, False]
    assert "damaged" in states[second]["problem"]
    assert states[first]["n"] < states[third]["n"] == 1_500
    assert states[third]["state_digest"] == summary.state_digest


def test_a_file_shows_itself(summary):
    found = look_into(Path(summary.checkpoint))
    newest = look_into(STATE)
    assert found["generation"] == newest["generation"]
    assert (found["generations"], found["set_aside"]) == ([], [])
    assert {name: found[name] for name in ("n", "state_digest", "scores", "counters")} == {
        name: newest[name] for name in ("n", "state_digest", "scores", "counters")
    }


def test_of_a_folder_without_any_sound_one_it_says_what_is_wrong_with_each(summary):
    store = CheckpointStore(STATE)
    for generation in store.generations():
        store.path(generation).write_bytes(b"")
    with pytest.raises(CheckpointError) as refused:
        look_into(STATE)
    assert all(store.path(generation).name in str(refused.value) for generation in store.generations())


def test_the_command_prints_all_of_it(summary):
    def call(*arguments):
        done = CliRunner().invoke(main, ["inspect", "state", *arguments])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    found = json.loads(call("--json"))
    lines = call().splitlines()
    assert len(lines) == len(found) - 2 + len(found["generations"]) + len(found["experts"])
    assert re.search(
        r"^experts        1  alive, share 0\.\d+, loss -?\d\S*, \S+ nats from expert 0$", call(), re.MULTILINE
    )
    for entry in found["generations"]:
        assert f"{'generations':14} {entry['generation']}  sound, n {entry['n']}, " in "\n".join(lines)
    assert f"{'state_digest':14} {summary.state_digest}" in lines
