"""Settings changed over a checkpoint, of which docs/reference/settings.md says whether they may be."""

import re
import shutil
from pathlib import Path

import pytest

from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError
from tests.unit import daemons
from tests.unit.daemons import checkpoints, latest, opened, run, settings, write_csv

EVENTS = 60
REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
CHANGED = """
source.path=data*.csv source.block_bytes=8192
schema.missing=[-200] schema.time_zone=Europe/Berlin schema.max_columns=300 schema.weight=a schema.numeric=["a"]
model.range_factor=1e9 model.reservoir=20 model.seed=1 model.schedule={gamma0=0.9} model.drift=off model.degree=2
model.max_levels=200 model.expert=student_t model.warmup=30
checkpoint.keep=7 guard.on_jump=stop dead_letters.max_ratio=0.1 predictions.kind=file
"""
"""Flags of every section and policy, with other values than those of the run before."""


def may_change(name):
    """Return whether the reference says of a setting that it may change over a checkpoint."""
    section, _, field = name.partition(".")
    table = REFERENCE.split(f"## `[{section}]`\n")[1].partition("\n## ")[0]
    (row,) = re.findall(rf"^\| `{field}` \| .*$", table.partition("| option | kind |")[0], re.MULTILINE)
    return re.split(r" \| ", row)[3] != "no"


@pytest.fixture
def here(tmp_path, monkeypatch):
    daemons.enter_small(tmp_path, monkeypatch, EVENTS, warmup=20)


@pytest.mark.usefixtures("here")
def test_what_the_reference_says_of_a_setting_is_what_a_start_does():
    assert run().learned == EVENTS
    before, found = checkpoints(), {True: 0, False: 0}
    shutil.copytree("state", "saved")
    for flag in CHANGED.split():
        name = flag.partition("=")[0]
        more = ["predictions.path=p.jsonl"] if name == "predictions.kind" else []
        found[may_change(name)] += 1
        if may_change(name):
            with opened(flag, *more) as running:
                assert running.daemon.model.n == EVENTS, name
                running.daemon.checkpoints.save()
            section, field = name.split(".")
            if saved := latest()["settings"].get(section):
                assert saved[field] == settings(flag, *more).learning_settings()[section][field]
            shutil.rmtree("state")
            shutil.copytree("saved", "state")
        else:
            with pytest.raises(CheckpointError) as rejected:
                run(flag)
            assert f"{name} is " in str(rejected.value)
            assert checkpoints() == before
    assert min(found.values()) > 5


@pytest.mark.usefixtures("here")
def test_limits_that_may_have_been_reached_may_only_rise_and_then_hold_for_what_comes():
    write_csv("data.csv", [("uv"[i % 2], i % 5, "no" if i % 2 else "yes") for i in range(EVENTS)])
    flags = ["dead_letters.max_ratio=1", "model.kind=classifier", "schema.categorical=['a']"]
    flags += ["source.path=data*.csv", "schema.late_columns=true"]
    low = ["model.max_classes=2", "model.max_levels=2", "schema.max_columns=2"]
    high = ["model.max_classes=3", "model.max_levels=3", "schema.max_columns=3"]
    run(*flags, *low)
    shutil.copytree("state", "low")
    write_csv("data-2.csv", [("w", 1, "maybe", 3)] * 5, header="a,b,y,c")
    found = {}
    for limits in (low, high):
        with opened(*flags, *limits) as running:
            rejected = running.daemon.run(StopFlag()).rejected
            model = running.daemon.model
            found[limits is high] = (rejected, len(model.output_names), {*model.feature_names})
        if limits is low:
            shutil.rmtree("state")
            shutil.move("low", "state")
    assert found == {False: (5, 2, {"b", "a=u", "a=v"}), True: (0, 3, {"b", "c", "a=u", "a=v", "a=w"})}
    for limit in low[:2]:
        with pytest.raises(CheckpointError) as rejected:
            run(*flags, *(limit if each.startswith(limit[:-1]) else each for each in high))
        assert limit.partition("=")[0] in str(rejected.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("section", ["model", "horizon"])
def test_a_checkpoint_of_a_version_with_more_settings_is_rejected(section, monkeypatch):
    with monkeypatch.context() as patch:
        written = settings().learning_settings()
        written.setdefault(section, {})["forgetting"] = 0.5
        patch.setattr("streammoe.settings.Settings.learning_settings", lambda self: written)
        run()
    with pytest.raises(CheckpointError) as rejected:
        run()
    assert f"{section}.forgetting" in str(rejected.value)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("section", "name", "other"), [("model", "curved", "off"), ("schema", "late_columns", "true")])
def test_a_checkpoint_of_a_version_with_fewer_settings_was_learned_with_their_defaults(
    section, name, other, monkeypatch
):
    with monkeypatch.context() as patch:
        written = settings().learning_settings()
        del written[section][name]
        patch.setattr("streammoe.settings.Settings.learning_settings", lambda self: written)
        run()
    assert name not in latest()["settings"][section]
    with pytest.raises(CheckpointError) as rejected:
        run(f"{section}.{name}={other}")
    assert f"{section}.{name} is " in str(rejected.value)
    with opened() as running:
        assert running.daemon.model.n == EVENTS
