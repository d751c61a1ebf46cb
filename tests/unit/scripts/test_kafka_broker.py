"""What the script for brokers does without one; with one it is tested among the integration tests."""

import os
import subprocess
import sys
import time

import pytest

from scripts import kafka_broker
from scripts.kafka_broker import Unavailable


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts programs of the test's own on PATH, and no others but a shell's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


def java(version):
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


def test_without_a_java_that_is_new_enough_it_is_unavailable(programs, tmp_path, monkeypatch):
    with pytest.raises(Unavailable):
        kafka_broker.find_java()
    programs("java", java("11.0.2"))
    with pytest.raises(Unavailable):
        kafka_broker.find_java()
    programs("java", java("17.0.1"))
    assert kafka_broker.find_java() == str(tmp_path / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))  # which stands over PATH
    with pytest.raises(Unavailable):
        kafka_broker.find_java()


def test_jars_are_fetched_once_and_again_when_they_are_gone(programs, tmp_path):
    with pytest.raises(Unavailable):
        kafka_broker.class_path()
    programs("mvn", "echo '[ERROR] Unknown host repo.example'; exit 1")
    with pytest.raises(Unavailable):
        kafka_broker.class_path()
    assert not list(kafka_broker.cache_folder().iterdir())
    jar, calls = tmp_path / "kafka.jar", tmp_path / "calls"
    programs(
        "mvn",
        f'echo x >> {calls}; : > {jar}; for a; do case $a in *File=*) echo {jar} > "${{a#*=}}";; esac; done',
    )
    assert kafka_broker.class_path() == kafka_broker.class_path() == str(jar)
    assert len(calls.read_text().split()) == 1
    jar.unlink()
    assert kafka_broker.class_path() == str(jar)
    assert len(calls.read_text().split()) == 2


def test_only_a_process_with_the_settings_of_the_folder_is_ours(tmp_path):
    for stranger in (os.getpid(), 1, 2**22 + 1):
        (tmp_path / "broker.pid").write_text(f"{stranger}\n")
        assert kafka_broker.running(tmp_path) is None
    sleep = [sys.executable, "-c", "input()", "kafka.Kafka", str(tmp_path / "server.properties")]
    with subprocess.Popen(sleep, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        (tmp_path / "broker.pid").write_text(f"{process.pid}\n")
        deadline = time.monotonic() + 30
        while kafka_broker.running(tmp_path) is None and time.monotonic() < deadline:
            time.sleep(0.01)  # the words of a process show a moment after it has begun
        found = kafka_broker.running(tmp_path)
        process.kill()
        process.wait()
    assert found == process.pid
    assert kafka_broker.running(tmp_path) is None
