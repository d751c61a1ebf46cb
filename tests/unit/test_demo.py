"""What the demonstrations claim: ours beside River's own learners, on the same events."""

import json
import re
import tomllib

import pytest

from streammoe.configuration import load_settings
from streammoe.demo import CLASSIFICATION, CONFIG, REGRESSION, run_demo


def shown(table):
    """Score over all events, second half, events a second, by name."""
    rows = re.findall(r"^(\S.*?)  +([\d.]+) +([\d.]+) +([\d,]+)$", table, re.MULTILINE)
    return {name: (float(score), float(half), int(speed.replace(",", ""))) for name, score, half, speed in rows}


@pytest.mark.parametrize("task", [REGRESSION, CLASSIFICATION])
def test_its_configuration_is_one(task, tmp_path):
    text = CONFIG.format(
        folder="f",
        data=json.dumps('d".csv'),
        target=task.target,
        model=task.model,
        state='"s"',
        dead_letters='"x"',
        port=0,
    )
    assert tomllib.loads(text)["source"]["path"] == 'd".csv'
    (tmp_path / "demo.toml").write_text(text)
    settings = load_settings(tmp_path / "demo.toml", environment={})
    assert (settings.schema.target, settings.model.kind == "classifier") == (task.target, task.classify)


def test_regression(tmp_path):
    with run_demo(tmp_path / "d", port=0, on_batch=lambda progress: None) as report:
        rows = shown(report.table)
    assert list(rows) == ["streammoe, 2 experts", *REGRESSION.baselines()]
    ours, *others = rows.values()
    assert all(ours[0] < other[0] and ours[1] < other[1] for other in others)
    assert (tmp_path / "d" / "trump-approval.csv").read_text().count("\n") == 1_002


@pytest.mark.slow
def test_classification(tmp_path):
    with run_demo(tmp_path / "d", port=0, on_batch=lambda progress: None, classify=True) as report:
        rows = shown(report.table)
    assert report.table.startswith("2,310 events")
    assert list(rows) == ["streammoe, 2 experts", *CLASSIFICATION.baselines()]
    ours, *others = rows.values()
    assert ours[0] > 0.9
    assert all(ours[0] > other[0] and ours[1] > other[1] for other in others)
    assert rows["river SoftmaxRegression"][0] == pytest.approx(0.825, abs=0.001)
