"""Every setting of config/default.toml, changed over a checkpoint: docs/checkpoints.md says what happens."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest
import trustme

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.configuration import load_settings
from streammoe.errors import CheckpointError, SourceError
from streammoe.persistence import CheckpointStore

ROOT = Path(__file__).parents[2]
EVENTS = 200

SERVED = ["metrics.enabled=true", "metrics.port=0"]
CHANGED = {
    "source.kind": ["source.kind=stdin", "source.format=csv"],
    "source.path": "data*.csv",
    "source.format": "csv",
    "source.block_bytes": 8192,
    "source.block_rows": 100,
    "source.max_record_bytes": 5000,
    "source.follow": "true",
    "source.on_truncate": "restart",
    "schema.target": "a",
    "schema.features": ["a"],
    "schema.ignore": ["a"],
    "schema.weight": "a",
    "schema.categorical": ["a"],
    "schema.timestamps": ["a"],
    "schema.late_columns": "true",
    "schema.max_columns": 7,
    "labels.key": "id",
    "labels.max_pending": 5,
    "labels.expire_events": 5,
    "labels.expire_seconds": 5.0,
    "model.kind": "classifier",
    "model.n_experts": 3,
    "model.max_experts": 7,
    "model.top_k": 2,
    "model.batch_size": 8,
    "model.reseed": "auto",
    "model.degree": 2,
    "model.gate_degree": 2,
    "model.expert": "student_t",
    "model.degrees_of_freedom": 5.0,
    "model.covariance": ["model.covariance=full", "schema.target=['a', 'y']"],
    "model.bound": "paper",
    "model.prior_strength": 0.2,
    "model.seed": 1,
    "model.standardize": "false",
    "model.range_factor": 1e9,
    "model.averaging": "none",
    "model.averaging_rate": 0.1,
    "model.drift": "page_hinkley",
    "model.drift_restart": 100,
    "model.warmup": 60,
    "model.warmup_restarts": 2,
    "model.classes": ["0", "1", "2"],
    "model.max_classes": 200,
    "model.max_levels": 200,
    "model.schedule.kind": ["model.schedule={kind='constant', gamma=0.1}"],
    "model.schedule.alpha": 0.7,
    "model.schedule.gamma0": 0.9,
    "model.schedule.offset": 1.0,
    "checkpoint.dir": "other",
    "checkpoint.every_events": 7,
    "checkpoint.every_seconds": 7.0,
    "checkpoint.keep": 7,
    "checkpoint.retry_seconds": 7.0,
    "metrics.enabled": ["metrics.enabled=true", "metrics.port=0"],
    "metrics.host": "0.0.0.0",
    "metrics.port": 9,
    "metrics.alive_seconds": 9.0,
    "metrics.allowed_hosts": ["daemon.example"],
    "metrics.tls_certfile": [*SERVED, "metrics.tls_certfile=cert.pem", "metrics.tls_keyfile=key.pem"],
    "metrics.tls_keyfile": [*SERVED, "metrics.tls_certfile=cert.pem", "metrics.tls_keyfile=key.pem"],
    "metrics.username": [*SERVED, "metrics.username=prometheus", "metrics.password_file=secret"],
    "metrics.password_file": [*SERVED, "metrics.username=prometheus", "metrics.password_file=secret"],
    "metrics.bearer_token_file": [*SERVED, "metrics.bearer_token_file=secret"],
    "guard.on_jump": "stop",
    "source.delimiter": ";",
    "source.decimal": ["source.delimiter=;", "source.decimal=,"],
    "source.header": '["a", "b", "y"]',
    "predictions.kind": ["predictions.kind=file", "predictions.path=p.jsonl"],
    "predictions.format": "parquet",
    "predictions.path": "q.jsonl",
    "predictions.interval": 0.5,
    "predictions.gate": "false",
    "dead_letters.kind": "file",
    "dead_letters.path": "elsewhere.jsonl",
    "dead_letters.max_ratio": 0.1,
}
"""A value that differs from that of the run before; a list is whole flags."""
UNCHANGED = {"dead_letters.kind", "source.format"}
"""Those that have no other value which this stream could have without another installation."""
BASE = {
    "model.classes": ["model.kind=classifier"],
    "model.max_classes": ["model.kind=classifier"],
    "labels.max_pending": ["labels.key=id"],
    "labels.expire_events": ["labels.key=id"],
    "labels.expire_seconds": ["labels.key=id"],
    "predictions.format": ["predictions.kind=file", "predictions.path=p.jsonl"],
    "predictions.path": ["predictions.kind=file", "predictions.path=p.jsonl"],
    "source.on_truncate": ["source.follow=true"],
}
"""What both runs need beside; labels that come later also another file."""


class Asked:
    requested = False


def settings_there_are():
    """Names of all settings in config/default.toml, those behind a comment sign included."""
    lines = (ROOT / "config" / "default.toml").read_text(encoding="utf-8").splitlines()
    section, names = "", []
    for line in lines:
        if header := re.fullmatch(r"\[(\S+)\]", line):
            section = header[1]
        elif setting := re.match(r"(?:# )?(\w+) = ", line):
            names.append(f"{section}.{setting[1]}")
    return names


def said():
    """What the table says of each setting."""
    text = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", text.split("## Changing settings over a checkpoint")[1], re.MULTILINE)
    found = [(name, says) for names, says in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(dict(found)) == len(found), "a setting stands there twice"
    return dict(found)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    rows = [(i % 7, i % 5, i % 3) for i in range(EVENTS)]
    Path("data.csv").write_text("a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows))
    records = "".join(f'{{"id": "k{i}", "a": {a}, "b": {b}}}\n' for i, (a, b, _) in enumerate(rows))
    labels = "".join(f'{{"id": "k{i}", "y": {y}}}\n' for i, (_, _, y) in enumerate(rows))
    Path("data.jsonl").write_text(records + labels)
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path("key.pem")
    certificate.cert_chain_pems[0].write_to_path("cert.pem")
    Path("secret").write_text("word")
    Path("config.toml").write_text("""
        source = { kind = "file", path = "data.csv" }
        schema.target = "y"
        model = { n_experts = 2, warmup = 50, warmup_restarts = 1 }
        metrics.enabled = false
    """)


def settings(flags):
    return load_settings("config.toml", overrides=flags, environment={})


def flags_for(name):
    value = CHANGED[name]
    changed = value if isinstance(value, list) and "=" in str(value[0]) else [f"{name}={value}"]
    base = list(BASE.get(name, ()))
    if name.startswith("labels.") and name != "labels.key":
        base.append("source.path=data.jsonl")
    return base, [*base, *changed]


def test_the_table_names_every_setting_once_and_no_other():
    there = settings_there_are()
    assert len(there) > 50
    assert sorted(said()) == sorted(there) == sorted(CHANGED)
    tomllib.loads((ROOT / "config" / "default.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", sorted({name.partition(".")[0] for name in CHANGED}))
def test_what_the_table_says_of_a_setting_is_what_a_start_does(here, section):
    says = said()
    for name in sorted(CHANGED):
        if name.startswith(f"{section}."):
            check(name, says[name])
            shutil.rmtree("state")


def check(name, says):
    """Change one setting over a checkpoint, and see what the table says of it."""
    base, changed = flags_for(name)
    config = Path("config.toml").read_text()
    with open_daemon(settings([flag for flag in base if flag != "source.follow=true"])) as running:
        before = running.daemon.run(Asked())
    assert before.learned == EVENTS
    if name == "source.kind":  # one has a path, and the other has none
        Path("config.toml").write_text(config.replace(', path = "data.csv"', ""))
        base = ["source.path=data.csv"]
    assert name in UNCHANGED or vars(settings(changed)) != vars(settings(base)), name
    kept = {path: path.read_bytes() for path in Path("state").glob("*.safetensors")}
    if says.startswith("refused"):
        of_source = says.startswith("refused by the source (exit 3)")
        with pytest.raises(SourceError if of_source else CheckpointError) as refused, open_daemon(settings(changed)):
            pass
        named = "model.schedule" if name.startswith("model.schedule.") else name
        assert of_source or f"{named} was " in str(refused.value), name
        assert {path: path.read_bytes() for path in Path("state").glob("*.safetensors")} == kept
        Path("config.toml").write_text(config)
        return
    with open_daemon(settings(changed)) as running:
        if says.startswith("another folder"):
            assert running.resumed_at == 0
            return
        assert says.startswith("applied"), name
        assert running.resumed_at == EVENTS, name
        running.daemon.checkpoint()
    newest = CheckpointStore("state").latest()[1].metadata["settings"]
    section, _, field = name.partition(".")
    if section in newest:
        assert newest[section][field] == getattr(getattr(settings(changed), section), field)


@pytest.mark.parametrize(("name", "lower"), [("model.max_levels", 3), ("model.max_classes", 50)])
def test_limits_that_may_have_been_reached_may_only_rise(here, name, lower):
    with open_daemon(settings(BASE.get(name, ()))) as running:
        running.daemon.run(Asked())
    lowered = settings([*BASE.get(name, ()), f"{name}={lower}"])
    with pytest.raises(CheckpointError) as refused, open_daemon(lowered):
        pass
    assert name in str(refused.value)


def test_raised_limits_are_applied_to_what_comes(here):
    """What messages advise must be possible."""
    rows = (f"{'uvw'[i % 3]},{i % 5},{'no' if i % 2 else 'yes'}\n" for i in range(EVENTS))
    Path("data.csv").write_text("a,b,y\n" + "".join(rows))
    flags = [
        "dead_letters.max_ratio=1",
        "model.kind=classifier",
        "schema.categorical=['a']",
        "source.path=data*.csv",
        "schema.late_columns=true",
    ]
    low = ["model.max_classes=2", "model.max_levels=2", "schema.max_columns=2"]
    high = ["model.max_classes=3", "model.max_levels=3", "schema.max_columns=3"]
    more = "a,b,y,c\n" + "w,1,maybe,3\n" * 5
    found = {}
    for limits in (low, high):
        with open_daemon(settings([*flags, *low])) as running:
            running.daemon.run(Asked())
        Path("data-2.csv").write_text(more)
        with open_daemon(settings([*flags, *limits])) as running:
            summary = running.daemon.run(Asked())
            model = running.daemon.model
            found[limits is high] = (summary.rejected, len(model.class_labels), len(model.fields), model.feature_names)
        Path("data-2.csv").unlink()
        shutil.rmtree("state")
    assert found[False] == (5, 2, 2, ["b", "a=u", "a=v"])
    assert found[True][:3] == (0, 3, 3)
    assert set(found[True][3]) == {"a=u", "a=v", "a=w", "b", "c"}


def test_a_checkpoint_of_a_version_with_more_settings_is_not_gone_on_from(here, monkeypatch):
    with monkeypatch.context() as patch:
        written = settings(()).learning_settings()
        written["model"]["forgetting"] = 0.5
        patch.setattr("streammoe.settings.Settings.learning_settings", lambda self: written)
        with open_daemon(settings(())) as running:
            running.daemon.run(Asked())
    with pytest.raises(CheckpointError) as refused, open_daemon(settings(())):
        pass
    assert "model.forgetting" in str(refused.value)
