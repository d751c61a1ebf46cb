"""Of the scripts that developers run."""

import os
from unittest.mock import patch

from tests.kafka_lab import broker


def _with(call, **scripts):
    """Return a case of a call with these programs on PATH, and no others but a shell's."""

    def case(folder):
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        with patch.dict(os.environ, PATH=str(folder), XDG_CACHE_HOME=str(folder / "cache")):
            os.environ.pop("JAVA_HOME", None)
            call()

    return case


CASES = {
    "kafka_broker, no Java": _with(broker.find_java),
    "kafka_broker, an old Java": _with(broker.find_java, java="echo 'openjdk version \"11.0.2\"' >&2"),
    "kafka_broker, no Maven": _with(broker.class_path),
    "kafka_broker, Maven without a network": _with(
        broker.class_path, mvn="echo '[ERROR] Unknown host repo.example'; exit 1"
    ),
}
