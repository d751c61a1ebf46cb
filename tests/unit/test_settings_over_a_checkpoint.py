"""Every setting of config/default.toml, changed over a checkpoint: docs/reference/settings.md says which may be."""

import re
import shutil
from pathlib import Path

import pytest
import trustme

from streammoe.assembly import open_daemon
from streammoe.daemon.signals import StopFlag
from streammoe.errors import CheckpointError, SourceError
from tests.unit import daemons
from tests.unit.daemons import checkpoints, latest, opened, run, settings, write_csv

ROOT = Path(__file__).parents[2]
EVENTS = 60

FLAGS = """
source.path=data*.csv source.format=csv source.block_bytes=8192 source.block_rows=100 source.max_record_bytes=5000
source.delimiter=; source.header=["a","b","y"] source.skip_lines=1 source.comment=# source.encoding=cp1252
source.follow=true source.on_truncate=restart
schema.target=a schema.features=["a"] schema.ignore=["a"] schema.weight=a schema.categorical=["a"]
schema.timestamps=["a"] schema.numeric=["a"] schema.late_columns=true schema.max_columns=7
schema.missing=[-200] schema.thousands=' schema.units={kg=1} schema.time_zone=Europe/Berlin
labels.key=id labels.max_pending=5 labels.expire_events=5 labels.expire_seconds=5.0 labels.keep_expired=true
model.kind=classifier model.n_experts=auto model.top_k=2 model.reservoir=20
model.degree=2 model.gate_degree=2 model.bound=paper
model.events_per_coefficient=0.5
model.prior_strength=0.2 model.seed=1 model.standardize=false model.range_factor=1e9 model.averaging=none
model.serve=polyak
model.curved=off
model.hold=false model.lags=2
model.drift=off model.warmup=30
model.classes=["0","1","2"] model.max_classes=200 model.max_levels=200
model.schedule.alpha=0.7 model.schedule.gamma0=0.9 model.schedule.offset=1.0
checkpoint.dir=other checkpoint.every_events=7 checkpoint.every_seconds=7.0 checkpoint.keep=7
checkpoint.retry_seconds=7.0
metrics.host=0.0.0.0 metrics.port=9
metrics.allowed_hosts=["daemon.example"]
guard.on_jump=stop
global.path=shared global.serve=global
predictions.path=q.jsonl predictions.interval=0.5 predictions.gate=false
dead_letters.kind=file dead_letters.path=elsewhere.jsonl dead_letters.max_ratio=0.1
"""
"""Of most settings a value that differs from the one of the run before."""
SERVED = ["metrics.enabled=true", "metrics.port=0"]
TLS = [*SERVED, "metrics.tls_certfile=cert.pem", "metrics.tls_keyfile=key.pem"]
PASSWORD = [*SERVED, "metrics.username=prometheus", "metrics.password.file=secret"]
CHANGED = {
    **{flag.partition("=")[0]: [flag] for flag in FLAGS.split()},
    "source.kind": ["source.kind=stdin", "source.format=csv"],
    "source.decimal": ["source.decimal=,"],
    "source.record": ["source.record=payload.after", "source.format=jsonl"],
    "model.expert": ["model.expert=student_t"],
    "model.schedule.kind": ["model.schedule={kind='constant', gamma=0.1}"],
    "metrics.enabled": SERVED,
    "metrics.tls_certfile": TLS,
    "metrics.tls_keyfile": TLS,
    "metrics.username": PASSWORD,
    "metrics.password": PASSWORD,
    "predictions.kind": ["predictions.kind=file", "predictions.path=p.jsonl"],
}
"""Of each setting the flags that change it."""
UNCHANGED = {"dead_letters.kind", "source.format"}
"""Those that have no other value which this stream could have without another installation."""
CLASSES = ["model.kind=classifier"]
LABELS = ["labels.key=id", "source.path=data.jsonl"]
ROWS = ["predictions.kind=file", "predictions.path=p.jsonl"]
BASE = {
    "model.classes": CLASSES,
    "model.max_classes": CLASSES,
    "labels.max_pending": LABELS,
    "labels.expire_events": LABELS,
    "labels.expire_seconds": LABELS,
    "labels.keep_expired": LABELS,
    "predictions.path": ROWS,
}
"""What both runs need as well."""


def table():
    """Return whether the reference says of each setting that it may change over a checkpoint."""
    text = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    found = {}
    for section, rows in re.findall(r"^## `\[(\w+)\]`\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        for row in re.findall(r"^\| (`.*) \|$", rows.partition("| option | kind |")[0], re.MULTILINE):
            name, _, _, changes, *_ = re.split(r" \| ", row)
            found[f"{section}.{name.strip('`')}"] = changes != "no"
    return found


@pytest.fixture
def here(tmp_path, monkeypatch):
    rows = daemons.enter_small(tmp_path, monkeypatch, EVENTS, warmup=20)
    records = "".join(f'{{"id": "k{i}", "a": {a}, "b": {b}}}\n' for i, (a, b, _) in enumerate(rows))
    labels = "".join(f'{{"id": "k{i}", "y": {y}}}\n' for i, (_, _, y) in enumerate(rows))
    Path("data.jsonl").write_text(records + labels)
    Path("secret").write_text("word")


@pytest.fixture
def certificate(here):
    made = trustme.CA().issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path("key.pem")
    made.cert_chain_pems[0].write_to_path("cert.pem")


def test_the_reference_says_of_every_setting_whether_it_may_change():
    section, there = "", []
    for line in (ROOT / "config" / "default.toml").read_text(encoding="utf-8").splitlines():
        if header := re.fullmatch(r"\[(\S+)\]", line):
            section = header[1]
        elif setting := re.match(r"(?:# )?(\w+) = ", line):  # also behind a comment sign
            there.append(f"{section}.{setting[1]}")
    assert len(there) > 50
    assert sorted(there) == sorted(CHANGED)
    assert {of_the_reference(name) for name in there} <= table().keys()


def of_the_reference(name):
    """Return the setting that an option of a schedule belongs to."""
    return "model.schedule" if name.startswith("model.schedule.") else name


@pytest.mark.slow
@pytest.mark.usefixtures("certificate")
def test_what_the_reference_says_of_a_setting_is_what_a_start_does():
    said, saved = table(), {}
    for name in sorted(CHANGED):
        base = tuple(BASE.get(name, ()))
        if base not in saved:
            assert run(*base).learned == EVENTS
            saved[base] = Path(f"state-{len(saved)}")
            Path("state").rename(saved[base])
        shutil.copytree(saved[base], "state")
        check(name, said[of_the_reference(name)], base)
        shutil.rmtree("state")


def check(name, may_change, base):
    """Change one setting over a checkpoint, and see what the reference says of it."""
    changed = [*base, *CHANGED[name]]
    if name == "source.on_truncate":
        base, changed = ["source.follow=true"], ["source.follow=true", *changed]
    config = Path("config.toml").read_text()
    if name == "source.kind":  # one has a path, and the other has none
        Path("config.toml").write_text(config.replace(', path = "data.csv"', ""))
        base = ["source.path=data.csv"]
    now = settings(*changed)
    assert name in UNCHANGED or now != settings(*base), name
    named = of_the_reference(name)
    before = checkpoints()
    if not may_change or name == "source.kind":
        of_source = name == "source.kind"
        with pytest.raises(SourceError if of_source else CheckpointError) as rejected, open_daemon(now):
            pass
        assert of_source or f"{named} is " in str(rejected.value), name
        assert checkpoints() == before
        Path("config.toml").write_text(config)
        return
    with open_daemon(now) as running:
        if name == "checkpoint.dir":
            assert running.daemon.model.n == 0
            return
        assert running.daemon.model.n == EVENTS, name
        running.daemon.checkpoints.save()
    section, _, field = name.partition(".")
    newest = latest()["settings"]
    if section in newest:
        assert newest[section][field] == getattr(now, section).model_dump(mode="json")[field]


@pytest.mark.usefixtures("here")
def test_limits_that_may_have_been_reached_may_only_rise_and_then_hold_for_what_comes():
    write_csv("data.csv", [("uvw"[i % 3], i % 5, "no" if i % 2 else "yes") for i in range(EVENTS)])
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
            found[limits is high] = (rejected, len(model.class_labels), {*model.feature_names})
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
