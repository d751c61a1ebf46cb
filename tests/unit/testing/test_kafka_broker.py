"""Brokers, without a real one: every integration test with Kafka stands on that."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scripts import kafka_broker
from streammoe.testing.kafka import broker
from streammoe.testing.kafka.broker import Broker, BrokerError, SharedBroker, Unavailable
from streammoe.testing.kafka.lab import wait_until


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


def test_java_is_that_of_java_home_or_on_the_path_and_not_too_old(programs, tmp_path, monkeypatch):
    with pytest.raises(Unavailable):
        broker.find_java()
    programs("java", java("11.0.2"))
    with pytest.raises(Unavailable):
        broker.find_java()
    programs("java", java("17.0.1"))
    assert broker.find_java() == str(tmp_path / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(Unavailable):
        broker.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert broker.find_java() == str(tmp_path / "bin" / "java")


def test_jars_are_fetched_once_and_again_when_they_are_gone(programs, tmp_path):
    with pytest.raises(Unavailable):
        broker.class_path()
    programs("mvn", "echo '[ERROR] Unknown host repo.example'; exit 1")
    with pytest.raises(Unavailable) as caught:
        broker.class_path()
    assert "Unknown host" in str(caught.value)
    assert not list(broker.cache_folder().iterdir())
    jar, calls = tmp_path / "kafka.jar", tmp_path / "calls"
    found = f'for a; do case $a in *File=*) echo {jar} > "${{a#*=}}";; esac; done'
    programs("mvn", f"echo x >> {calls}; : > {jar}; {found}")
    assert broker.class_path() == broker.class_path() == str(jar)
    assert len(calls.read_text().split()) == 1
    jar.unlink()
    assert broker.class_path() == str(jar)
    assert len(calls.read_text().split()) == 2


def test_a_free_port_lies_below_those_of_outgoing_connections():
    port = broker.free_port()
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
        assert not broker.answers(server.getsockname()[1])
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
    one = Broker(tmp_path / "data")
    with pytest.raises(BrokerError) as caught:
        one.start()
    assert "out of luck" in str(caught.value)
    assert one.pid is None
    with pytest.raises(BrokerError) as caught:
        SharedBroker(tmp_path / "shared")
    assert "out of luck" in str(caught.value)


SERVE = """
import contextlib, re, socket, struct, sys
port = int(re.search("PLAINTEXT://127.0.0.1:(\\d+)", open(sys.argv[1]).read())[1])
with socket.create_server(("127.0.0.1", port)) as server:
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):  # of a client that was too impatient
            connection.recv(99)
            connection.sendall(struct.pack(">iiii", 12, 4, 0, 1))
"""
USE = """
import sys
from streammoe.testing.kafka.broker import SharedBroker
shared = SharedBroker(sys.argv[1])
print(shared.address, flush=True)
input()
"""


def test_a_shared_broker_is_started_once_and_ends_with_its_last_user_also_if_killed(programs, tmp_path):
    (tmp_path / "serve.py").write_text(SERVE)
    begin = f'{java("17.0.1")}; for a; do :; done; case "$*" in *StorageTool*|-version) ;; *)'
    programs("java", f'{begin} echo $$ >> {tmp_path}/begun; exec {sys.executable} {tmp_path}/serve.py "$a";; esac')
    programs("mvn", f'for a; do case $a in *File=*) echo {tmp_path} > "${{a#*=}}";; esac; done')
    command = [sys.executable, "-c", USE, str(tmp_path / "shared")]
    for _ in range(2):  # the folder is used again by a later session
        users = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        addresses = {user.stdout.readline() for user in users}
        assert len(addresses) == 1
        pid = int((tmp_path / "begun").read_text().split()[-1])
        users[0].kill()
        users[0].communicate()
        port = int(addresses.pop().rpartition(":")[2])
        wait_until(lambda port=port: broker.answers(port), "it answers")
        os.kill(users[1].pid, signal.SIGKILL)
        users[1].communicate()
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the broker has ended")
    assert len((tmp_path / "begun").read_text().split()) == 2


def test_the_command_line_says_what_is_missing(programs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["kafka_broker.py", "up", "--folder", str(tmp_path / "k")])
    assert kafka_broker.main() == 1
    assert capsys.readouterr().err.startswith("error: Kafka needs Java")
    monkeypatch.setattr(sys, "argv", ["kafka_broker.py", "status", "--folder", str(tmp_path / "k")])
    assert kafka_broker.main() == 1
    assert "no broker" in capsys.readouterr().out
