"""What the programs and notebooks of examples/ print is what their tasks promise, and their types are right."""

import doctest
import re
import runpy
from pathlib import Path

import nbformat
import pytest
from mypy import api
from nbclient import NotebookClient
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "bikes": ("error: # bikes.* before #.*\n#% of", lambda ours, usual, inside: ours < usual / 3 and 85 < inside < 95),
    "sensor_with_lags": (
        "no lags: # .*automatic lags: # .*both: # .*alone: #",
        lambda none, automatic, both, noise: 0.9 * noise < both < 1.2 * noise < automatic < none / 5,
    ),
    # The mean error of who knows all but the noise of deviation 1 is 0.8.
    "late_labels": (
        "# events learned; at most # were waiting, at the end #\n.*prediction: # .*\n#% of",
        lambda n, most, left, error, inside: (n, left) == (2_500, 0) and most > 10 and error < 1.1 and 85 < inside < 93,
    ),
    "drift_seen": (
        "seen at event #: .*before: #\n.*soon after: #\n.*later: #\n.*after the change: #",
        lambda seen, before, soon, later, frozen: (
            4_000 < seen < 4_500 and before < soon / 3 and later < soon / 3 < frozen
        ),
    ),
    "rare_class": (
        "log-loss: #, .*alone #\n.*model: #\n.*look: #\n.*each: #",
        lambda loss, usual, cost, blind, wary: loss < 0.9 * usual and cost < 0.5 * min(blind, wary),
    ),
    "two_shards": (
        "later ones # .*later ones # .*later ones # .*later ones # .*alone: #",
        lambda first, second, merged, whole, noise: noise < merged < min(first, second) and merged < whole + 0.005,
    ),
    "challenger": (
        "model: log-loss #,.*challenger: log-loss #,.*has # expert\n.*has # experts",
        lambda model, rival, before, after: rival < model - 1 and (before, after) == (1, 4),
    ),
    "explain_an_expert": (
        "≤ 15[^:]*: outside # ± #\n.*: # kWh\n.*experts: #\n.*outside: #\n.*people: #\n.*seen: #",
        lambda slope, error, said, *parts: (
            abs(slope + 2) < 4 * error + 0.01 and abs(said - 43) < 1 > abs(sum(parts) - said)
        ),
    ),
}
"""By the name of a program: where the figures are in what it prints, and what must hold of them."""
NOTEBOOKS = {
    "first_steps": (
        "error #; #% in.*predicted # of #,",
        lambda error, inside, said, y: error < 0.4 > abs(said - y) and 87 < inside < 95,
    ),
    "experts": ("outside > #.*off by # kWh of #", lambda edge, off, spread: abs(edge - 22) < 1 and off < 0.05 * spread),
    "drift": (
        "seen at #\nerror before #, at the change #, at the end #",
        lambda seen, before, at, after: 3_000 < seen < 3_500 and before < at / 10 and after < at / 10,
    ),
    "classes": ("accuracy #%; bins are off by # ", lambda accuracy, off: accuracy > 90 and off < 0.1),
}


def check(printed, where, holds):
    """Find the figures, at each # of a pattern, and say what was printed if they are not as they should be."""
    found = re.search(where.replace("#", r"([-+]?\d[\d,]*(?:\.\d+)?)"), printed, re.DOTALL)
    assert found, printed
    assert holds(*(float(each.replace(",", "")) for each in found.groups())), printed


def test_there_is_a_promise_of_each_example():
    assert {path.stem for path in ROOT.glob("examples/*.py")} == set(PROGRAMS)
    assert {path.stem for path in ROOT.glob("examples/notebooks/*")} == set(NOTEBOOKS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "challenger" else []) for name in PROGRAMS]
)
def test_programs(name, capsys):
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60
    runpy.run_path(str(path), run_name="__main__")
    check(capsys.readouterr().out, *PROGRAMS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks(name, tmp_path, monkeypatch):
    notebook = nbformat.read(ROOT / "examples" / "notebooks" / f"{name}.ipynb", 4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs would go stale: store it without"
    monkeypatch.chdir(tmp_path)  # where the kernel makes its sockets, since no other process can take these for its own
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))  # and not the home of who runs the tests
    NotebookClient(notebook, config=Config({"KernelManager": {"transport": "ipc"}}), timeout=120).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    check("".join(output.get("text", "") for output in outputs), *NOTEBOOKS[name])
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", ())]
    assert pictures
    assert all(len(picture) < 100_000 for picture in pictures)


@pytest.mark.slow
def test_programs_and_the_snippets_of_the_readme_are_typed(tmp_path):
    snippets = doctest.DocTestParser().get_examples((ROOT / "README.md").read_text(encoding="utf-8"))
    (tmp_path / "readme.py").write_text("".join(each.source for each in snippets), encoding="utf-8")
    paths = [*ROOT.glob("examples/*.py"), tmp_path / "readme.py"]
    found, problem, code = api.run(["--config-file", str(ROOT / "pyproject.toml"), "--strict", *map(str, paths)])
    assert code == 0, found + problem
