"""A daemon among strangers: which sockets it opens, and what a thousand connections do to it."""

import contextlib
import re
import resource
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, encode, read_checkpoint
from tests.process.place import TIMEOUT, Place, flags_of, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROWS = "".join(f"{i % 7 - 3},{(3 * i) % 11 - 5},{i % 7 + (3 * i) % 11}\n" for i in range(1_000))
STRANGERS = 1_000
DESCRIPTORS = 256
"""The daemon may have so many, which is a quarter of what the strangers would take."""


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else None


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A daemon that follows a file: its place, its process, and the port of its metrics."""
    place = Place(tmp_path_factory.mktemp("followed"))
    events = place.folder / "events.csv"
    events.write_text(f"a,b,y\n{ROWS}")
    flags = flags_of(**{"source.follow": "true", "checkpoint.every_seconds": 0.2})
    process = place.start("run", place.config(events), *flags)
    try:
        port = int(re.search(r":(\d+)/metrics", next(line for line in process.stderr if "/metrics" in line))[1])
        wait_until(lambda: metric(port, "streammoe_model_events") == 1_000)
        yield place, process, port
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which sockets a process has")
def test_its_one_socket_listens_on_loopback(followed):
    _, process, port = followed
    inodes = {
        str(link.readlink())[8:-1]
        for link in Path(f"/proc/{process.pid}/fd").iterdir()
        if str(link.readlink()).startswith("socket:[")
    }
    listening = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (table.startswith("udp") or fields[3] == "0A"):
                listening.append((table, fields[1]))
    assert listening == [("tcp", f"0100007F:{port:04X}")]


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors of another process are limited by prlimit")
def test_a_thousand_strangers_stop_neither_scrapes_nor_learning(followed):
    place, process, port = followed
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(STRANGERS + 500, hard)), hard))
    held = contextlib.ExitStack()
    try:
        for i in range(STRANGERS):
            stranger = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT))
            if i % 2:
                with contextlib.suppress(ConnectionError):  # it had to make room already
                    stranger.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        saved = metric(port, "streammoe_checkpoint_seconds_count")
        with (place.folder / "events.csv").open("a") as events:
            events.write(ROWS)
        wait_until(lambda: metric(port, "streammoe_model_events") == 2_000)
        wait_until(lambda: metric(port, "streammoe_checkpoint_seconds_count") > saved)
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < DESCRIPTORS
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    finally:
        held.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert place.inspect()["n"] == 2_000


def test_a_checkpoint_that_nobody_wrote_is_refused(tmp_path):
    place = Place(tmp_path)
    (place.folder / "events.csv").write_text(f"a,b,y\n{ROWS}")
    place.config("events.csv")
    place.run_here()
    arrays, metadata = read_checkpoint(place.folder / "state")
    arrays["state.n"][0] = -5
    metadata["version"] = "\x1b[2Jforged"
    store = CheckpointStore(place.folder / "state")
    store.path(store.generations()[-1]).write_bytes(encode(arrays, metadata))
    with pytest.raises(CheckpointError) as refused:
        place.run_here()
    assert "state.n" in str(refused.value)
    assert "\x1b" not in str(refused.value)
