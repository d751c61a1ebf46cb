"""The Kafka source on a real broker: what is read, from where, in which order."""

import time
import uuid

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as ClientPartition

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe.testing import SourceContract
from streammoe_connectors.kafka.contract import ClientError, load_client
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.settings import Connection, ReadingSettings
from streammoe_connectors.kafka.source import KafkaSource
from tests.integration.kafka_clients import numbers, opened, polled_until, read, records_of, settings_of, take
from tests.kafka_lab.lab import wait_until

T0 = 1_700_000_000_000

# --- contracts ------------------------------------------------------------------------------------------------------


@pytest.mark.both_clients
class TestToTheEnd(SourceContract):
    """With an end it is a finite source. Two partitions, tombstones between and behind."""

    records = tuple(b'{"i": %d}' % i for i in range(14))
    skipped = 3

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def content(cls, topics, client):
        cls.address, cls.topic, cls.batches = topics.address, topics.create(partitions=2), None
        for i, record in enumerate(cls.records):
            topics.fill(cls.topic, [record], partition=i % 3 % 2, timestamps=[T0 + i])
            if i in {0, 5, 9}:
                topics.fill(cls.topic, [None], partition=i % 2, timestamps=[T0 + i], keys=[b"k"])

    def make_source(self):
        return KafkaSource(settings_of(self.address, self.topic, until="end", max_poll_records=4))

    def _read(self, position=None):
        """Whole readings are one for the class, since each starts a process; with commits it is read once more."""
        if position is not None:
            return super()._read(position)
        if self.batches is None:
            type(self).batches = super()._read()
        return self.batches

    test_reading_twice_gives_the_same_records_at_the_same_locations = None  # test_commits_change_nothing reads again


def test_a_position_of_either_client_suits_the_other(topics, client):
    other = "librdkafka" if client == "kafka-python" else "kafka-python"
    name = topics.create(partitions=2)
    topics.fill(name, numbers(0, 1, 2), partition=0)
    settings = settings_of(topics.address, name, until="end")
    found, position = read(settings)
    topics.fill(name, numbers(3, 4), partition=1)
    more, end = read(settings.model_copy(update={"client": other}), position)
    assert (found, more) == (numbers(0, 1, 2), numbers(3, 4))
    assert end["topics"][name]["id"] == position["topics"][name]["id"]


# --- where it begins, and in which order ----------------------------------------------------------------------------


def test_it_begins_at_a_time_where_the_group_is_or_at_the_end_which_the_first_start_pins(topics):
    name = topics.create(partitions=2)
    topics.fill(name, numbers(0, 1, 2), partition=0, timestamps=[T0, T0 + 1_000, T0 + 2_000])
    topics.fill(name, numbers(3), partition=1, timestamps=[T0])
    at = settings_of(topics.address, name, start="2023-11-14T22:13:21Z", until="end")
    assert read(at)[0] == numbers(1, 2)
    committed = settings_of(topics.address, name, start="committed", until="end")
    consumer = KafkaConsumer(bootstrap_servers=topics.address, group_id=committed.group, enable_auto_commit=False)
    consumer.assign([ClientPartition(name, 0)])
    consumer.commit({ClientPartition(name, 0): OffsetAndMetadata(2, "somebody's note", -1)})
    consumer.close()
    assert sorted(read(committed)[0]) == numbers(2, 3)
    settings = settings_of(topics.address, name, start="latest")
    with opened(settings) as source:
        pinned = source.position
    assert pinned["topics"][name]["partitions"] == {"0": 3, "1": 1}
    topics.fill(name, numbers(3, 4), partition=0)
    with opened(settings, pinned) as source:
        assert source.position is None
        assert take(source, 2)[0] == numbers(3, 4)


@pytest.mark.both_clients
def test_partitions_that_had_to_wait_for_another_are_read_on_and_meanwhile_are_lag(topics):
    name = topics.create(partitions=3)
    for number, (count, at) in enumerate([(1_500, T0 + 1), (1_500, T0 + 1), (3_000, T0)]):
        topics.fill(name, [f"{number}".ljust(1_000)] * count, partition=number, timestamps=[at] * count)
    with opened(settings_of(topics.address, name, buffer_bytes=1 << 20, max_poll_records=300)) as source:
        learned, partition = len(first := source.poll(60.0)), TopicPartition(name, 0)
        assert source.status().positions[TopicPartition(name, 2)] == learned
        wait_until(lambda: source.status().lags.get(partition) == 1_500, "what waits is lag")
        topics.fill(name, [b"0"] * 10, partition=0, timestamps=[T0 + 2] * 10)
        wait_until(lambda: source.status().lags[partition] == 1_510, "so is what comes while nothing is read on")
        assert source.status().connected
        found = [record[:1] for record in records_of(first) + take(source, 6_010 - learned)[0]]
        counters = source.status().counters
    assert found == [b"2"] * 3_000 + [b"0"] * 1_500 + [b"1"] * 1_500 + [b"0"] * 10
    assert not counters["consumer_rebuilt"]  # which is what helps after a minute


def test_a_pattern_reads_topics_that_match_and_those_that_come_later_from_their_first_record(topics):
    name = topics.create(partitions=2, name="pattern")
    topics.fill(name, numbers(0, 1), partition=1)
    topics.fill(topics.create(name="other"), numbers(7))
    pattern = f"{name}([.]new-.*)?"
    settings = settings_of(topics.address, None, topics_pattern=pattern, discover_seconds=0.2, start="latest")
    with opened(settings) as source:
        assert source.position["topics"].keys() == {name}
        new = topics.create(name=f"{name}.new")
        topics.fill(new, numbers(2, 3))
        found, batch = take(source, 2)
        assert (found, batch.origin) == (numbers(2, 3), f"kafka topics {pattern}")
    later = topics.create(name=f"{name}.new")  # while none runs
    topics.fill(later, numbers(5, 6))
    with opened(settings, batch.end) as source:
        found, last = take(source, 2)
        assert found == numbers(5, 6)
    offsets = {topic: held["partitions"] for topic, held in last.end["topics"].items()}
    assert offsets == {name: {"0": 0, "1": 2}, new: {"0": 2}, later: {"0": 2}}
    topics.admin.delete_topics([new])
    with pytest.raises(SourceError), opened(settings, last.end):
        pass


# --- what is in the log ---------------------------------------------------------------------------------------------


def test_keys_times_and_offsets_are_read_and_a_bad_record_affects_no_other(topics):
    name = topics.create()
    values = [None, '{"x": 1}', "[2]", None, '{"x": 3}']
    keys = [b"gone", b"\xe4", b"\xff", b"gone", None]  # which need not be text
    headers = [[], [("a", b"\xff"), ("a", b"")], [], [("gone", b"1")], [("\u00fc", b"2")]]
    topics.fill(name, values, keys=keys, headers=headers, timestamps=[T0 + i for i in range(5)])
    with opened(settings_of(topics.address, name, key_field="id")) as source:
        found, batch = take(source, 3)
    assert list(batch.headers) == [(("a", b"\xff"), ("a", b"")), (), (("\u00fc", b"2"),)]
    assert list(batch.tail(1).headers) == list(batch.headers)[1:]
    assert found == [b'{"id":"\\\\xe4","x": 1}', b"[2]", b'{"x": 3}']
    assert (list(batch.unreadable), batch.unreadable[1].reason) == ([1], "malformed")
    assert (list(batch.keys), batch.timestamps.tolist()) == ([b"\xe4", b"\xff", None], [T0 + 1, T0 + 2, T0 + 4])
    assert batch.location(1) == {"topic": name, "partition": 0, "offset": 2}
    assert list(batch.tail(1).keys) == [b"\xff", None]
    assert (batch.skipped, batch.end["topics"][name]["partitions"]) == (2, {"0": 5})


def test_what_brokers_have_compressed_is_read(topics):
    codecs = ("gzip", "snappy", "lz4", "zstd", "uncompressed")
    names = [topics.create(configs={"compression.type": codec}) for codec in codecs]
    values = [b'{"i": %d, "text": "%s"}' % (i, b"abc" * 1_000) for i in range(300)]
    for name in names:
        topics.fill(name, values, timestamps=range(T0, T0 + 300))
    found, _ = read(settings_of(topics.address, names, until="end"))
    assert found == [value for value in values for _ in codecs]


@pytest.fixture
def transaction(topics):
    """Begins a transaction with these numbers in partition 0; its producer ends it."""
    made = {}

    def send(name, *values):
        if name not in made:
            made[name] = KafkaProducer(bootstrap_servers=topics.address, transactional_id=f"tx-{name}")
            made[name].init_transactions()
        made[name].begin_transaction()
        for value in numbers(*values):
            made[name].send(name, value, partition=0)
        made[name].flush()
        return made[name]

    yield send
    for producer in made.values():
        producer.close()


@pytest.mark.both_clients
def test_of_transactions_only_what_was_committed_is_read(topics, transaction):
    name = topics.create()
    transaction(name, 0, 1).commit_transaction()
    transaction(name, 2, 3).abort_transaction()
    topics.fill(name, numbers(4))
    transaction(name, 5).abort_transaction()  # the log ends with it
    found, end = read(settings_of(topics.address, name, until="end"))
    assert found == numbers(0, 1, 4)
    assert read(settings_of(topics.address, name, until="end"), end)[0] == []
    everything, _ = read(settings_of(topics.address, name, until="end", isolation="read_uncommitted"))
    assert everything == numbers(0, 1, 2, 3, 4, 5)


def test_an_open_transaction_holds_up_its_partition_and_no_other(topics, transaction, caplog):
    name = topics.create(partitions=2)
    producer = transaction(name, 0)
    topics.fill(name, numbers(1), partition=0)
    with opened(settings_of(topics.address, name, stall_seconds=1.0)) as source:
        topics.fill(name, numbers(2), partition=1)
        assert take(source, 1)[0] == numbers(2)
        partition = TopicPartition(name, 0)
        polled_until(source, lambda: source.status().lags[partition] == 2, "what is behind it counts as lag")
        topics.fill(name, numbers(3), partition=0)
        polled_until(source, lambda: source.status().lags[partition] == 3, "so does what comes then")
        said = f"topic {name}, partition 0: a transaction"
        polled_until(source, lambda: said in caplog.text, "it is reported")
        polled_until(source, lambda: source.status().stalled == {partition: "transaction"}, "it is named")
        polled_until(source, lambda: source.status().behind > 1.0, "what waits ages")
        producer.commit_transaction()
        assert take(source, 3)[0] == numbers(0, 1, 3)
        polled_until(source, lambda: source.status().lags[partition] == 0, "all is read, the marker included")
        assert source.status().behind == 0.0
        polled_until(source, lambda: not source.status().stalled, "nothing stands still")


# --- what is lost ---------------------------------------------------------------------------------------------------


@pytest.mark.both_clients
@pytest.mark.parametrize(("policy", "at"), [pytest.param("earliest", 3, marks=pytest.mark.exhaustive), ("latest", 5)])
def test_what_has_expired_is_left_as_the_policy_says(topics, policy, at):
    name = topics.create()
    topics.fill(name, numbers(0, 1, 2, 3, 4))
    settings = settings_of(topics.address, name, on_lost=policy)
    failing = settings.model_copy(update={"on_lost": "fail"})
    with opened(settings) as source:
        begun = source.position
    topics.admin.delete_records({ClientPartition(name, 0): 3})
    with pytest.raises(SourceError), opened(failing, begun):
        pass
    with opened(settings, begun) as source:
        moved = source.position
        assert moved["topics"][name]["partitions"] == {"0": at}
        assert source.status().positions == {TopicPartition(name, 0): at}
        take(source, 5 - at)
        polled_until(source, lambda: source.status().counters.get("offset_reset") == 1, "it is counted")
    topics.fill(name, numbers(5))
    with opened(failing, moved) as source:
        assert take(source, 6 - at)[0] == numbers(*range(at, 6))


def test_a_log_that_ends_before_the_position_is_left_as_the_policy_says(topics):
    name = topics.create()
    topics.fill(name, numbers(0, 1))
    settings = settings_of(topics.address, name, on_lost="latest")
    with opened(settings) as source:
        position = source.position
    position["topics"][name]["partitions"]["0"] = 50  # as after a truncation
    with pytest.raises(SourceError), opened(settings.model_copy(update={"on_lost": "fail"}), position) as source:
        source.poll(60.0)
    with opened(settings, position) as source:
        polled_until(source, lambda: source.position, "it has moved")
        assert source.position["topics"][name]["partitions"] == {"0": 2}
        topics.fill(name, numbers(2))
        assert take(source, 1)[0] == numbers(2)
        assert source.position is None
        assert not source.status().counters["consumer_rebuilt"]


def recreate(topics, name, *values):
    """Delete a topic, and create another one of that name with these numbers."""
    topics.admin.delete_topics([name])

    def created():
        try:
            topics.admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
        except Exception:  # noqa: BLE001 - it is still being deleted
            return False
        return True

    wait_until(created, "it is created")
    wait_until(lambda: topics.fill(name, numbers(*values)), "it is there")


@pytest.mark.both_clients
def test_a_topic_that_was_created_again_is_noticed_at_the_start_and_while_it_is_read(topics):
    name = topics.create()
    topics.fill(name, numbers(0, 1))
    settings = settings_of(topics.address, name, until="end")
    _, position = read(settings)
    following = settings_of(topics.address, name, discover_seconds=1)
    with opened(following) as failing, opened(following.model_copy(update={"group": "g", "on_lost": "earliest"})) as on:
        take(failing, 2)
        take(on, 2)
        recreate(topics, name, 5, 6, 7)
        with pytest.raises(SourceError):
            failing.poll(60.0)
        found, batch = take(on, 3)
    assert found == numbers(5, 6, 7)
    assert batch.end["topics"][name]["partitions"] == {"0": 3}
    with pytest.raises(SourceError):
        read(settings, position)
    found, end = read(settings.model_copy(update={"on_lost": "earliest"}), position)
    assert found == numbers(5, 6, 7)
    assert end["topics"][name]["id"] != position["topics"][name]["id"]


def test_a_topic_that_is_missing_or_deleted_ends_it(topics):
    with pytest.raises(SourceError), opened(settings_of(topics.address, "nowhere-at-all")):
        pass
    assert "nowhere-at-all" not in topics.names()
    name = topics.create()
    topics.fill(name, numbers(0))
    with opened(settings_of(topics.address, name, discover_seconds=1)) as source:
        take(source, 1)
        topics.admin.delete_topics([name])
        with pytest.raises(SourceError):
            source.poll(60.0)


# --- the group ------------------------------------------------------------------------------------------------------


@pytest.fixture
def group_of(broker):
    """What a group has committed of partition 0, to be read and written from outside."""
    made = []

    class Group:
        def __init__(self, topic, group):
            self.partition = ClientPartition(topic, 0)
            self.consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=group, enable_auto_commit=False)
            self.consumer.assign([self.partition])
            made.append(self.consumer)

        @property
        def mirror(self):
            found = self.consumer.committed(self.partition, metadata=True)
            return None if found is None else (found.offset, OffsetMetadata.parse(found.metadata))

        def write(self, offset, owner, at):
            self.consumer.commit({self.partition: OffsetAndMetadata(offset, OffsetMetadata(owner, at, 1).encode(), -1)})

    yield Group
    for consumer in made:
        consumer.close()


def consumer_of(topics, client, settings):
    connection = Connection(bootstrap_servers=topics.address, client=client)
    return load_client(connection, "source").create_consumer(connection, settings)


@pytest.mark.both_clients
def test_a_checkpoint_is_mirrored_and_holds_its_partitions_until_the_end_or_until_they_are_taken(topics, group_of):
    name = topics.create()
    topics.fill(name, ["a", "b"])
    settings = settings_of(topics.address, name, owner_seconds=3)
    group = group_of(name, settings.group)
    with opened(settings) as source:
        _, batch = take(source, 2)
        assert group.mirror is None
        source.commit(batch.end, 7)
        wait_until(lambda: group.mirror, "it is committed")
        offset, mirror = group.mirror
        assert (offset, mirror.owner, mirror.checkpoint_generation) == (2, batch.end["owner"], 7)
        with pytest.raises(SourceError), opened(settings):
            pass
        with pytest.raises(SourceError), opened(settings, source.renamed(batch.end)):  # restored from a backup
            pass
        with opened(settings, batch.end):  # as it comes back after a crash
            pass
    offset, mirror = group.mirror
    assert (offset, mirror.owner, mirror.checkpoint_generation) == (2, "", 7)
    with opened(settings) as source:
        assert source.position is not None
        source.commit(take(source, 2)[1].end, 1)
        wait_until(lambda: group.mirror[1].owner, "it is committed")
        group.write(0, "somebody", time.time() + 60)
        with pytest.raises(SourceError):
            source.poll(60.0)


@pytest.mark.both_clients
def test_marks_of_either_client_are_read_by_the_other(topics, client):
    other = "librdkafka" if client == "kafka-python" else "kafka-python"
    name, group = topics.create(partitions=8), f"group-{uuid.uuid4().hex[:8]}"
    partitions = [TopicPartition(name, number) for number in range(8)]
    settings = ReadingSettings(topics=name, group=group)
    writer, reader = (consumer_of(topics, each, settings) for each in (client, other))
    try:
        # Of all lengths, since clients take memory in steps.
        marks = {tp: OffsetMetadata("m" * (5 * tp.partition), 1.5, 7) for tp in partitions}
        for partition, mark in marks.items():
            writer.commit({partition: partition.partition}, mark.encode(), wait=True)
        assert not writer.failed_commits
        for _ in range(3):
            assert reader.committed(partitions) == {tp: (tp.partition, marks[tp]) for tp in partitions}
    finally:
        writer.close()
        reader.close()


@pytest.mark.both_clients
def test_offsets_that_a_transaction_holds_are_waited_for(topics, client, monkeypatch):
    monkeypatch.setattr(f"streammoe_connectors.kafka.{client.replace('-', '_')}.REQUEST_SECONDS", 1.5)
    name, group = topics.create(), f"group-{uuid.uuid4().hex[:8]}"
    producer = KafkaProducer(bootstrap_servers=topics.address, transactional_id=group)
    consumer = consumer_of(topics, client, ReadingSettings(topics=name, group=group))
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({ClientPartition(name, 0): OffsetAndMetadata(5, "", -1)}, group)
        with pytest.raises(ClientError):
            consumer.committed([TopicPartition(name, 0)])
        producer.commit_transaction()
        wait_until(lambda: consumer.committed([TopicPartition(name, 0)]), "it is visible")
        assert consumer.committed([TopicPartition(name, 0)]) == {(name, 0): (5, None)}
    finally:
        producer.close()
        consumer.close()
