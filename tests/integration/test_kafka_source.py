"""The Kafka source on a real broker: what is read, from where, in which order."""

import logging
import os
import signal
import time

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from streammoe.errors import SourceError
from streammoe.ports import Partition
from streammoe.testing import EndlessSourceContract, SourceContract
from streammoe_connectors.kafka.source import KafkaSource
from streammoe_connectors.kafka.source import source as kafka
from tests.integration.kafka_reading import batches, opened, read, records_of, settings_of, take, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.slow]

T0 = 1_700_000_000_000


def numbers(*found):
    return [b"%d" % i for i in found]


@pytest.fixture
def admin(broker):
    client = KafkaAdminClient(bootstrap_servers=broker.address)
    yield client
    client.close()


# --- contracts -------------------------------------------------------------------------------------------------------


class TestToTheEnd(SourceContract):
    """With an end it is a finite source. Two partitions, tombstones between and behind."""

    records = tuple(b'{"i": %d}' % i for i in range(14))
    skipped = 3

    @pytest.fixture(autouse=True)
    def content(self, broker, topic, fill):
        self.address = broker.address
        self.topic = topic(partitions=2)
        for i, record in enumerate(self.records):
            fill(self.topic, [record], partition=i % 3 % 2, timestamps=[T0 + i])
            if i in {0, 5, 9}:
                fill(self.topic, [None], partition=i % 2, timestamps=[T0 + i], keys=[b"k"])

    def make_source(self):
        return KafkaSource(settings_of(self.address, self.topic, until="end", max_poll_records=4))


class TestForEver(EndlessSourceContract):
    records = tuple(b'{"i": %d}' % i for i in range(12))

    @pytest.fixture(autouse=True)
    def content(self, broker, topic, fill):
        self.address = broker.address
        self.topic = topic()
        self.fill = fill

    def make_source(self):
        return KafkaSource(settings_of(self.address, self.topic))

    def add(self, data):
        self.fill(self.topic, data.splitlines(), partition=0)

    test_a_record_waits_until_it_is_complete = None  # a producer sends whole records only


# --- where it begins -------------------------------------------------------------------------------------------------


def test_the_first_start_pins_where_it_begins(broker, topic, fill):
    name = topic()
    fill(name, numbers(0, 1, 2))
    settings = settings_of(broker.address, name, start="latest")
    with opened(settings) as source:
        pinned = source.position
    assert pinned["topics"][name]["partitions"] == {"0": 3}
    fill(name, numbers(3, 4))
    with opened(settings, pinned) as source:
        assert source.position is None
        assert take(source, 2)[0] == numbers(3, 4)


def test_it_may_begin_at_a_time(broker, topic, fill):
    name = topic(partitions=2)
    fill(name, numbers(0, 1, 2), partition=0, timestamps=[T0, T0 + 1_000, T0 + 2_000])
    fill(name, numbers(3), partition=1, timestamps=[T0])
    found, _ = read(settings_of(broker.address, name, start="2023-11-14T22:13:21Z", until="end"))
    assert found == numbers(1, 2)


def test_it_may_begin_where_the_group_stands(broker, topic, fill):
    name = topic(partitions=2)
    fill(name, numbers(0, 1, 2), partition=0, timestamps=[T0, T0, T0])
    fill(name, numbers(3), partition=1, timestamps=[T0])
    settings = settings_of(broker.address, name, start="committed", until="end")
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=settings.group, enable_auto_commit=False)
    consumer.assign([TopicPartition(name, 0)])
    consumer.commit({TopicPartition(name, 0): OffsetAndMetadata(2, "somebody's note", -1)})
    consumer.close()
    assert read(settings)[0] == numbers(2, 3)


def test_a_topic_that_is_missing_is_told(broker):
    with (
        pytest.raises(SourceError, match=r"no topic nowhere-at-all; create it"),
        opened(settings_of(broker.address, "nowhere-at-all")),
    ):
        pass


def test_it_waits_for_a_broker_that_is_not_there_yet(broker_factory, topics_of, caplog):
    broker = broker_factory()
    topics = topics_of(broker)
    name = topics.create()
    topics.fill(name, numbers(0))
    broker.kill9()
    source = KafkaSource(settings_of(broker.address, name))
    try:
        source.seek(None)
        assert not source.prepare(1.0)
        assert not source.status().connected
        broker.start()
        wait_for(lambda: source.prepare(0.5), "it is ready")
        assert take(source, 1)[0] == numbers(0)
    finally:
        source.close()


# --- the order -------------------------------------------------------------------------------------------------------


def test_records_of_several_topics_come_in_the_order_of_their_times(broker, topic, fill):
    one, other = sorted([topic(partitions=2), topic(partitions=2)])
    logs = {(one, 0): [3, 1, 7], (one, 1): [2, 2, 9], (other, 0): [0, 8, 8], (other, 1): []}
    for (name, number), times in logs.items():
        fill(name, [f"{number}{name}{at}" for at in times], partition=number, timestamps=[T0 + at for at in times])
    found, _ = read(settings_of(broker.address, [other, one], until="end"))
    expected = [(other, 0, 0), (one, 1, 2), (one, 1, 2), (one, 0, 3), (one, 0, 1), (one, 0, 7), (other, 0, 8)]
    expected += [(other, 0, 8), (one, 1, 9)]
    assert found == [f"{number}{name}{at}".encode() for name, number, at in expected]


def test_a_restart_at_any_batch_goes_on_alike(broker, topic, fill):
    name = topic(partitions=3)
    for number in range(3):
        times = [T0 + (7 * i * (number + 1)) % 50 for i in range(40)]
        fill(name, numbers(*range(100 * number, 100 * number + 40)), partition=number, timestamps=times)
    whole, _ = read(settings_of(broker.address, name, until="end", max_poll_records=1000))
    assert sorted(whole) == sorted(numbers(*range(40), *range(100, 140), *range(200, 240)))
    settings = settings_of(broker.address, name, until="end", max_poll_records=7)
    found, position = [], None
    for _ in range(4):
        with opened(settings, position) as source:
            for _ in range(5):
                batch = next(batches(source), None)
                if batch is not None:
                    found += records_of(batch)
                    position = batch.end
    assert found == whole[: len(found)]
    assert len(found) > 30
    assert found + read(settings, position)[0] == whole


def test_a_partition_at_its_end_holds_up_others_only_for_a_moment(broker, topic, fill):
    name = topic(partitions=2)
    with opened(settings_of(broker.address, name, idle_ms=300)) as source:
        fill(name, numbers(0), partition=0)
        began = time.monotonic()
        assert take(source, 1)[0] == numbers(0)
        assert time.monotonic() - began < 5.0


def test_partitions_that_had_to_wait_for_another_are_read_on(broker, topic, fill):
    name = topic(partitions=3)
    for number, (count, at) in enumerate([(1_500, T0 + 1), (1_500, T0 + 1), (3_000, T0)]):
        fill(name, [f"{number}".ljust(1_000)] * count, partition=number, timestamps=[at] * count)
    with opened(settings_of(broker.address, name, until="end", buffer_bytes=1 << 20, max_poll_records=300)) as source:
        found = [record[:1] for batch in batches(source) for record in records_of(batch)]
        counters = source.status().counters
    assert found == [b"2"] * 3_000 + [b"0"] * 1_500 + [b"1"] * 1_500
    assert counters.get("consumer_rebuilt", 0) == 0


# --- shards, new partitions ------------------------------------------------------------------------------------------


def test_shards_read_everything_once(broker, topic, fill):
    name = topic(partitions=5)
    for number in range(5):
        fill(name, numbers(number), partition=number)
    found = [read(settings_of(broker.address, name, until="end", shard=f"{i}/2"))[0] for i in range(2)]
    assert [sorted(own) for own in found] == [numbers(0, 2, 4), numbers(1, 3)]


def test_another_shard_takes_up_what_it_did_not_read_from_its_beginning(broker, topic, fill, caplog):
    name = topic(partitions=2)
    fill(name, numbers(0), partition=0)
    fill(name, numbers(1), partition=1)
    _, position = read(settings_of(broker.address, name, until="end", shard="0/2"))
    assert read(settings_of(broker.address, name, until="end"), position)[0] == numbers(1)
    with caplog.at_level(logging.WARNING):
        assert read(settings_of(broker.address, name, until="end", shard="1/2"), position)[0] == numbers(1)
    assert f"no longer read, as source.topics and source.shard say: {name}/0" in caplog.text


def test_what_is_not_read_for_a_while_goes_on_where_it_stood(broker, topic, fill, caplog):
    name, other = topic(partitions=2), topic()
    whole = settings_of(broker.address, name, until="end")
    for number in (0, 1):
        fill(name, numbers(number), partition=number)
    assert sorted(read(whole)[0]) == numbers(0, 1)
    _, position = read(whole)
    for number in (0, 1):
        fill(name, numbers(2 + number), partition=number)
    with caplog.at_level(logging.WARNING):
        found, position = read(settings_of(broker.address, name, until="end", shard="0/2"), position)
    assert found == numbers(2)
    assert f"no longer read, as source.topics and source.shard say: {name}/1. Where reading stands" in caplog.text
    fill(other, numbers(9))
    found, position = read(settings_of(broker.address, other, until="end"), position)
    assert found == numbers(9)
    both = settings_of(broker.address, [name, other], until="end")
    found, position = read(both, position)
    assert found == numbers(3)
    fill(name, numbers(4), partition=1)
    found, position = read(both, position)
    assert found == numbers(4)
    assert "left" not in position


def test_a_new_partition_is_read_from_its_beginning(broker, topic, fill, admin):
    name = topic()
    with opened(settings_of(broker.address, name, start="latest", discover_seconds=0.5)) as source:
        admin.create_partitions({name: 2})
        wait_for(lambda: fill_when_there(fill, name), "the partition is there")
        found, batch = take(source, 1)
        assert found == numbers(7)
        assert batch.end["topics"][name]["partitions"] == {"0": 0, "1": 1}
        wait_for(lambda: (source.poll(0.1), source.status().counters.get("partition_discovered") == 1)[1], "it counts")


def fill_when_there(fill, name):
    try:
        return fill(name, numbers(7), partition=1)
    except AssertionError:  # the producer's metadata is older
        time.sleep(0.1)
        return None


# --- what is in the log ----------------------------------------------------------------------------------------------


def test_keys_and_times_come_along(broker, topic, fill):
    name = topic()
    fill(name, ["a", "b", "c"], keys=[b"k", None, b""], timestamps=[T0, T0 + 1, T0 + 2])
    with opened(settings_of(broker.address, name)) as source:
        batch = source.poll(5.0)
    assert list(batch.keys) == [b"k", None, b""]
    assert batch.timestamps.tolist() == [T0, T0 + 1, T0 + 2]
    assert batch.place(1) == {"topic": name, "partition": 0, "offset": 1}
    assert list(batch.tail(1).keys) == [None, b""]
    assert batch.origin == f"kafka topic {name}"


def test_tombstones_alone_are_no_batch_and_are_not_read_again(broker, topic, fill):
    name = topic()
    with opened(settings_of(broker.address, name)) as source:
        fill(name, [None, None], keys=[b"k", b"l"])
        assert source.poll(1.0) is None
        fill(name, ["a"])
        _, batch = take(source, 1)
    assert batch.skipped == 2
    assert batch.end["topics"][name]["partitions"] == {"0": 3}


def test_a_value_that_cannot_be_read_is_told_and_stands_for_itself(broker, topic, fill):
    name = topic()
    fill(name, ['{"x": 1}', '{"x": 2}', '{"x": 3}'], keys=[b"a", b"\xff", b"c"])
    with opened(settings_of(broker.address, name, key_field="id")) as source:
        batch = source.poll(5.0)
    assert records_of(batch) == [b'{"id":"a","x": 1}', b'{"x": 2}', b'{"id":"c","x": 3}']
    assert list(batch.unreadable) == [1]
    assert batch.unreadable[1].reason == "malformed"
    assert batch.block.split(b"\n")[1] == b"!"


def test_gaps_of_compaction_are_passed_and_counted(broker, topic, fill, topics):
    fast = {
        "cleanup.policy": "compact",
        "segment.ms": 100,
        "min.cleanable.dirty.ratio": 0.01,
        "max.compaction.lag.ms": 100,
    }
    name = topic(configs=fast)
    for i in range(6):
        fill(name, [b"%d" % i], keys=[b"same"])
        time.sleep(0.15)
    fill(name, [b"last"], keys=[b"other"])
    wait_for(lambda: len(topics.read(name)) < 7, "compaction", 60)
    with opened(settings_of(broker.address, name, until="end")) as source:
        found = [record for batch in batches(source) for record in records_of(batch)]
        assert found[-1] == b"last"
        assert len(found) < 7
        assert source.status().counters["gap"] > 0


class Transaction:
    def __init__(self, broker, name):
        self.producer = KafkaProducer(bootstrap_servers=broker.address, transactional_id=f"tx-{name}")
        self.producer.init_transactions()
        self.name = name

    def send(self, *values, partition=0):
        self.producer.begin_transaction()
        for value in values:
            self.producer.send(self.name, value, partition=partition)
        self.producer.flush()


@pytest.fixture
def transaction(broker):
    made = []

    def begin(name):
        made.append(Transaction(broker, name))
        return made[-1]

    yield begin
    for one in made:
        one.producer.close()


def test_of_transactions_only_what_was_committed_is_read(broker, topic, fill, transaction):
    name = topic()
    one = transaction(name)
    one.send(*numbers(0, 1))
    one.producer.commit_transaction()
    one.send(*numbers(2, 3))
    one.producer.abort_transaction()
    fill(name, numbers(4))
    one.send(*numbers(5))
    one.producer.abort_transaction()  # the log ends with it
    found, end = read(settings_of(broker.address, name, until="end"))
    assert found == numbers(0, 1, 4)
    assert read(settings_of(broker.address, name, until="end"), end)[0] == []
    everything, _ = read(settings_of(broker.address, name, until="end", isolation="read_uncommitted"))
    assert everything == numbers(0, 1, 2, 3, 4, 5)


def test_an_open_transaction_holds_up_its_partition_and_no_other(broker, topic, fill, transaction):
    name = topic(partitions=2)
    one = transaction(name)
    one.send(*numbers(0))
    fill(name, numbers(1), partition=0)
    with opened(settings_of(broker.address, name)) as source:
        fill(name, numbers(2), partition=1)
        assert take(source, 1)[0] == numbers(2)
        assert source.poll(0.5) is None
        one.producer.commit_transaction()
        assert take(source, 2)[0] == numbers(0, 1)


# --- what is lost ----------------------------------------------------------------------------------------------------


def expire(admin, name, offset):
    admin.delete_records({TopicPartition(name, 0): offset})


@pytest.mark.parametrize(("policy", "left"), [("earliest", numbers(3, 4)), ("latest", [])])
def test_what_has_expired_is_left_as_the_policy_says(broker, topic, fill, admin, caplog, policy, left):
    name = topic()
    fill(name, numbers(0, 1, 2, 3, 4))
    settings = settings_of(broker.address, name, on_lost=policy)
    with opened(settings) as source:
        position = source.position
    expire(admin, name, 3)
    with caplog.at_level(logging.WARNING), opened(settings, position) as source:
        fill(name, numbers(9))
        assert take(source, len(left) + 1)[0] == left + numbers(9)
        wait_for(lambda: (source.poll(0.1), source.status().counters.get("offset_reset") == 1)[1], "it counts")
    assert "no longer has offset 0; it holds 3 to 4" in caplog.text


def test_what_has_expired_is_an_error_unless_told_otherwise(broker, topic, fill, admin):
    name = topic()
    fill(name, numbers(0, 1, 2, 3, 4))
    settings = settings_of(broker.address, name)
    with opened(settings) as source:
        position = source.position
    expire(admin, name, 3)
    with (
        pytest.raises(
            SourceError, match=rf"topic {name}, partition 0 no longer has offset 0; it holds 3 to 4.*on_lost"
        ),
        opened(settings, position),
    ):
        pass


def test_a_position_behind_the_end_is_an_error(broker, topic, fill):
    name = topic()
    fill(name, numbers(0, 1))
    settings = settings_of(broker.address, name)
    with opened(settings) as source:
        position = source.position
    position["topics"][name]["partitions"]["0"] = 50
    with (
        pytest.raises(SourceError, match=r"no longer has offset 50; it holds 0 to 1"),
        opened(settings, position) as source,
    ):
        source.poll(10.0)


def recreate(admin, topics, name):
    admin.delete_topics([name])
    deadline = time.monotonic() + 20
    while True:
        try:
            admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
            return
        except Exception:  # noqa: BLE001 - it is still being deleted
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_that_was_created_anew_is_noticed_at_the_start(broker, topic, topics, fill, admin, policy):
    name = topic()
    fill(name, numbers(0, 1))
    settings = settings_of(broker.address, name, on_lost=policy, until="end")
    _, position = read(settings)
    recreate(admin, topics, name)
    wait_for(lambda: fill(name, numbers(5, 6, 7)), "it is there")
    if policy == "fail":
        with pytest.raises(SourceError, match=r"was created anew, and offset 2 was next.*it holds 0 to 2"):
            read(settings, position)
    else:
        found, end = read(settings, position)
        assert found == numbers(5, 6, 7)
        assert end["topics"][name]["id"] != position["topics"][name]["id"]


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_that_is_created_anew_is_noticed_while_it_is_read(broker, topic, topics, fill, admin, policy):
    name = topic()
    fill(name, numbers(0, 1))
    with opened(settings_of(broker.address, name, on_lost=policy, discover_seconds=1)) as source:
        take(source, 2)
        recreate(admin, topics, name)
        wait_for(lambda: fill(name, numbers(5)), "it is there")
        if policy == "fail":
            with pytest.raises(SourceError, match=r"created anew|no longer has offset 2"):
                source.poll(30.0)
        else:
            found, batch = take(source, 1)
            assert found == numbers(5)
            assert batch.end["topics"][name]["partitions"] == {"0": 1}
            until = time.monotonic() + 3.0  # the topic is looked at again, and nothing more comes of that
            while time.monotonic() < until:
                assert source.poll(0.2) is None
            assert source.status().counters["offset_reset"] == 1


def test_where_reading_went_on_is_kept_before_a_record_comes(broker, topic, fill, admin):
    name = topic()
    fill(name, numbers(0, 1, 2, 3, 4))
    settings = settings_of(broker.address, name, on_lost="latest")
    with opened(settings) as source:
        begun = source.position
    expire(admin, name, 3)
    with opened(settings, begun) as source:
        moved = source.position
        assert moved["topics"][name]["partitions"] == {"0": 5}
        assert source.status().positions == {Partition(name, 0): 5}
    fill(name, numbers(5))
    with opened(settings.model_copy(update={"on_lost": "fail"}), moved) as source:
        assert source.position is None
        assert take(source, 1)[0] == numbers(5)


def test_where_reading_went_on_while_it_ran_is_kept_before_a_record_comes(broker, topic, fill):
    name = topic()
    fill(name, numbers(0, 1))
    settings = settings_of(broker.address, name, on_lost="latest")
    with opened(settings) as source:
        position = source.position
    position["topics"][name]["partitions"]["0"] = 50  # as after a truncation
    with opened(settings, position) as source:
        wait_for(lambda: (source.poll(0.1), source.position)[1], "it has moved")
        assert source.position["topics"][name]["partitions"] == {"0": 2}
        fill(name, numbers(2))
        assert take(source, 1)[0] == numbers(2)
        assert source.position is None


def test_a_process_that_hangs_is_told(broker, topic, fill, caplog, monkeypatch):
    monkeypatch.setattr(kafka, "_QUIET_SECONDS", 3.0)
    name = topic()
    with caplog.at_level(logging.INFO), opened(settings_of(broker.address, name)) as source:
        wait_for(lambda: (source.poll(0.1), source.status().connected)[1], "it is connected")
        os.kill(source._process.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: (source.poll(0.1), not source.status().connected)[1], "it is told")
            source.poll(1.5)
        finally:
            os.kill(source._process.pid, signal.SIGCONT)
        assert caplog.text.count("has given no sign of life") == 1
        wait_for(lambda: (source.poll(0.1), source.status().connected)[1], "it is back")
        assert "the process that reads from Kafka goes on" in caplog.text


def test_a_topic_that_is_deleted_is_told(broker, topic, fill, admin):
    name = topic()
    fill(name, numbers(0))
    with opened(settings_of(broker.address, name)) as source:
        take(source, 1)
        admin.delete_topics([name])
        with pytest.raises(SourceError, match=f"no longer has topic {name}"):
            source.poll(30.0)


# --- status ----------------------------------------------------------------------------------------------------------


def test_positions_and_lags_are_told(broker, topic, fill):
    name = topic()
    fill(name, numbers(*range(10)))
    with opened(settings_of(broker.address, name, max_poll_records=4)) as source:
        assert source.status().ready
        first = source.poll(5.0)
        wait_for(lambda: (source._ends or source._receive(0.2), source._ends)[1], "a status came")
        status = source.status()
        assert status.positions == {Partition(name, 0): len(first)}
        assert status.lags == {Partition(name, 0): 10 - len(first)}
        assert status.connected


def test_records_come_soon(broker, topic, fill):
    name = topic()
    producer = KafkaProducer(bootstrap_servers=broker.address)
    try:
        with opened(settings_of(broker.address, name)) as source:
            producer.send(name, b"0", partition=0).get(10)
            take(source, 1)
            waits = []
            for i in range(100):
                sent = time.monotonic()
                producer.send(name, b"%d" % i, partition=0)
                take(source, 1)
                waits.append(time.monotonic() - sent)
        assert sorted(waits)[50] < 0.2  # some 5 ms on an idle machine
    finally:
        producer.close()
