"""A broker that is not there, is killed, or wants a login: all in one file, for the sake of one broker to kill."""

import json
import logging
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from streammoe.commands.produce.run import produce
from streammoe.daemon.signals import StopFlag
from streammoe.errors import SinkError, SourceError
from streammoe.estimators import model_of
from streammoe.persistence import read_checkpoint
from streammoe.testing.kafka.lab import Daemon, wait_until
from streammoe_connectors.kafka import producer as kafka_producer
from streammoe_connectors.kafka import topic as kafka_topic
from streammoe_connectors.kafka import transactions as kafka_transactions
from streammoe_connectors.kafka.producer import in_background
from streammoe_connectors.kafka.source import KafkaSource
from tests.integration.kafka_killing import LEAST_SQUARES, MOST, OFTEN, ROUNDS, events, killed_at_random, objects
from tests.integration.kafka_reading import opened, polled_until, records_of, settings_of, take
from tests.integration.kafka_writing import Transactions, rows, sink_to, versions


def numbers(*found):
    return [b"%d" % i for i in found]


# --- the source ------------------------------------------------------------------------------------------------------


def test_a_source_waits_for_a_broker_that_is_not_there_yet_and_for_one_that_goes(mortal, mortal_topics):
    name = mortal_topics.create(partitions=2)
    values = numbers(*range(3_000))
    for number in range(2):
        mortal_topics.fill(name, values, partition=number, timestamps=range(1, 3_001))
    mortal.kill9()
    source = KafkaSource(settings_of(mortal.address, name, max_poll_records=500, partition_fetch_bytes=4_096))
    try:
        source.seek(None)
        assert not source.prepare(1.0)
        assert not source.status().connected
        mortal.start()
        wait_until(lambda: source.prepare(0.5), "it is ready")
        found = records_of(source.poll(60.0))
        mortal.kill9()
        while (batch := source.poll(1.0)) is not None:
            found += records_of(batch)
        assert len(found) < 6_000
        polled_until(source, lambda: not source.status().connected, "it is noticed")
        mortal.start()
        found += take(source, 6_000 - len(found))[0]
        polled_until(source, lambda: source.status().connected, "it is noticed")
        assert source.status().counters["reconnected"] == 1
    finally:
        source.close()
    assert found == [value for value in values for _ in range(2)]


def test_a_login_opens_the_way_and_a_wrong_one_does_not_and_passwords_are_seen_nowhere(
    mortal, mortal_topics, mortals, caplog, tmp_path
):
    name = mortal_topics.create()
    mortal_topics.fill(name, [b"a"])
    password = tmp_path / "password"
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password_file": str(password),
    }
    settings = settings_of(mortals[1], name, **login)
    password.write_text("hunter2\n")
    with opened(settings) as source:
        assert take(source, 1)[0] == [b"a"]
        child = Path(f"/proc/{source._process.pid}")
        seen = child.joinpath("cmdline").read_bytes() + child.joinpath("environ").read_bytes()
    assert b"hunter2" not in seen
    password.write_text("hunter3\n")
    source = KafkaSource(settings)
    try:
        source.seek(None)
        with caplog.at_level(logging.DEBUG):
            wait_until(lambda: source.prepare(0.2) or "WARNING" in caplog.text, "it is told")
        assert not source.status().ready
    finally:
        source.close()
    assert "hunter" not in caplog.text + repr(settings) + repr(source.status())


# --- sinks -----------------------------------------------------------------------------------------------------------


def test_predictions_wait_for_a_broker_and_none_is_lost_or_doubled_while_it_is_killed(
    mortal, mortal_topics, monkeypatch
):
    monkeypatch.setattr(kafka_producer, "FIRST_SECONDS", 0.2)
    name = mortal_topics.create(partitions=2)
    mortal.kill9()
    sink = sink_to(mortal.address, name, linger_ms=0, delivery_timeout_seconds=120.0)
    starter = threading.Thread(target=mortal.start)
    starter.start()
    try:
        for first in range(0, 20_000, 200):
            sink.write(rows(first, 200, keys=[b"%d" % (i % 16) for i in range(200)]))
            if first == 4_000:
                starter.join()
                mortal.kill9()
                starter = threading.Thread(target=mortal.start)
                starter.start()
        sink.flush()
    finally:
        starter.join()
        sink.close()
    found = mortal_topics.read(name)
    assert sorted(versions(found)) == list(range(20_000))
    for partition in (0, 1):
        those = versions(record for record in found if record.partition == partition)
        assert those == sorted(those)


def test_what_waits_for_a_broker_is_bounded(mortal, mortal_topics, monkeypatch):
    monkeypatch.setattr(kafka_producer, "MOST_UNACKNOWLEDGED", 100_000)
    monkeypatch.setattr(kafka_producer, "_GRACE_SECONDS", 1.0)
    sink = sink_to(mortal.address, mortal_topics.create(), delivery_timeout_seconds=2.0)
    try:
        sink.write(rows(0, 10))
        sink.flush()
        mortal.kill9()
        for first in range(0, 500, 100):
            sink.write(rows(first, 100))
        with pytest.raises(SinkError):
            sink.write(rows(500, 1_000))
        mortal.start()
        with pytest.raises(SinkError):  # it does not recover behind one's back
            sink.flush()
    finally:
        sink.close()


# --- transactions ----------------------------------------------------------------------------------------------------


@pytest.fixture
def setup(mortal_topics):
    with Transactions(mortal_topics) as setup:
        yield setup


def test_a_transactional_start_waits_for_a_broker_and_says_so(mortal, setup, caplog, monkeypatch):
    monkeypatch.setattr(kafka_transactions, "FIRST_SECONDS", 0.2)
    mortal.kill9()
    sink = setup.sink()
    wait_until(lambda: sink.recover(0.1, None) or caplog.records, "it is told")
    assert sink.recover(0.1, None) is None
    mortal.start()
    assert setup.recovered(sink, None) is None


def test_a_commit_that_nobody_answers_ends(mortal, setup, monkeypatch):
    monkeypatch.setattr(kafka_producer, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(kafka_producer, "SAY_SECONDS", 0.5)
    sink = setup.sink(delivery_timeout_seconds=2.0)
    setup.recovered(sink, None)
    sink.write(rows(0, 5))
    sink.flush()
    mortal.kill9()
    with pytest.raises(SinkError):
        sink.commit(setup.position(5, 0), 1)
    mortal.start()
    assert setup.recovered(setup.sink(), setup.position(5, 0)) is None
    assert setup.seen() == []


def test_a_transaction_that_is_open_for_too_long_ends_it(mortal, setup):
    sink = setup.sink(transaction_timeout_seconds=1.0)
    setup.recovered(sink, None)
    sink.write(rows(0, 5))
    sink.flush()
    wait_until(setup.is_settled, "the broker ends the transaction")
    with pytest.raises(SinkError):
        sink.commit(setup.position(5, 0), 1)
    assert setup.seen() == []


# --- produce ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", [True, False])
def test_produce_outlives_a_broker_that_returns_and_reports_one_that_does_not(
    mortal, mortal_topics, tmp_path, monkeypatch, returns
):
    monkeypatch.setattr(kafka_topic, "DELIVER_MS", 120_000 if returns else 2_000)
    (tmp_path / "rides.csv").write_text("\n".join(["id", *map(str, range(1_000))]) + "\n")
    name, stop = mortal_topics.create(), StopFlag()
    arguments = {"servers": mortal.address, "topic": name, "rate": 200.0, "on_batch": lambda _: None}
    sending = in_background(lambda: produce(str(tmp_path / "rides.csv"), stop=stop, **arguments))
    wait_until(lambda: mortal_topics.read(name), "it has begun")
    mortal.kill9()
    if returns:
        mortal.start()
        assert sending.result(120).records == 1_000
        assert [json.loads(record.value)["id"] for record in mortal_topics.read(name)] == list(range(1_000))
    else:
        with pytest.raises(SourceError):
            sending.result(120)


# --- all of it -------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("seed", ROUNDS)
def test_partitions_that_are_still_filled_count_each_event_once_though_daemon_and_broker_are_killed(
    mortal, mortal_topics, tmp_path, filling, seed
):
    X, y = events(MOST, seed)
    topic = mortal_topics.create(partitions=4)
    daemon = Daemon(tmp_path / f"killed-{topic}", mortal.address, topic, LEAST_SQUARES | OFTEN)
    producer = filling(mortal_topics, topic, objects(X, y), 4)
    chance = random.Random(seed)
    killed_at_random(daemon, chance, 1)
    daemon.start()
    daemon.wait_for_events(daemon.events)
    mortal.kill9()
    time.sleep(chance.random())
    before = daemon.events
    mortal.start()
    daemon.wait_for_events(before)
    daemon.kill()
    n = producer.stop()
    X, y = X[:n], y[:n]
    assert daemon.finish()["learned"] == n
    (position,) = daemon.metadata["positions"]
    assert position["topics"][topic]["partitions"] == {str(i): len(range(i, n, 4)) for i in range(4)}
    W = np.column_stack([np.ones(n), X])
    parameters = model_of(read_checkpoint(daemon.state), "here").parameters()
    np.testing.assert_allclose(parameters["expert_grams"][0], W.T @ W / n, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(parameters["experts"][0, 0], np.linalg.lstsq(W, y, rcond=None)[0], rtol=1e-9)
