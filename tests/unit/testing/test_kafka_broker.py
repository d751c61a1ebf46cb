"""Start and stop of brokers, without a real one: every integration test with Kafka relies on it."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from scripts import kafka_broker
from streammoe.testing.kafka import broker
from streammoe.testing.kafka.broker import Broker, BrokerError, SharedBroker
from streammoe.testing.kafka.lab import wait_until


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Puts programs of the test's own on PATH, and no others but a shell's; Maven is among them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    write("mvn", f'for a; do case $a in *File=*) echo {tmp_path} > "${{a#*=}}";; esac; done')
    return write


JAVA = "echo 'openjdk version \"17.0.1\" 2025-04-15' >&2"


def test_a_process_with_the_settings_of_the_folder_is_ours_and_no_other_that_has_its_pid(tmp_path):
    for stranger in (os.getpid(), 1, 2**22 + 1):
        (tmp_path / "broker.pid").write_text(f"{stranger}\n")
        assert kafka_broker.running(tmp_path) is None
    sleep = [sys.executable, "-c", "input()", "kafka.Kafka", str(tmp_path / "server.properties")]
    with subprocess.Popen(sleep, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        (tmp_path / "broker.pid").write_text(f"{process.pid}\n")
        wait_until(lambda: kafka_broker.running(tmp_path) == process.pid, "the words of the process show")
        process.kill()
        process.wait()
    assert kafka_broker.running(tmp_path) is None


def test_a_broker_that_ends_leaves_no_process_and_its_last_words(programs, tmp_path):
    programs("java", f"{JAVA}; [ $1 = -version ] || echo 'out of luck' >&2; exit 3")
    one = Broker(tmp_path / "data")
    for start in (one.start, lambda: SharedBroker(tmp_path / "shared")):
        with pytest.raises(BrokerError, match="out of luck"):
            start()
    assert one.pid is None


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
sys.path.insert(0, sys.argv[1])  # importing the package would take longer than the rest
import broker
shared = broker.SharedBroker(sys.argv[2])
print(shared.address, flush=True)
input()
"""


def test_a_shared_broker_is_started_once_and_ends_with_its_last_user_also_if_killed(programs, tmp_path):
    (tmp_path / "serve.py").write_text(SERVE)
    begin = f'{JAVA}; for a; do :; done; case "$*" in *StorageTool*|-version) ;; *)'
    programs("java", f'{begin} echo $$ >> {tmp_path}/begun; exec {sys.executable} {tmp_path}/serve.py "$a";; esac')
    command = [sys.executable, "-c", USE, str(Path(broker.__file__).parent), str(tmp_path / "shared")]
    for _ in range(2):  # the folder is used again by a later session
        users = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        (address,) = {user.stdout.readline() for user in users}
        pid = int((tmp_path / "begun").read_text().split()[-1])
        users[0].kill()
        users[0].communicate()
        wait_until(partial(broker.answers, int(address.rpartition(":")[2])), "it answers")
        users[1].kill()
        users[1].communicate()
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the broker has ended")
    assert len((tmp_path / "begun").read_text().split()) == 2
