"""Daemons of a folder that holds a config.toml and what they read, for tests of how they start and resume."""

from pathlib import Path

from streammoe import assembly
from streammoe.assembly import open_daemon
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.persistence import CheckpointStore


def enter(folder, monkeypatch, config):
    """Make a folder the working one, with these settings in its config.toml; its daemons do not compile first."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(assembly, "compile_kernels", lambda settings=None: None)
    Path("config.toml").write_text(config)
    return folder


def enter_small(folder, monkeypatch, events, warmup):
    """`enter` with a regressor of two experts; return the events that data.csv has."""
    config = f"""
        source = {{ kind = "file", path = "data.csv" }}
        schema.target = "y"
        model = {{ n_experts = 2, warmup = {warmup} }}
        metrics.enabled = false
        """
    enter(folder, monkeypatch, config)
    rows = [(i % 7, i % 5, i % 3) for i in range(events)]
    write_csv("data.csv", rows)
    return rows


def write_csv(name, rows, header="a,b,y"):
    Path(name).write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))


def settings(*flags):
    return load_settings("config.toml", overrides=flags, environment={})


def opened(*flags, **options):
    """Open a daemon of the working folder's settings, with these flags over them."""
    return open_daemon(settings(*flags), **options)


def run(*flags, **options):
    """Run a daemon to the end of its source, and return its summary."""
    with opened(*flags, **options) as running:
        return running.daemon.run(StopFlag())


def store():
    return CheckpointStore("state")


def latest():
    """Return the metadata of the newest checkpoint."""
    return store().latest()[1].metadata


def checkpoints():
    """Return the bytes of every checkpoint, those that are set aside included."""
    return {path: path.read_bytes() for path in Path("state").rglob("*.safetensors")}
