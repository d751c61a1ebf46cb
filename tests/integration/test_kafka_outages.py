"""Brokers and daemons that are killed, and a broker that is not there or wants a login.

All in one file, for the sake of one broker to kill. `STREAMMOE_ROUNDS=100 make test-exhaustive` plays so many rounds of
kills, each with another seed.
"""

import json
import os
import random
import time

import numpy as np
import pytest

from streammoe.assembly import open_daemon
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import SinkError
from streammoe.estimators import model_of
from streammoe.persistence import read_checkpoint
from streammoe_connectors.kafka import topic_sink
from streammoe_connectors.kafka.contract import in_background
from streammoe_connectors.kafka.source import KafkaSource
from tests.integration.kafka_clients import (
    numbers,
    polled_until,
    records_of,
    rows,
    settings_of,
    sink_to,
    take,
    versions,
)
from tests.kafka_lab.lab import Daemon, Producer, wait_until

# --- kills: each event counts exactly once --------------------------------------------------------------------------

ROUNDS = [
    0,
    *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, int(os.environ.get("STREAMMOE_ROUNDS", "3")))),
]
OFTEN = {"checkpoint.every_events": 300, "checkpoint.every_seconds": 0.2, "source.max_poll_records": 50}
"""Checkpoints: so many that kills fall into them, too."""
RATE, MOST = 250, 60_000
"""Events a second, and so many that a slow machine does not come to their end."""
MIXTURE = {"model.n_experts": 2, "model.warmup": 100}
LEAST_SQUARES = {
    "model.n_experts": 1,
    "model.prior_strength": 0.0,
    "model.standardize": False,
    "model.averaging": "none",
    "model.schedule.kind": "power",
    "model.schedule.alpha": 1.0,
}
"""A model whose state is that of all events together, in whatever order they come."""


def events(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 3)).round(4)
    return X, (np.where(X[:, 0] > 0, X @ [1, 2, 3], X @ [-1, 0, 1]) + 0.1 * rng.normal(size=n)).round(4)


def objects(X, y):
    return [json.dumps({"a": a, "b": b, "c": c, "y": t}) for (a, b, c), t in zip(X.tolist(), y.tolist(), strict=True)]


def kill_at_random(daemon, chance):
    """Start the daemon and kill it at any moment from the first checkpoint with something new on."""
    daemon.start()
    daemon.wait_for_events(daemon.events)
    time.sleep(chance.random() * 0.2)
    daemon.kill()


def finish(daemon):
    """The summary of a run, in this process, up to what is the end of the topic now."""
    found = load_settings(daemon.config, overrides=["source.until=end", "metrics.enabled=false"], environment={})
    with open_daemon(found) as running:
        return running.daemon.run(StopFlag(armed=False)).flat()


@pytest.mark.both_clients
@pytest.mark.process
@pytest.mark.parametrize("seed", ROUNDS)
def test_a_backlog_of_partitions_ends_as_without_kills_and_each_prediction_is_seen_once(mortal_topics, tmp_path, seed):
    chance, n = random.Random(seed), 2_000
    topic = mortal_topics.create(partitions=2)
    for partition in (0, 1):
        lines = objects(*events(n // 2, 2 * seed + partition))
        mortal_topics.fill(topic, lines, partition=partition)
    digests = []
    for kills in (0, 2):
        written = mortal_topics.create(name="predictions", partitions=3)
        sink = {"predictions.kind": "kafka", "predictions.topic": written, "predictions.transactional": True}
        settings = MIXTURE | OFTEN | sink
        daemon = Daemon(tmp_path / written, mortal_topics.address, topic, settings)
        for _ in range(kills):
            kill_at_random(daemon, chance)
        digests.append(finish(daemon)["state_digest"])
        found = mortal_topics.read(written, isolation_level="read_committed")
        places = [json.loads(row.value)["place"] for row in found]
        seen = sorted((place["partition"], place["offset"]) for place in places)
        assert seen == [(partition, i) for partition in (0, 1) for i in range(n // 2)]
    assert digests[0] == digests[1]


@pytest.mark.process
@pytest.mark.parametrize("seed", ROUNDS)
def test_partitions_that_are_still_filled_count_each_event_once_though_daemon_and_broker_are_killed(
    mortal, mortal_topics, tmp_path, seed
):
    X, y = events(MOST, seed)
    topic, chance = mortal_topics.create(partitions=4), random.Random(seed)
    daemon = Daemon(tmp_path / f"killed-{topic}", mortal.address, topic, LEAST_SQUARES | OFTEN)
    (tmp_path / "lines").write_text("\n".join(objects(X, y)))
    producer = Producer(mortal.address, topic, tmp_path / "lines", 4, RATE)
    try:
        kill_at_random(daemon, chance)
        daemon.start()
        daemon.wait_for_events(daemon.events)
        mortal.kill9()
        time.sleep(chance.random())
        before = daemon.events
        mortal.start()
        daemon.wait_for_events(before)
        daemon.kill()
        n = producer.stop()
    finally:
        producer.kill()
    X, y = X[:n], y[:n]
    assert finish(daemon)["learned"] == n
    (position,) = daemon.metadata["positions"]
    assert position["topics"][topic]["partitions"] == {str(i): len(range(i, n, 4)) for i in range(4)}
    W = np.column_stack([np.ones(n), X])
    parameters = model_of(read_checkpoint(daemon.state), "here").parameters()
    np.testing.assert_allclose(parameters["expert_grams"][0], W.T @ W / n, rtol=1e-9, atol=1e-12)
    # A coefficient may be nearly 0.
    np.testing.assert_allclose(parameters["experts"][0, 0], np.linalg.lstsq(W, y, rcond=None)[0], rtol=1e-9, atol=1e-12)


# --- outages --------------------------------------------------------------------------------------------------------


def test_source_and_sinks_wait_for_a_broker_that_is_not_there_yet_and_outlive_one_that_goes(
    mortal, mortal_topics, transactions, monkeypatch
):
    monkeypatch.setattr(topic_sink, "REQUEST_SECONDS", 0.2)
    name, written = (mortal_topics.create(partitions=2) for _ in range(2))
    values = numbers(*range(4_000))

    def fill(first, last):
        for number in range(2):
            timestamps = range(first + 1, last + 1)
            mortal_topics.fill(name, values[first:last], partition=number, timestamps=timestamps)

    fill(0, 3_000)
    setup = transactions(mortal_topics)
    mortal.kill9()

    source = KafkaSource(settings_of(mortal.address, name, max_poll_records=500, partition_fetch_bytes=4_096))
    transactional = setup.sink()
    sink = None

    def write(*firsts):
        for first in firsts:
            sink.write(rows(first, 200, keys=[b"%d" % (i % 16) for i in range(200)]))

    try:
        source.seek(None)
        assert not source.prepare(1.0)
        assert not source.status().connected
        assert transactional.recover(0.1, None) is None
        starting = in_background(mortal.start)
        sink = sink_to(mortal.address, written, linger_ms=0, delivery_timeout_seconds=120.0)
        write(*range(0, 2_000, 200))
        starting.result()
        assert setup.recovered(transactional, None) == 0

        wait_until(lambda: source.prepare(0.5), "it is ready")
        found = records_of(source.poll(60.0))
        mortal.kill9()

        def is_cut_off():
            batch = source.poll(0.1)  # what was fetched before still comes, on a busy machine late
            found.extend([] if batch is None else records_of(batch))
            return not source.status().connected

        wait_until(is_cut_off, "it is noticed")
        before = source.status().counters.get("reconnected")
        for _ in range(15):
            assert is_cut_off(), "there is no broker"
        assert source.status().counters.get("reconnected") == before
        starting = in_background(mortal.start)
        write(*range(2_000, 8_000, 200))
        starting.result()
        sink.flush()
        fill(3_000, 4_000)
        found += take(source, 8_000 - len(found))[0]
        polled_until(source, lambda: source.status().connected, "it is noticed")
        # A broker that starts slowly may answer, and then not, more than once.
        assert source.status().counters["reconnected"] >= 1
    finally:
        for each in filter(None, (source, sink)):
            each.close()
    expected = [value for value in values for _ in range(2)]
    assert found[:6_000] == expected[:6_000]
    assert sorted(found[6_000:]) == sorted(expected[6_000:])
    records = mortal_topics.read(written)
    assert sorted(versions(records)) == list(range(8_000))
    for partition in (0, 1):
        those = versions(record for record in records if record.partition == partition)
        assert those == sorted(those)


def test_where_a_broker_does_not_return_waiting_is_bounded_and_what_is_given_up_stays_so(
    mortal, mortal_topics, transactions, monkeypatch
):
    monkeypatch.setattr(topic_sink, "MAX_UNFLUSHED_BYTES", 200_000)
    monkeypatch.setattr(topic_sink, "REQUEST_SECONDS", 1.0)
    setup = transactions(mortal_topics)
    sink = sink_to(mortal.address, mortal_topics.create(), delivery_timeout_seconds=2.0)
    transactional = setup.sink(delivery_timeout_seconds=2.0)
    setup.recovered(transactional, None)
    try:
        for each in (sink, transactional):
            each.write(rows(0, 10))
            each.flush()
        mortal.kill9()
        for first in range(0, 500, 100):
            sink.write(rows(first, 100))
        with pytest.raises(SinkError):
            sink.write(rows(500, 1_000))
        with pytest.raises(SinkError):
            transactional.commit(setup.position(10, 0), 1)
        mortal.start()
        with pytest.raises(SinkError):  # it does not recover behind one's back
            sink.flush()
    finally:
        sink.close()
    assert setup.recovered(setup.sink(), setup.position(10, 0)) == 0
    assert setup.seen() == []


def test_a_transaction_that_is_open_for_too_long_ends_it(mortal_topics, transactions):
    setup = transactions(mortal_topics)
    sink = setup.sink(transaction_timeout_seconds=1.0)
    setup.recovered(sink, None)
    sink.write(rows(0, 5))
    sink.flush()
    wait_until(setup.is_settled, "the broker ends the transaction")
    with pytest.raises(SinkError):
        sink.commit(setup.position(5, 0), 1)
    assert setup.seen() == []


@pytest.mark.both_clients
def test_a_login_that_is_rejected_while_running_is_named_and_read_again(mortals, mortal_topics, caplog, tmp_path):
    broker, address = mortals
    name, password = mortal_topics.create(), tmp_path / "password"
    password.write_text("hunter2")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}
    login["sasl_plain_password"] = {"file": str(password)}
    sink, source = sink_to(address, name, **login), KafkaSource(settings_of(address, name, **login))
    module = "listener.name.login.plain.sasl.jaas.config"
    before = broker.properties[module]
    try:
        sink.write(rows(0, 10))
        sink.flush()
        source.seek(None)
        wait_until(lambda: source.prepare(0.2), "it is ready")
        take(source, 10)
        broker.kill9()
        broker.properties[module] = before.replace("hunter2", "hunter3")
        broker.start()
        sink.write(rows(10, 10))
        flushing = in_background(sink.flush)
        wait_until(lambda: sink.rejection, "it is named")
        polled_until(source, lambda: source.status().refused, "so it is by the source")
        assert not source.status().connected
        assert source.status().counters["login_rejected"] >= 1
        assert not flushing.done()
        password.write_text("hunter3")
        flushing.result(60)
        assert sink.rejection == ""
        sink.write(rows(20, 10))
        sink.flush()
        take(source, 20)
        polled_until(source, lambda: source.status().connected and not source.status().refused, "all is well")
        assert sorted(set(versions(mortal_topics.read(name)))) == list(range(30))
    finally:
        sink.close()
        source.close()
        broker.properties[module] = before
        broker.kill9()  # the next test starts it with them
    warnings = [record for record in caplog.records if record.name == "streammoe.kafka"]
    assert [record.levelname for record in warnings] == ["WARNING"] * 2
    assert "hunter" not in caplog.text
