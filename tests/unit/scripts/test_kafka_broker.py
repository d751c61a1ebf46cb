"""What the script for brokers says and does without one; with one it is tested among the integration tests."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from scripts import kafka_broker
from scripts.kafka_broker import Broker, BrokerError, Unavailable


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


def test_without_java_the_message_says_how_to_install_it(programs):
    with pytest.raises(Unavailable, match=r"PATH holds no java; install Java 17 or newer .*apt install"):
        kafka_broker.find_java()


def test_an_old_java_is_not_taken(programs):
    programs("java", java("11.0.2"))
    with pytest.raises(Unavailable, match=r"does not run on .*11\.0\.2.*install Java 17"):
        kafka_broker.find_java()


def test_java_home_stands_over_the_path(programs, tmp_path, monkeypatch):
    programs("java", java("17.0.1"))
    assert kafka_broker.find_java() == str(tmp_path / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(Unavailable, match=r"JAVA_HOME is .*nothing, which has no bin/java"):
        kafka_broker.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert kafka_broker.find_java() == str(tmp_path / "bin" / "java")


def test_without_maven_the_message_says_how_to_install_it(programs):
    with pytest.raises(Unavailable, match=r"PATH holds no mvn; install it .*apt install maven"):
        kafka_broker.class_path()


def test_what_maven_has_to_complain_about_is_passed_on(programs):
    programs("mvn", "echo '[ERROR] Unknown host repo.example'; exit 1")
    with pytest.raises(Unavailable, match=r"needs a network. It says: \[ERROR\] Unknown host repo\.example"):
        kafka_broker.class_path()
    assert not list(kafka_broker.cache_folder().iterdir())


def test_jars_are_fetched_once_and_again_when_they_are_gone(programs, tmp_path):
    jar = tmp_path / "kafka.jar"
    programs(
        "mvn",
        f'echo x >> {tmp_path}/calls; : > {jar}; for a; do case $a in *File=*) echo {jar} > "${{a#*=}}";; esac; done',
    )
    calls = tmp_path / "calls"
    assert kafka_broker.class_path() == str(jar)
    assert kafka_broker.class_path() == str(jar)
    assert len(calls.read_text().split()) == 1
    jar.unlink()
    assert kafka_broker.class_path() == str(jar)
    assert len(calls.read_text().split()) == 2


def test_a_free_port_lies_below_those_of_outgoing_connections():
    port = kafka_broker.free_port()
    assert 20_000 <= port < 32_000
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP", b"\0\0\0\x18" + b"\0" * 12], ids=["nothing", "too short", "no broker"]
)
def test_who_answers_otherwise_is_no_broker(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert not kafka_broker.answers(server.getsockname()[1])
        thread.join()


def test_a_pid_that_has_gone_to_another_process_is_not_ours(tmp_path):
    for stranger in (os.getpid(), 1, 2**22 + 1):
        (tmp_path / "broker.pid").write_text(f"{stranger}\n")
        assert kafka_broker.running(tmp_path) is None


def test_a_process_with_the_settings_of_the_folder_is_ours(tmp_path):
    sleep = [sys.executable, "-c", "input()", "kafka.Kafka", str(tmp_path / "server.properties")]
    with subprocess.Popen(sleep, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        (tmp_path / "broker.pid").write_text(f"{process.pid}\n")
        deadline = time.monotonic() + 10
        while kafka_broker.running(tmp_path) is None and time.monotonic() < deadline:
            time.sleep(0.01)  # the words of a process show a moment after it has begun
        found = kafka_broker.running(tmp_path)
        process.kill()
        process.wait()
    assert found == process.pid
    assert kafka_broker.running(tmp_path) is None


def test_a_broker_that_ends_leaves_no_process_and_its_last_words(programs, tmp_path):
    programs("java", f"{java('17.0.1')}; [ $1 = -version ] || echo 'out of luck' >&2; exit 3")
    programs("mvn", f'for a; do case $a in *File=*) echo {tmp_path} > "${{a#*=}}";; esac; done')
    broker = Broker(tmp_path / "data")
    with pytest.raises(BrokerError, match="out of luck"):
        broker.start()
    assert broker.pid is None


def test_the_command_line_says_what_is_missing(programs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kafka_broker.py", "up", "--folder", str(tmp_path / "k")])
    assert kafka_broker.main() == 1
    assert capsys.readouterr().err.startswith("error: Kafka needs Java")
    monkeypatch.setattr(sys, "argv", ["kafka_broker.py", "status", "--folder", str(tmp_path / "k")])
    assert kafka_broker.main() == 1
    assert "no broker" in capsys.readouterr().out
