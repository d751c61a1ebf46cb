"""What the demonstrations claim: ours next to River's own learners, on the same events."""

import re

import pytest
from click.testing import CliRunner

from streammoe.commands.demo import AGAINST, FILE, command


def run(folder, *options):
    return CliRunner().invoke(command, ["--dir", str(folder), *options])


def scores(shown):
    """Return the score over all events and over the last quarter, by name."""
    rows = re.findall(r"^(\S.*?)  +(\d+\.\d+) +(\d+\.\d+) ", shown, re.MULTILINE)
    return {name.partition(",")[0]: (float(whole), float(late)) for name, whole, late in rows}


def test_regression_is_won_and_can_be_shown_again(tmp_path):
    folder = tmp_path / 'a "quoted" folder'
    first, again = run(folder), run(folder)
    assert "trump-approval.csv: 1,001 events" in first.stdout
    assert list(scores(first.stdout)) == ["streammoe", *(name.replace(":", " ") for name in AGAINST), "running mean"]
    ours, *others = scores(first.stdout).values()
    assert all(ours[0] < other[0] and ours[1] < other[1] for other in others)
    assert scores(first.stdout) == scores(again.stdout)
    assert {path.name for path in folder.iterdir()} >= {"trump-approval.csv", "demo.toml", "checkpoints"}


@pytest.mark.parametrize("name", ["demo.toml", FILE])
def test_what_somebody_has_edited_is_kept(tmp_path, name):
    (tmp_path / name).write_text("mine")
    done = run(tmp_path)
    assert (done.exit_code, (tmp_path / name).read_text()) == (2, "mine")
    assert name in done.stderr
