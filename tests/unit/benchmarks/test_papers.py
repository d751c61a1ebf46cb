import json
from importlib import import_module

import numpy as np
import pytest

from benchmarks import tasks
from benchmarks.papers import __main__ as everything
from benchmarks.papers import gridlock, peers, sheets, symmetric
from benchmarks.papers.sheets import Options, Sheet, Target

QUICK = Options(quick=True, data=None, plots=None, map=map)


class TestTarget:
    def test_is_met_at_its_limit(self):
        assert Target("error", 0.5, 0.5).verdict == "met"
        assert Target("fit", 0.97, 0.97, least=True).verdict == "met"

    def test_says_by_how_much_it_is_missed(self):
        assert Target("error", 0.75, 0.5).verdict == "missed by 0.25"
        assert Target("fit", 0.9, 0.97, least=True).verdict == "missed by 0.07"

    def test_that_is_no_number_is_missed(self):
        assert Target("error", float("nan"), 0.5).verdict != "met"
        assert Target("fit", float("nan"), 0.5, least=True).verdict != "met"


def test_a_sheet_shows_its_targets_and_notes_and_tells_what_is_missed():
    sheet = Sheet("A title", ["learner", "error"], [["ours", 0.75]], [Target("error", 0.75, 0.5)], ["a note"])
    text = sheets.shown(sheet)
    assert "A title" in text
    assert "≤ 0.5" in text
    assert "missed by 0.25" in text
    assert text.endswith("· a note")
    assert sheets.misses(sheet) == ["A title: error: missed by 0.25 (0.75)"]
    assert sheets.misses(sheet._replace(targets=[Target("error", 0.5, 0.5)])) == []


class TestFits:
    truth = tasks.gridlock(10, seed=0, k=3)

    def test_are_1_at_the_truth_in_any_order_of_the_experts(self):
        for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
            experts = self.truth.regressors[order]
            logits = self.truth.gate[order]
            found = gridlock.fits(self.truth, 3.0 * experts, (logits - logits[-1])[:-1])
            assert found == pytest.approx((1.0, 1.0))

    def test_tell_of_the_worst_regressor_and_the_worst_direction(self):
        experts = self.truth.regressors.copy()
        experts[1] = np.eye(10)[0]
        gate = self.truth.gate[:-1].copy()
        gate[0] = np.eye(10)[1]
        found = gridlock.fits(self.truth, experts, gate)
        assert found.regressors == pytest.approx(abs(self.truth.regressors[1, 0]))
        assert found.gate == pytest.approx(abs(self.truth.gate[0, 1]))
        assert not found.succeeds


class TestSymmetric:
    task = tasks.symmetric_experts(200, seed=0, d=3)
    theta = symmetric.start_of(task, 0)

    def test_gradients_are_those_of_numerical_differences(self):
        gradient = np.concatenate(symmetric.gradients(self.task, self.theta))

        def value(flat):
            return symmetric.log_likelihood(self.task, symmetric.Theta(flat[:3], flat[3:]))

        flat = np.concatenate(self.theta)
        differences = [(value(flat + e) - value(flat - e)) / 2e-6 for e in 1e-6 * np.eye(6)]
        assert gradient == pytest.approx(differences, abs=1e-7)

    def test_em_climbs_to_where_the_gradient_vanishes(self):
        theta = self.theta
        values = []
        for _ in range(100):
            values.append(symmetric.log_likelihood(self.task, theta))
            theta = symmetric.em_round(self.task, theta)
        assert (np.diff(values) > -1e-12).all()
        assert np.concatenate(symmetric.gradients(self.task, theta)) == pytest.approx(np.zeros(6), abs=1e-7)


def test_without_a_folder_of_data_a_table_says_where_the_set_is(monkeypatch):
    monkeypatch.delenv("STREAMMOE_DATA", raising=False)
    for name, count in (("crime", 1), ("uci", 3)):
        found = list(import_module(f"benchmarks.papers.{name}").sheets(QUICK))
        assert len(found) == count
        for sheet in found:
            assert sheet.headers == ["not run"]
            assert "https://archive.ics.uci.edu/" in sheets.shown(sheet)


def test_peers_predict_each_event_before_they_learn_it():
    X, y = np.ones((3, 1)), np.array([1.0, 1.0, 1.0])

    class Remembers:
        seen = 0.0

        def predict_one(self, x):
            return self.seen

        def learn_one(self, x, target):
            self.seen += target

    assert peers.river(Remembers, X, y).tolist() == [0.0, 1.0, 2.0]


@pytest.mark.slow
def test_tables_are_printed_and_written(tmp_path, capsys):
    out = tmp_path / "tables.json"
    pictures = tmp_path / "pictures"
    chosen = ["--only", "simulation", "--only", "streams"]
    everything.main(["--quick", "--jobs", "1", *chosen, "--json", str(out), "--plots", str(pictures)])
    printed = capsys.readouterr().out
    assert "[MM] §5.2" in printed
    assert "its figures mean nothing" in printed
    written = json.loads(out.read_text())
    assert {sheet["script"] for sheet in written} == {"simulation", "streams"}
    assert {"met", "missed"} >= {target["verdict"].split()[0] for sheet in written for target in sheet["targets"]}
    assert sorted(path.name for path in pictures.iterdir()) == [
        "simulation-5-2.png",
        "simulation-5-3.png",
        "streams-full-gate.png",
        "streams-two-experts.png",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gridlock", "symmetric", "classes"])
def test_every_script_runs_in_its_quick_form(name):
    for sheet in import_module(f"benchmarks.papers.{name}").sheets(QUICK):
        assert len({len(row) for row in sheet.rows} | {len(sheet.headers)}) == 1
        assert sheets.shown(sheet)
