"""What the demonstrations claim: ours next to River's own learners, on the same events."""

import contextlib
import re
import socket

import pytest

from streammoe.commands.demo import CLASSIFICATION, LONG, NO_INTERCEPT, REGRESSION, run_demo
from streammoe.configuration import load_settings
from streammoe.errors import ConfigError


def run(folder, port=None, **options):
    return run_demo(folder, port=port, on_batch=lambda _: None, **options)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr("streammoe.commands.demo.LONG", LONG._replace(events=lambda: LONG.events()[:3000]))
    # The usual one may be taken, and is needed by the rehearsal of the image, which may run beside.
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        monkeypatch.setattr("streammoe.commands.demo.PORT", free.getsockname()[1])


def shown(table):
    """Score over all events and over the second half, by name, without the table of speeds."""
    scores, *_ = table.split(" further events")
    rows = re.findall(r"^(\S.*?)  +(\d\.\d+) +(\d\.\d+)$", scores, re.MULTILINE)
    return {name: (float(score), float(half)) for name, score, half in rows}


@pytest.mark.slow
def test_regression_is_won_and_two_may_run_at_a_time_or_one_after_the_other(tmp_path):
    folder = tmp_path / 'a "quoted" folder'
    with run(folder) as first, run(tmp_path / "second", port=0) as second:
        addresses = [re.search(r"http://\S+", report.locations[0]).group() for report in (first, second)]
        assert len(set(addresses)) == 2, "only one of them has the usual port"
        rows = shown(first.table)
        assert rows == shown(second.table)
    assert list(rows) == ["streammoe", *REGRESSION.baselines()]
    ours, *others = rows.values()
    assert all(ours[0] < other[0] and ours[1] < other[1] for other in others)
    *_, title, speeds, note = first.table.split("\n\n")
    assert note == NO_INTERCEPT
    assert title.startswith("3,000 further events")
    assert re.findall(r"^(\S.*?)  +[\d.]+ +[\d.]+ +[\d,]+$", speeds, re.MULTILINE) == list(rows)
    with run(folder) as again:
        assert again.table.startswith("1,001 events")
    names = {path.name for path in folder.iterdir()}
    assert names == {"trump-approval.csv", "demo.toml", "checkpoints"}
    assert not list(folder.glob("checkpoints/set-aside-*"))


@pytest.fixture
def few(monkeypatch):
    def events():
        return [({"a": float(i)}, float(i % 3)) for i in range(30)]

    for name, task in (("REGRESSION", REGRESSION), ("LONG", LONG)):
        monkeypatch.setattr(f"streammoe.commands.demo.{name}", task._replace(events=events, baselines=dict))


@pytest.mark.usefixtures("few")
def test_a_folder_of_checkpoints_that_no_demo_has_written_is_kept(tmp_path):
    mine = tmp_path / "checkpoints" / "checkpoint-000000000001.safetensors"
    mine.parent.mkdir()
    mine.write_text("mine")
    with run(tmp_path, port=0) as report:
        assert "checkpoints2" in report.locations[1]
    assert [(path.name, path.read_text()) for path in mine.parent.iterdir()] == [(mine.name, "mine")]


@pytest.mark.usefixtures("few")
def test_what_somebody_has_edited_is_kept_and_commands_are_those_that_work_here(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", [".venv/bin/streammoe", "demo"])
    for name in ("demo.toml", REGRESSION.data):
        (tmp_path / name).write_text("mine")
    for _ in range(2):
        with run(tmp_path, port=0) as report:
            found = report.locations[2]
    assert {(tmp_path / name).read_text() for name in ("demo.toml", REGRESSION.data)} == {"mine"}
    assert f".venv/bin/streammoe run {tmp_path}/demo2.toml" in found
    assert not list(tmp_path.glob("demo3*"))


def test_a_port_that_was_asked_for_must_be_free(tmp_path):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError), run(tmp_path, port=port, classify=True):
            pass
    settings = load_settings(tmp_path / "demo.toml", environment={})
    assert (settings.model.kind, settings.schema.target, settings.metrics.port) == ("classifier", "category", port)


@pytest.mark.exhaustive
def test_classification_is_won_too(tmp_path):
    with run(tmp_path / "d", port=0, classify=True) as report:
        rows = shown(report.table)
    assert report.table.startswith("2,310 events")
    assert list(rows) == ["streammoe", *CLASSIFICATION.baselines()]
    ours, *others = rows.values()
    assert ours[0] > 0.9
    assert all(ours[0] > other[0] and ours[1] > other[1] for other in others)
    assert rows["river SoftmaxRegression"][0] == pytest.approx(0.825, abs=0.001)
