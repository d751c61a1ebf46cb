"""What `streammoe inspect` shows of a folder and of a file."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streammoe import MoERegressor
from streammoe.commands import main
from streammoe.commands.inspect import details, inspect_path, singles_shown
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
    found = inspect_path(STATE)
    assert (found["generation"], found["n"], found["state_digest"]) == (third, 300, summary.state_digest)
    assert (found["scores"], found["counters"]["outcomes"]["learned"]) == (summary.scores, 300)
    assert 0 <= found["age_seconds"] < 3_600
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
    formulas = len(found["experts"]) + len(singles_shown(found))
    assert len(lines) == len(found) - 4 + len(found["generations"]) + 2 * len(found["experts"]) + 2 * formulas
    line = re.compile(r"experts        1  alive, share 0\.\d+, loss -?\d\S*, \S+ nats from expert 0")
    assert any(map(line.fullmatch, lines))
    largest = max(found["member_shares"].items(), key=lambda each: each[1])
    assert f"predicts       {largest[0]} {largest[1]:.1%}" in text
    for expert in found["experts"]:
        assert any(line.endswith(f"region: {expert['region']}") for line in lines)
    own = [
        each for each in found["coefficients"] if (each["member"], each["expert"]) == (found["experts"][0]["member"], 0)
    ]
    assert {each["standard_error"] for each in own} == {None}
    assert any(f"log-odds of {own[0]['output']} to 0 = {own[0]['value']:.4g} " in line for line in lines)
    for entry in found["generations"]:
        assert any(line.startswith(f"generations    {entry['generation']}  sound, n {entry['n']}, ") for line in lines)
    assert f"state_digest   {summary.state_digest}" in lines
    assert not {"None", "True", "False"}.intersection(text.split())


def test_the_history_shows_no_blanks():
    entry = {"event": "reloaded", "n": 5, "version": "0.1.0", "revision": "", "settings": {}, "generation": None}
    assert details(entry) == "version 0.1.0"
    assert details(entry | {"generation": 0}) == "version 0.1.0, generation 0"


def test_an_expert_that_the_gate_prefers_nowhere_is_unused(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 2))
    model = MoERegressor(3)
    model.learn_array(X, np.where(np.arange(3_000) < 2_000, np.sign(X[:, 0]) * X[:, 1], 3.0 + X[:, 1]))
    model.save(tmp_path / "model")
    conditions = {expert["condition"] for expert in model.experts()}
    found = inspect_path(tmp_path / "model")["experts"]
    assert "starved" in conditions
    gate = model.learner.context.recent.rows(2)[0][-512:]
    for k, expert in enumerate(found):
        share = np.mean([model.gate_one({"x0": a, "x1": b})[k] for a, b in gate.tolist()])
        assert (expert["condition"] == "unused") == (model.experts()[k]["condition"] == "starved" and share < 0.01)


def test_a_picture_is_drawn_into_a_file_or_the_error_names_it(summary):
    path = summary.checkpoint
    assert CliRunner().invoke(main, ["inspect", path, "--plot", "model.svg"]).exit_code == 0
    assert Path("model.svg").read_text().count("<svg") == 1
    result = CliRunner().invoke(main, ["inspect", path, "--plot", "nowhere/model.svg"])
    assert (result.exit_code, "nowhere/model.svg" in result.stderr) == (2, True)
