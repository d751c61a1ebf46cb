"""`streammoe produce` as a process, on a real broker."""

import json
import random
import signal
import subprocess
import sys
import uuid

import pytest

from streammoe.testing.kafka.lab import PATIENCE, wait_until

COMMAND = [sys.executable, "-m", "streammoe.cli", "produce"]
LIMIT = 1_048_588
"""Kafka's default for max.message.bytes."""


@pytest.fixture
def start(broker, tmp_path):
    """Starts the command in a folder with rides.csv: 1,000 rides between five stations."""
    lines = [f"{i},s{i % 5},{i / 8},{1_700_000_000 + i}" for i in range(1_000)]
    (tmp_path / "rides.csv").write_text("\n".join(["id,station,minutes,at", *lines]) + "\n")

    def start(*arguments, address=broker.address):
        command = [*COMMAND, "--bootstrap-servers", address, *map(str, arguments)]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def call(start):
    """Runs it to its end with this exit code: what it prints, or what it says against it."""

    def call(*arguments, code=0, **options):
        process = start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
        assert (process.returncode, "Traceback" in err) == (code, False), err
        return out if code == 0 else err

    return call


@pytest.fixture
def name():
    """A topic that is not there yet."""
    return f"produce-{uuid.uuid4().hex[:8]}"


def test_a_file_becomes_a_topic(call, topics, name):
    options = ["--partitions", 3, "--key", "station", "--timestamp", "at", "--repeat", 3, "--limit", 2_500]
    assert call("rides.csv", "--topic", name, *options).startswith("2,500 records in ")
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


def test_ctrl_c_sends_what_was_begun_and_ends_well(start, topics, name):
    process = start("rides.csv", "--topic", name, "--rate", 20, "--repeat", 100)
    try:
        wait_until(lambda: name in topics.names() and topics.read(name), "it has begun")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert int(out.split()[0].replace(",", "")) == len(topics.read(name)) > 0


def test_what_cannot_be_done_leaves_topics_alone(call, topics, name, tmp_path):
    there = topics.create(partitions=2)
    call("rides.csv", "--topic", there, "--partitions", 4, code=2)
    call("rides.csv", "--topic", there, "--key", "nope", code=2)
    assert topics.read(there) == []
    (tmp_path / "a.bin").write_text('{"a": 1}\n')
    call("a.bin", "--topic", name, code=3)
    assert name not in topics.names()
    call("a.bin", "--topic", name, "--read-as", "jsonl")
    assert [record.value for record in topics.read(name)] == [b'{"a": 1}']


def test_a_broker_that_is_not_there_or_wants_another_login_is_one_sentence(call, tmp_path):
    [line] = call("rides.csv", "--topic", "t", address="127.0.0.1:1", code=3).splitlines()
    assert "ECONNREFUSED" in line
    lines = ['security_protocol = "SASL_PLAINTEXT"', 'sasl_mechanism = "PLAIN"', 'sasl_plain_username = "me"']
    (tmp_path / "client.toml").write_text("\n".join([*lines, 'sasl_plain_password = "geheim"']))
    # This one listens without SASL, and says so by hanging up.
    err = call("rides.csv", "--topic", "t", "--config", "client.toml", "--log-level", "debug", code=3)
    assert "geheim" not in err


@pytest.mark.parametrize("client", ["", "max_request_size = 2000"], ids=["topic", "client"])
def test_records_over_a_limit_are_left_out_and_the_others_are_there(call, topics, tmp_path, client):
    (tmp_path / "client.toml").write_text(client)
    topic = topics.create(configs={} if client else {"max.message.bytes": 5_000})
    lines = [b'{"a": "%s"}' % (b"x" * (8_000 if i % 50 == 7 else 800)) for i in range(200)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    err = call("a.jsonl", "--topic", topic, "--config", "client.toml", code=6)
    assert "4 records" in err
    assert "first record 8, 8,009 bytes" in err
    assert ("2000" if client else "5000") in err
    assert [record.value for record in topics.read(topic)] == [line for line in lines if len(line) < 5_000]


def test_longest_records(call, topics, tmp_path, name):
    large = topics.create(configs={"max.message.bytes": 3_000_000})
    (tmp_path / "a.jsonl").write_text('{"b": "%s"}\n' % ("x" * 2_000_000))
    call("a.jsonl", "--topic", large)
    assert len(topics.read(large)) == 1
    (tmp_path / "b.jsonl").write_text('{"b": "%s"}\n{"a": 2}\n' % ("x" * (1 << 24)))
    call("b.jsonl", "--topic", name, code=6)  # more than is read of one
    assert [record.value for record in topics.read(name)] == [b'{"a": 2}']


def test_with_compression_the_broker_judges_and_a_refusal_ends_it(call, topics, tmp_path, name):
    (tmp_path / "client.toml").write_text('compression_type = "gzip"')
    (tmp_path / "a.jsonl").write_text('{"b": "%s"}\n' % ("x" * 2_000_000))
    call("a.jsonl", "--topic", name, "--config", "client.toml")
    noise = random.Random(0).randbytes(1_000_000).hex()
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"b": "%s"}\n' % (noise * 2))
    err = call("b.jsonl", "--topic", name, "--config", "client.toml", code=6)
    assert "record 2 (4,000,009 bytes)" in err
    assert str(LIMIT) in err
