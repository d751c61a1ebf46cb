"""What processes do to each other: owners, crashes, signals, a broker that is killed."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

from scripts.kafka_broker import free_port
from streammoe.errors import SourceError
from streammoe_connectors.kafka.offsets import offset_metadata, parse_offset_metadata
from streammoe_connectors.kafka.source import KafkaSource
from tests.integration.kafka_reading import opened, records_of, settings_of, take, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class Group:
    """What a group has committed of one partition, seen and written from outside."""

    def __init__(self, address, settings, number=0):
        self.partition = TopicPartition(settings.topics[0], number)
        self.consumer = KafkaConsumer(bootstrap_servers=address, group_id=settings.group, enable_auto_commit=False)
        self.consumer.assign([self.partition])

    @property
    def mirror(self):
        found = self.consumer.committed(self.partition, metadata=True)
        return None if found is None else (found.offset, parse_offset_metadata(found.metadata))

    def write(self, offset, owner, at):
        self.consumer.commit({self.partition: OffsetAndMetadata(offset, offset_metadata(owner, 1, at), -1)})


@pytest.fixture
def group_of(broker):
    made = []

    def factory(settings):
        made.append(Group(broker.address, settings))
        return made[-1]

    yield factory
    for group in made:
        group.consumer.close()


# --- the mirror and its owner ----------------------------------------------------------------------------------------


def test_a_checkpoint_is_mirrored_and_let_go_of_at_the_end(broker, topic, fill, group_of):
    name = topic()
    fill(name, ["a", "b"])
    settings = settings_of(broker.address, name)
    group = group_of(settings)
    with opened(settings) as source:
        _, batch = take(source, 2)
        assert group.mirror is None
        source.commit(batch.end, 7)
        wait_for(lambda: group.mirror, "it is committed")
        offset, mirror = group.mirror
        assert (offset, mirror.owner, mirror.generation) == (2, batch.end["owner"], 7)
        assert abs(mirror.at - time.time()) < 20
    offset, mirror = group.mirror
    assert (offset, mirror.owner, mirror.generation) == (2, "", 7)


def test_a_mark_stays_fresh_while_nothing_comes(broker, topic, group_of):
    settings = settings_of(broker.address, topic(), owner_seconds=1)
    group = group_of(settings)
    with opened(settings) as source:
        source.commit(source.position, 1)
        wait_for(lambda: group.mirror, "it is committed")
        first = group.mirror[1].at
        wait_for(lambda: group.mirror[1].at > first + 1.0, "it is refreshed")


def test_a_second_daemon_is_refused_until_the_first_has_ended(broker, topic, group_of):
    settings = settings_of(broker.address, topic())
    group = group_of(settings)
    with opened(settings) as source:
        source.commit(source.position, 1)
        wait_for(lambda: group.mirror, "it is committed")
        refused = rf"group {settings.group}: .*{source.position['owner']}.*sign of life"
        with pytest.raises(SourceError, match=refused), opened(settings):
            pass
    with opened(settings) as source:
        assert source.position is not None


def test_the_owner_itself_may_come_back_at_once(broker, topic, group_of):
    settings = settings_of(broker.address, topic())
    group = group_of(settings)
    with opened(settings) as source:
        position = source.position
    group.write(0, position["owner"], time.time())
    with opened(settings, position):
        pass


def test_a_mark_that_is_old_does_not_hold(broker, topic, group_of):
    settings = settings_of(broker.address, topic())
    group_of(settings).write(0, "somebody", time.time() - 31)
    with opened(settings):
        pass


def test_whoever_is_taken_from_stops(broker, topic, group_of):
    settings = settings_of(broker.address, topic(), owner_seconds=3)
    group = group_of(settings)
    with opened(settings) as source:
        source.commit(source.position, 1)
        wait_for(lambda: group.mirror, "it is committed")
        group.write(0, "somebody", time.time() + 5)
        with pytest.raises(SourceError, match=r"another daemon \(somebody\)"):
            source.poll(20.0)


def test_whoever_is_taken_from_stops_however_often_it_saves(broker, topic, group_of):
    settings = settings_of(broker.address, topic(), owner_seconds=3)
    group = group_of(settings)

    def save_for_20_seconds(source):
        for generation in range(200):
            group.write(0, "somebody", time.time())
            source.commit(source.position, generation)
            source.poll(0.1)

    with opened(settings) as source, pytest.raises(SourceError, match=r"another daemon \(somebody\)"):
        save_for_20_seconds(source)


def test_of_two_that_start_at_once_the_later_one_to_save_stops(broker, topic, group_of):
    settings = settings_of(broker.address, topic())
    group = group_of(settings)
    with opened(settings) as first, opened(settings) as second:
        first.commit(first.position, 1)
        wait_for(lambda: group.mirror, "it is committed")
        second.commit(second.position, 1)
        with pytest.raises(SourceError, match=first.position["owner"]):
            second.poll(20.0)
        assert first.poll(1.0) is None


# --- crashes and signals ---------------------------------------------------------------------------------------------


def test_a_child_that_is_killed_is_told(broker, topic):
    with opened(settings_of(broker.address, topic())) as source:
        os.kill(source._process.pid, signal.SIGKILL)
        with pytest.raises(SourceError, match="was killed by signal 9; start again"):
            source.poll(20.0)


SCRIPT = """
import sys, time
from streammoe_connectors.kafka.source import KafkaSource
source = KafkaSource(KafkaSource.Settings(
    kind="kafka", bootstrap_servers=sys.argv[1], topics=sys.argv[2], group=sys.argv[2]))
source.seek(None)
while not source.prepare(0.5):
    pass
print(source._process.pid, flush=True)
time.sleep(1000)
"""


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("records", [0, 4_000], ids=["waiting", "writing"])
def test_a_daemon_that_is_killed_leaves_no_child(broker, topic, fill, records):
    name = topic()
    fill(name, [b"x" * 1_000] * records)  # more than a pipe holds
    daemon = subprocess.Popen([sys.executable, "-c", SCRIPT, broker.address, name], stdout=subprocess.PIPE, text=True)
    try:
        child = int(daemon.stdout.readline())
        time.sleep(1.0)
        assert alive(child)
        daemon.kill()
        wait_for(lambda: not alive(child), "the child has ended", 5.0)
    finally:
        daemon.kill()
        daemon.wait()
        daemon.stdout.close()


def config(folder, address, topic, group):
    path = folder / "config.toml"
    path.write_text(f"""
        source = {{ kind = "kafka", bootstrap_servers = "{address}", topics = "{topic}", group = "{group}" }}
        schema.target = "y"
        checkpoint.dir = "{folder / "state"}"
        dead_letters.path = "{folder / "dead-letters.jsonl"}"
        metrics.enabled = false
    """)
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_ends_all_in_good_order(broker, topic, fill, group_of, tmp_path, number):
    name = topic()
    fill(name, [json.dumps({"x": i, "y": i}) for i in range(50)])
    settings = settings_of(broker.address, name)
    group = group_of(settings)
    command = [
        Path(sys.executable).with_name("streammoe"),
        "run",
        config(tmp_path, broker.address, name, settings.group),
    ]
    daemon = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: group.mirror, "the first checkpoint", 60)
        os.killpg(daemon.pid, number)
        output, said = daemon.communicate(timeout=30)
    finally:
        daemon.kill()
        daemon.wait()
    assert daemon.returncode == 0, said
    offset, mirror = group.mirror
    assert mirror.owner == ""
    assert offset in {0, 50}
    assert f"{offset}" in output


def test_sighup_to_the_whole_group_ends_nothing(broker, topic, fill, group_of, tmp_path):
    name = topic()
    fill(name, [json.dumps({"x": i, "y": i}) for i in range(50)])
    settings = settings_of(broker.address, name)
    group = group_of(settings)
    log = tmp_path / "log"
    command = [Path(sys.executable).with_name("streammoe"), "run"]
    command.append(config(tmp_path, broker.address, name, settings.group))
    with log.open("w") as output:
        daemon = subprocess.Popen(command, stderr=output, start_new_session=True)
    try:
        wait_for(lambda: group.mirror, "the first checkpoint", 60)
        os.killpg(daemon.pid, signal.SIGHUP)
        wait_for(lambda: "the settings are what they were" in log.read_text(), "they are read again")
        os.kill(daemon.pid, signal.SIGTERM)
        assert daemon.wait(30) == 0, log.read_text()
    finally:
        daemon.kill()
        daemon.wait()


def test_commits_never_wait_for_a_child_that_does_not_listen(broker, topic, fill):
    name = topic()
    with opened(settings_of(broker.address, name)) as source:
        os.kill(source._process.pid, signal.SIGSTOP)
        began = time.monotonic()
        for generation in range(5_000):
            source.commit(source.position, generation)
        assert time.monotonic() - began < 5.0
        assert source.poll(0.1) is None
        os.kill(source._process.pid, signal.SIGCONT)
        fill(name, ["a"])
        assert take(source, 1)[0] == [b"a"]


def test_a_child_that_hangs_is_ended(broker, topic):
    source = KafkaSource(settings_of(broker.address, topic()))
    source.seek(None)
    child = source._process.pid
    os.kill(child, signal.SIGSTOP)
    source.close()
    assert not alive(child)


# --- the broker ------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_killed_in_mid_read_costs_nothing_but_time(broker_factory, topics_of, caplog):
    broker = broker_factory()
    topics = topics_of(broker)
    name = topics.create(partitions=2)
    values = [b"%d" % i for i in range(3_000)]
    for number in range(2):
        topics.fill(name, values, partition=number, timestamps=range(1, 3_001))
    settings = settings_of(broker.address, name, max_poll_records=500, partition_fetch_bytes=4_096)
    with opened(settings) as source:
        found = records_of(source.poll(10.0))
        broker.kill9()
        while (batch := source.poll(1.0)) is not None:
            found += records_of(batch)
        assert len(found) < 6_000
        wait_for(lambda: (source.poll(0.2), not source.status().connected)[1], "it is noticed")
        broker.start()
        found += take(source, 6_000 - len(found), 60)[0]
        wait_for(lambda: (source.poll(0.2), source.status().connected)[1], "it is noticed")
        assert source.status().counters["reconnected"] == 1
        topics.fill(name, [b"more"], partition=1)
        assert take(source, 1)[0] == [b"more"]
    assert found == [value for value in values for _ in range(2)]


def test_passwords_are_seen_nowhere(broker, topic, caplog):
    settings = settings_of(
        broker.address,
        topic(),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="me",
        sasl_plain_password="hunter2",
    )
    source = KafkaSource(settings)
    try:
        with caplog.at_level(logging.DEBUG):
            source.seek(None)
            assert not source.prepare(7.0)  # the broker wants no login
        child = Path(f"/proc/{source._process.pid}")
        seen = child.joinpath("cmdline").read_bytes() + child.joinpath("environ").read_bytes()
        assert b"hunter2" not in seen
    finally:
        source.close()
    assert "does not answer" in caplog.text
    assert "hunter2" not in caplog.text + repr(settings) + repr(source.status())


@pytest.fixture
def guarded(broker_factory):
    """A broker with a second address that wants a login: the broker, and that address."""
    port, controller, login = free_port(), free_port(), free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker = broker_factory(
        port=port,
        properties={
            "listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f'{module} user_me="hunter2";',
        },
    )
    return broker, f"127.0.0.1:{login}"


def test_a_login_opens_the_way_and_a_wrong_one_does_not(guarded, topics_of, caplog, tmp_path):
    broker, address = guarded
    topics = topics_of(broker)
    name = topics.create()
    topics.fill(name, [b"a"])
    password = tmp_path / "password"
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password_file": str(password),
    }
    settings = settings_of(address, name, **login)
    password.write_text("hunter2\n")
    with opened(settings) as source:
        assert take(source, 1)[0] == [b"a"]
    password.write_text("hunter3\n")
    source = KafkaSource(settings)
    try:
        source.seek(None)
        assert not source.prepare(8.0)
        assert not source.status().connected
    finally:
        source.close()
    assert "check bootstrap_servers, security_protocol and the login" in caplog.text
    assert "hunter" not in caplog.text
