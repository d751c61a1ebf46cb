"""`streammoe produce` on a real broker, in this process but for what a process is needed for."""

import json
import random
import signal
import subprocess
import sys
import uuid

import pytest

from streammoe.commands.produce.run import produce
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError, SinkError, SourceError
from tests.kafka_lab.lab import PATIENCE, wait_until

COMMAND = [sys.executable, "-m", "streammoe", "produce"]


@pytest.fixture
def rides(tmp_path):
    """1,000 rides between five stations."""
    lines = [f"{i},s{i % 5},{i / 8},{1_700_000_000 + i}" for i in range(1_000)]
    (tmp_path / "rides.csv").write_text("\n".join(["id,station,minutes,at", *lines]) + "\n")
    return tmp_path / "rides.csv"


@pytest.fixture
def send(broker, tmp_path):
    """Sends a file, or bytes, to a topic; `config` is the content of a file of settings."""

    def send(content, topic, *, servers=broker.address, config=None, **options):
        path = content
        if isinstance(content, bytes):
            path = tmp_path / "a.jsonl"
            path.write_bytes(content)
        if config is not None:
            options["config"] = tmp_path / "client.toml"
            options["config"].write_text(config)
        return produce(str(path), servers=servers, topic=topic, stop=StopFlag(), on_batch=lambda _: None, **options)

    return send


@pytest.fixture
def name():
    """A topic that is not there yet."""
    return f"produce-{uuid.uuid4().hex[:8]}"


def test_a_file_becomes_a_topic(send, rides, topics, name):
    done = send(rides, name, partitions=3, key="station", timestamp="at", repeat=3, limit=2_500)
    assert done.records == 2_500
    of_key = {}
    records = topics.read(name)
    for record in records:
        row = json.loads(record.value)
        assert row == {"id": row["id"], "station": f"s{row['id'] % 5}", "minutes": row["id"] / 8, "at": row["at"]}
        assert (record.key, record.timestamp) == (row["station"].encode(), row["at"] * 1_000)
        of_key.setdefault(record.key, []).append((record.partition, row["id"]))
    assert len({record.partition for record in records}) > 1
    for station, found in of_key.items():
        assert len({partition for partition, _ in found}) == 1
        assert [i for _, i in found] == [i % 1_000 for i in range(2_500) if b"s%d" % (i % 5) == station]


def test_ctrl_c_sends_what_was_begun_and_ends_well(rides, topics, name):
    options = ["--bootstrap-servers", topics.address, "--topic", name, "--rate", "20", "--repeat", "100"]
    process = subprocess.Popen([*COMMAND, rides, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: name in topics.names() and topics.read(name), "it has begun")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert int(out.split()[0].replace(",", "")) == len(topics.read(name)) > 0


def test_what_cannot_be_done_leaves_topics_alone(send, rides, topics, name):
    there = topics.create(partitions=2)
    for options in ({"partitions": 4}, {"key": "nope"}):
        with pytest.raises(ConfigError):
            send(rides, there, **options)
    assert topics.read(there) == []
    rides.rename(rides.with_suffix(".bin"))
    with pytest.raises(SourceError):  # no format
        send(rides.with_suffix(".bin"), name)
    with pytest.raises(SinkError):  # no name for a topic
        send(b"{}", "a/b")
    assert not {name, "a/b"} & set(topics.names())


def test_a_broker_that_wants_another_login_is_one_sentence_without_passwords(rides, topics):
    login = ['security_protocol = "SASL_PLAINTEXT"', 'sasl_mechanism = "PLAIN"', 'sasl_plain_username = "me"']
    config = rides.with_name("client.toml")
    config.write_text("\n".join([*login, 'sasl_plain_password = "geheim"']))
    # This one listens without SASL, and says so by hanging up.
    options = ["--bootstrap-servers", topics.address, "--topic", "t", "--config", config, "--log-level", "debug"]
    done = subprocess.run([*COMMAND, rides, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 6, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "geheim" not in done.stderr
    assert "Traceback" not in done.stderr


def test_records_over_the_limit_are_left_out_and_the_others_are_there(send, topics):
    topic = topics.create(configs={"max.message.bytes": 5_000})
    lines = [b'{"a": "%s"}' % (b"x" * (8_000 if i % 50 == 7 else 800)) for i in range(200)]
    with pytest.raises(SinkError) as caught:
        send(b"\n".join(lines) + b"\n", topic)
    for fact in ("4 records", "first record 8, 8,009 bytes", "5000"):
        assert fact in str(caught.value)
    assert [record.value for record in topics.read(topic)] == [line for line in lines if len(line) < 5_000]


def test_the_broker_checks_the_size_of_records_and_a_rejection_ends_it(send, topics, name):
    large, long = topics.create(configs={"max.message.bytes": 3_000_000}), b'{"b": "%s"}\n'
    assert send(long % (b"x" * 2_000_000), large).records == 1
    with pytest.raises(SinkError):
        send(long % (b"x" * (1 << 24)) + b'{"a": 2}\n', name)  # more than is read of one
    assert [record.value for record in topics.read(name)] == [b'{"a": 2}']
    compressed = 'compression = "gzip"'
    assert send(long % (b"x" * 2_000_000), name, config=compressed).records == 1
    noise = random.Random(0).randbytes(1_000_000).hex().encode()
    with pytest.raises(SinkError) as caught:
        send(b'{"a": 1}\n' + long % (noise * 2), name, config=compressed)
    assert '{"record": 2}' in str(caught.value)
