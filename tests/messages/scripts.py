"""Of the scripts that developers run."""

import os
from contextlib import contextmanager
from unittest.mock import patch

from streammoe.testing.kafka import broker


@contextmanager
def _programs(folder, **scripts):
    """Have these programs on PATH, and no others but a shell's."""
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    with patch.dict(os.environ, {"PATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}):
        os.environ.pop("JAVA_HOME", None)
        yield


def _java(folder, **scripts):
    with _programs(folder, **scripts):
        broker.find_java()


def _java_home(folder):
    with _programs(folder), patch.dict(os.environ, JAVA_HOME=str(folder / "nothing")):
        broker.find_java()


def _jars(folder, **scripts):
    with _programs(folder, **scripts):
        broker.class_path()


CASES = {
    "kafka_broker, no Java": _java,
    "kafka_broker, an old Java": lambda folder: _java(folder, java="echo 'openjdk version \"11.0.2\"' >&2"),
    "kafka_broker, JAVA_HOME without Java": _java_home,
    "kafka_broker, no Maven": _jars,
    "kafka_broker, Maven without a network": lambda folder: _jars(
        folder, mvn="echo '[ERROR] Unknown host repo.example'; exit 1"
    ),
}
