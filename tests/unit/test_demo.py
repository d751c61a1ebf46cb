"""What the demonstrations claim: ours next to River's own learners, on the same events."""

import contextlib
import json
import re
import socket
import tomllib

import pytest

from streammoe.commands.demo import CLASSIFICATION, CONFIG, REGRESSION, run_demo
from streammoe.configuration import load_settings
from streammoe.errors import ConfigError


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


def test_two_at_a_time_and_one_after_the_other(tmp_path):
    """Only one of them has the usual port, if another program does not have it anyway."""

    def demo(name, port=None):
        return run_demo(tmp_path / name, port=port, on_batch=lambda progress: None)

    with demo("first") as first, demo("second") as second:
        addresses = [re.search(r"http://\S+", report.places[0]).group() for report in (first, second)]
        assert len(set(addresses)) == 2
        assert shown(first.table).keys() == shown(second.table).keys()
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second"}
    with demo("first") as again:
        assert again.table.startswith("1,001 events")
    names = {path.name for path in (tmp_path / "first").iterdir()}
    assert names == {"trump-approval.csv", "demo.toml", "checkpoints", "dead-letters.jsonl"}


def test_a_port_that_was_asked_for_must_be_free(tmp_path):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError), run_demo(tmp_path, port=port, on_batch=lambda progress: None):
            pass


@pytest.mark.exhaustive
def test_classification(tmp_path):
    with run_demo(tmp_path / "d", port=0, on_batch=lambda progress: None, classify=True) as report:
        rows = shown(report.table)
    assert report.table.startswith("2,310 events")
    assert list(rows) == ["streammoe, 2 experts", *CLASSIFICATION.baselines()]
    ours, *others = rows.values()
    assert ours[0] > 0.9
    assert all(ours[0] > other[0] and ours[1] > other[1] for other in others)
    assert rows["river SoftmaxRegression"][0] == pytest.approx(0.825, abs=0.001)
