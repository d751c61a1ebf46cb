"""`streammoe produce` as a process, on a real broker."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TIMEOUT = 90
COMMAND = [sys.executable, "-m", "streammoe", "produce"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rides(tmp_path):
    """A csv file of 1,000 rides between five stations."""
    lines = [f"{i},s{i % 5},{i / 8},{1_700_000_000 + i}" for i in range(1_000)]
    (tmp_path / "rides.csv").write_text("\n".join(["id,station,minutes,at", *lines]) + "\n")
    return "rides.csv"


@pytest.fixture
def name():
    """A topic that is not there yet."""
    return f"produce-{time.time_ns()}"


@pytest.fixture
def start(broker):
    def start(*arguments, address=broker.address):
        command = [*COMMAND, "--bootstrap-servers", address, *map(str, arguments)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def call(start):
    def call(*arguments, code=0, **options):
        process = start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=TIMEOUT)
        finally:
            process.kill()
        assert process.returncode == code, err
        assert "Traceback" not in err
        return out if code == 0 else err

    return call


def test_a_file_becomes_a_topic(call, rides, topics, name):
    out = call(rides, "--topic", name, "--partitions", 3, "--key", "station", "--timestamp", "at")
    assert out.startswith("1,000 records in ")
    assert out.endswith(f"/s, topic {name}\n")
    records = topics.read(name)
    assert sorted(json.loads(record.value)["id"] for record in records) == list(range(1_000))
    of_key = {}
    for record in records:
        row = json.loads(record.value)
        assert row == {"id": row["id"], "station": f"s{row['id'] % 5}", "minutes": row["id"] / 8, "at": row["at"]}
        assert record.key == row["station"].encode()
        assert record.timestamp == row["at"] * 1_000
        of_key.setdefault(record.key, []).append((record.partition, row["id"]))
    assert len({record.partition for record in records}) > 1
    for found in of_key.values():
        assert len({partition for partition, _ in found}) == 1
        assert [i for _, i in found] == sorted(i for _, i in found)


def test_repetitions_and_limits(call, rides, topics, name):
    out = call(rides, "--topic", name, "--repeat", 3, "--limit", 2_500)
    assert out.startswith("2,500 records in ")
    ids = [json.loads(record.value)["id"] for record in topics.read(name)]  # one partition keeps the order
    assert ids == [i % 1_000 for i in range(2_500)]


def test_a_rate_is_kept(call, rides, topics, name):
    out = call(rides, "--topic", name, "--rate", 400, "--limit", 800)
    seconds = float(out.split()[3])
    assert 1.9 <= seconds <= 6.0
    at = [record.timestamp for record in topics.read(name)]
    # Steadily: no second has much more than its share, however busy this machine is.
    assert max(sum(start <= t < start + 1_000 for t in at) for start in at[::20]) <= 480


def test_ctrl_c_sends_what_was_begun_and_ends_well(start, rides, topics, name):
    process = start(rides, "--topic", name, "--rate", 20, "--repeat", 100)
    try:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and not (topics.names().count(name) and topics.read(name)):
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert err == ""
    assert int(out.split()[0].replace(",", "")) == len(topics.read(name)) > 0


def test_a_broker_that_is_not_there_is_one_sentence(call, rides):
    err = call(rides, "--topic", "t", address="127.0.0.1:1", code=3)
    [line] = err.splitlines()
    assert line.startswith("error: no broker answers at 127.0.0.1:1 ")
    assert "ECONNREFUSED" in line


def test_a_broker_that_is_killed_for_a_moment_costs_nothing_and_repeats_nothing(
    broker_factory, topics_of, start, rides
):
    broker = broker_factory()
    topics = topics_of(broker)
    name = topics.create()
    process = start(rides, "--topic", name, "--rate", 200, address=broker.address)
    try:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and not topics.read(name):
            time.sleep(0.1)
        broker.kill9()
        broker.start()
        out, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert out.startswith("1,000 records in ")
    assert [json.loads(record.value)["id"] for record in topics.read(name)] == list(range(1_000))


def test_a_broker_that_stays_away_is_told_with_what_had_arrived(broker_factory, topics_of, start, rides):
    broker = broker_factory()
    topics = topics_of(broker)
    name = topics.create()
    process = start(rides, "--topic", name, "--rate", 100, address=broker.address)
    try:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and not topics.read(name):
            time.sleep(0.1)
        broker.kill9()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 3, err
    assert "Traceback" not in err
    assert err.startswith(f"error: no broker answers at {broker.address} ")


def test_a_topic_with_other_partitions_is_left_alone(call, rides, topic, topics):
    name = topic(partitions=2)
    err = call(rides, "--topic", name, "--partitions", 4, code=2)
    assert f"--partitions 4: topic '{name}' is there already, with 2" in err
    assert topics.read(name) == []


def test_a_topic_that_kafka_refuses_is_one_sentence(call, rides):
    err = call(rides, "--topic", "a/b", code=3)
    [line] = err.splitlines()
    assert "topic 'a/b'" in line
    assert "ASCII alphanumerics" in line


def test_a_mistyped_file_leaves_no_topic_behind(call, name, topics):
    assert "matches no file" in call("no-such.csv", "--topic", name, code=3)
    assert name not in topics.names()


def test_a_record_that_the_topic_refuses_is_told_once_all_others_are_there(call, topics, tmp_path, name):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"b": "%s"}\n{"a": 2}\n' % ("x" * 2_000_000))
    (told,) = call("a.jsonl", "--topic", name, code=6).splitlines()
    assert told.startswith(f"error: topic '{name}': 1 record not written (record 2, 2,000,009 bytes): larger than ")
    assert "max.message.bytes, 1048588, allows; raise that (kafka-configs.sh " in told
    assert told.endswith(f"; 2 other records written to topic '{name}'")
    assert [record.value for record in topics.read(name)] == [b'{"a": 1}', b'{"a": 2}']


def test_the_limit_of_the_topic_decides_even_within_a_batch(call, topics, tmp_path):
    small = topics.create(configs={"max.message.bytes": 5_000})
    large = topics.create(configs={"max.message.bytes": 3_000_000})
    lines = [b'{"a": "%s"}' % (b"x" * (8_000 if i % 50 == 7 else 800)) for i in range(200)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    err = call("a.jsonl", "--topic", small, code=6)
    assert "4 records not written (first record 8, 8,009 bytes): larger than its max.message.bytes, 5000, " in err
    assert [record.value for record in topics.read(small)] == [line for line in lines if len(line) < 5_000]
    (tmp_path / "b.jsonl").write_text('{"b": "%s"}\n' % ("x" * 2_000_000))
    assert call("b.jsonl", "--topic", large).startswith("1 records in ")


def test_with_compression_the_broker_judges_and_a_refusal_ends_it(call, topics, tmp_path, name):
    (tmp_path / "client.toml").write_text('compression_type = "gzip"')
    (tmp_path / "a.jsonl").write_text('{"b": "%s"}\n' % ("x" * 2_000_000))
    assert call("a.jsonl", "--topic", name, "--config", "client.toml").startswith("1 records in ")
    noise = random.Random(0).randbytes(1_000_000).hex()
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n{"b": "%s"}\n' % (noise * 2))
    err = call("b.jsonl", "--topic", name, "--config", "client.toml", code=6)
    assert (
        "it stopped at record 2 (4,000,009 bytes), which is larger than its max.message.bytes, 1048588, allows" in err
    )


def test_a_record_beyond_what_is_read_of_one_is_told(call, topics, tmp_path, name):
    (tmp_path / "a.jsonl").write_text('{"b": "%s"}\n{"a": 2}\n' % ("x" * (1 << 24)))
    err = call("a.jsonl", "--topic", name, code=6)
    assert "error: a.jsonl: 1 record not written (first record 1): longer than 16777216 bytes, " in err
    assert [record.value for record in topics.read(name)] == [b'{"a": 2}']


def test_the_limit_of_the_client_is_told_too(call, topics, tmp_path, name):
    (tmp_path / "client.toml").write_text("max_request_size = 2000")
    (tmp_path / "a.jsonl").write_text('{"b": "%s"}\n{"a": 2}\n' % ("x" * 4_000))
    err = call("a.jsonl", "--topic", name, "--config", "client.toml", code=6)
    assert "1 record not written (record 1, 4,009 bytes): larger than max_request_size, 2000, of the client" in err
    assert [record.value for record in topics.read(name)] == [b'{"a": 2}']


def test_a_file_may_be_named_as_it_likes(call, topics, tmp_path, name):
    (tmp_path / "a.bin").write_text('{"a": 1}\n')
    assert "--read-as" in call("a.bin", "--topic", name, code=3)
    assert name not in topics.names()
    call("a.bin", "--topic", name, "--read-as", "jsonl")
    assert [record.value for record in topics.read(name)] == [b'{"a": 1}']


def test_a_key_that_no_record_has_is_an_error(call, rides, topics, tmp_path, name):
    assert "--key 'nope': rides.csv has no such column" in call(rides, "--topic", name, "--key", "nope", code=2)
    assert topics.read(name) == []
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    err = call("a.jsonl", "--topic", name, "--key", "nope", code=2)
    assert "--key 'nope': none of the 1 records has this field" in err


def test_a_wrong_password_stays_secret(call, rides, tmp_path):
    lines = ['security_protocol = "SASL_PLAINTEXT"', 'sasl_mechanism = "PLAIN"', 'sasl_plain_username = "me"']
    (tmp_path / "client.toml").write_text("\n".join([*lines, 'sasl_plain_password = "geheim"']))
    err = call(rides, "--topic", "t", "--config", "client.toml", "--log-level", "debug", code=3)
    assert "error: no broker answers" in err  # this one listens without SASL, and says so by hanging up
    assert "geheim" not in err
