"""What is read back of a topic of letters."""

from typing import NamedTuple

import pytest

from streammoe.errors import SourceError
from streammoe.ports import DeadLetter
from streammoe_connectors.kafka import kafka_python, letters
from streammoe_connectors.kafka.consumer import FIRST, ClusterUnavailableError
from streammoe_connectors.kafka.contract import Cause, ClientError, Topic
from streammoe_connectors.kafka.dead_letters import headers_of
from streammoe_connectors.kafka.letters import letter_of, letters_in
from streammoe_connectors.kafka.settings import Connection
from tests.kafka_lab.lab import PATIENCE
from tests.unit.connectors.kafka_records import Row, columns

PLACE = {"topic": "t", "partition": 0, "offset": 7}
BARE = DeadLetter(PLACE, "decode", "malformed", "bad", b"\xff")
LETTERS = [
    BARE,
    BARE._replace(format="csv", columns=("a", "\u00e4"), delimiter=";", decimal=","),
    BARE._replace(key=b"", headers=(("key", b"\xff"), ("null-header.x", None), ("header.", b"")), omitted_bytes=3),
]


def row(letter, offset=0):
    return Row(offset, letter.record, 0, None, tuple(headers_of(letter)))


@pytest.mark.parametrize("letter", LETTERS)
def test_a_letter_is_read_as_it_was_written(letter):
    assert letter_of(letter.record, headers_of(letter)) == letter


def test_what_is_no_letter():
    whole = dict(headers_of(LETTERS[1]))
    assert letter_of(b"", tuple(whole.items())) is not None
    for wrong in (
        *({"place": place} for place in (b"7", b"{", b"[" * 100_000)),
        *({name: b"\xff"} for name in ("reason", "omitted_bytes")),
        *({"columns": listed} for listed in (b"7", b"[1]")),
        *({name: b"x"} for name in ("delimiter", "decimal", "omitted_bytes")),
    ):
        assert letter_of(b"", tuple((whole | wrong).items())) is None, wrong
    for name in ("place", "stage", "reason", "detail"):
        assert letter_of(b"", tuple((n, v) for n, v in whole.items() if n != name)) is None
    assert letter_of(None, tuple(whole.items())) is None


class Partition(NamedTuple):
    """A topic of one partition, of which requests fail now and then, and which grows while it is read."""

    logs: list
    failures: list

    def offsets(self, partitions, time, *, stable=False):
        if time == FIRST:
            return dict.fromkeys(partitions, 1)
        self._fail()
        return dict.fromkeys(partitions, len(self.logs))

    def assign(self, offsets):
        self.failures.append(offsets)

    def fetch_position(self, partition):
        return self.failures[-1][partition]

    def poll(self, seconds):
        self._fail()
        ((partition, at),) = self.failures[-1].items()
        self.logs.append(row(BARE, len(self.logs)))
        self.failures.append({partition: len(self.logs)})
        return {partition: columns(*self.logs[at:])}

    def close(self):
        pass

    def _fail(self):
        if self.failures and self.failures[0] == "once":
            del self.failures[0]
            raise ClusterUnavailableError("not now")


def found(options, topic):
    if topic != "t":
        raise ClientError(Cause.UNKNOWN_TOPIC, "unknown")
    return Topic(1, None)


@pytest.fixture
def read(monkeypatch):
    monkeypatch.setattr(letters, "_RETRY_SECONDS", 0.001)

    def read(topic="t", failures=()):
        cluster = Partition([row(BARE, i) for i in range(4)], [*failures])
        monkeypatch.setattr(kafka_python, "topic", found)
        monkeypatch.setattr(kafka_python, "create_consumer", lambda options, settings: cluster)
        return list(letters_in(Connection(bootstrap_servers="there:1"), topic))

    return read


def test_it_ends_where_the_topic_ended_when_it_began_though_requests_fail_meanwhile(read):
    assert read(failures=["once", "once"]) == [BARE] * 3
    with pytest.raises(SourceError):
        read("nowhere")


def test_a_cluster_that_is_silent_ends_it(read, monkeypatch):
    assert letters.PATIENCE_SECONDS < PATIENCE
    monkeypatch.setattr(letters, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(SourceError):
        read(failures=["once"])
