"""Predictions and dead letters in topics of a real Kafka, also in one transaction with the position."""

import json
import random
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

from streammoe.assembly import open_daemon
from streammoe.configuration import load_settings
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError, SinkError
from streammoe.ports import DeadLetter
from streammoe_connectors.kafka.dead_letters import KafkaDeadLetters
from tests.integration.kafka_clients import rows, sink_to, versions

LIMIT = 1_048_588
"""Kafka's default for max.message.bytes."""


def letters_to(address, topic):
    return KafkaDeadLetters(KafkaDeadLetters.Settings(kind="kafka", topic=topic, bootstrap_servers=address), None)


@pytest.fixture
def closing():
    """Sinks that are closed at the end, also where the test fails."""
    opened = []
    yield lambda sink: opened.append(sink) or sink
    for sink in opened:
        sink.close()


def test_predictions_are_objects_that_other_clients_find_by_key_and_in_order_also_if_written_again(topics, closing):
    keyed, keyless = topics.create(partitions=5), topics.create(partitions=4)
    keys = [b"key %d" % (i % 50) for i in range(300)]
    topics.fill(keyed, [b'{"model_version": -1}'] * 50, keys=keys[:50])
    for _ in range(2):
        for name, own in ((keyed, keys), (keyless, None)):
            sink = closing(sink_to(topics.address, name, compression="gzip"))
            sink.write(rows(0, 300, keys=own, gate=np.full((300, 2), 0.5)))
            sink.flush()
    found = topics.read(keyed)
    assert len({(record.key, record.partition) for record in found}) == 50
    those = versions(record for record in found if record.key == b"key 7")
    assert those == [-1, *range(7, 300, 50), *range(7, 300, 50)]
    found = topics.read(keyless)
    assert (len(found), len({(record.key, record.partition) for record in found})) == (600, 300)
    assert {record.partition for record in found} == {0, 1, 2, 3}
    by_place = {json.loads(record.key)["offset"]: json.loads(record.value) for record in found}
    place = {"path": "a.jsonl", "offset": 0}
    first = {"place": place, "model_version": 0, "prediction": 0.5, "target": 1.0, "loss": 0.25, "gate": [0.5, 0.5]}
    assert by_place[0] == first
    assert by_place[1]["loss"] is None


def test_a_dead_letter_is_the_record_with_headers(topics, closing):
    name = topics.create()
    sink = closing(letters_to(topics.address, name))
    place = {"topic": "events", "partition": 0, "offset": 7}
    detail = "bad \udcff, größer"
    full = DeadLetter(place, "decode", "malformed", detail, b"\xff\x00", "csv", ("a", "ü"))
    full = full._replace(key=b"\xfe", headers=(("stage", b"\xff"), ("stage", None)), omitted_bytes=3)
    sink.write([full, DeadLetter({"path": "ä", "offset": 0}, "validate", "too_long", "so long", b"")])
    sink.flush()
    full, bare = topics.read(name)
    assert (full.value, json.loads(full.key)) == (b"\xff\x00", place)
    assert full.headers[-3:] == [("key", b"\xfe"), ("header.stage", b"\xff"), ("null-header.stage", b"")]
    headers = {header: content.decode() for header, content in full.headers[:-3]}
    assert headers.pop("omitted_bytes") == "3"
    assert json.loads(headers.pop("place")) == place
    assert json.loads(headers.pop("columns")) == ["a", "ü"]
    expected = {"stage": "decode", "reason": "malformed", "format": "csv"}
    assert headers == {"detail": "bad \\udcff, größer", **expected}
    assert (bare.value, [header for header, _ in bare.headers]) == (b"", ["place", "stage", "reason", "detail"])


def test_a_daemon_learns_from_a_topic_of_letters_once_their_cause_is_mended(topics, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("streammoe.assembly.compile_kernels", lambda settings=None: None)
    read, rejected, again = topics.create(), topics.create(partitions=2), topics.create()
    events = [{"a": i % 7 - 3.0, "b": i % 5 - 2.0, "y": i % 7 - i % 5} for i in range(60)]
    far = [{**events[i], "a": 1e9} for i in (3, 9)]
    topics.fill(read, [*(json.dumps(event).encode() for event in [*events, *far]), b"what?"])
    source = {"kind": "kafka", "topics": [read], "group": read, "bootstrap_servers": topics.address, "until": "end"}
    lines = [
        *(f"source.{name} = {json.dumps(value)}" for name, value in source.items()),
        f'dead_letters = {{ kind = "kafka", topic = "{rejected}" }}',
        'schema.target = "y"\nmodel = { n_experts = 1, warmup = 10 }\nmetrics.enabled = false',
    ]
    (tmp_path / "config.toml").write_text("\n".join(lines))
    mended = [f"source.topics={json.dumps([read, rejected])}", f"dead_letters.topic={again}", "model.range_factor=1e10"]
    for overrides, learned, left in (([], 60, 3), (mended, 62, 4)):  # since the first start
        settings = load_settings("config.toml", environment={}, overrides=overrides)
        with open_daemon(settings) as running, StopFlag() as stop:
            done = running.daemon.run(stop)
        assert (done.learned, done.rejected) == (learned, left)
    assert [record.value for record in topics.read(again)] == [b"what?"]


def test_the_example_sends_a_csv_file_to_a_topic_that_it_creates(topics, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2.5\n3,\n")
    name = f"sent-{uuid.uuid4().hex[:8]}"
    script = Path(__file__).parents[2] / "config/examples/send.py"
    subprocess.run([sys.executable, script, tmp_path / "a.csv", name, topics.address], check=True)
    sent = [json.loads(record.value) for record in topics.read(name)]
    assert sent == [{"a": 1.0, "b": 2.5}, {"a": 3.0}] * 50


def test_what_cannot_be_written_to_is_an_error_at_the_start(topics):
    for make in (sink_to, letters_to):
        with pytest.raises(SinkError):
            make(topics.address, "nowhere")
    with pytest.raises(ConfigError):  # it would break the promise
        sink_to(topics.address, topics.create(), options={"retries": 0})


@pytest.mark.both_clients
def test_of_a_letter_that_its_topic_has_no_room_for_the_beginning_and_the_place_are_kept(topics, closing):
    small, default = topics.create(configs={"max.message.bytes": 20_000}), topics.create()
    fits = DeadLetter({"path": "a", "offset": 0}, "decode", "malformed", "bad", b"x" * 15_000, "jsonl")
    garbage = fits._replace(
        location={"topic": "t", "partition": 2, "offset": 9}, record=random.Random(0).randbytes(20 << 20)
    )
    for name, limit in ((small, 20_000), (default, LIMIT)):
        sink = closing(letters_to(topics.address, name))
        sink.write([fits] * 9)  # together more than the smaller limit
        sink.write([garbage, fits])
        sink.flush()
        *_, cut, last = topics.read(name)
        headers = dict(cut.headers)
        assert limit - 1_000 < len(cut.value) < limit
        assert garbage.record == cut.value + garbage.record[-int(headers["cut_bytes"]) :]
        assert (json.loads(headers["place"]), "format" in headers) == (garbage.location, False)
        assert (last.value, dict(last.headers)["format"]) == (fits.record, b"jsonl")


def test_a_row_that_is_too_large_ends_it_and_says_which(topics, closing):
    sink = closing(sink_to(topics.address, topics.create(configs={"max.message.bytes": 20_000})))
    sink.write(rows(0, 3))
    with pytest.raises(SinkError) as raised:  # noqa: PT012 - either may show it
        sink.write(rows(3, 1, gate=np.full((1, 10_000), 0.5)))
        sink.flush()
    assert '{"path": "a.jsonl", "offset": 3}' in str(raised.value)


# --- transactions -----------------------------------------------------------------------------------------------------


@pytest.fixture
def setup(topics, transactions):
    return transactions(topics)


@pytest.mark.both_clients
def test_predictions_are_seen_with_the_position(setup):
    sink = setup.sink()
    assert sink.transactional
    assert setup.recovered(sink, None) == 0
    sink.commit(setup.position(0, 0), 1)
    sink.write(rows(0, 10))
    sink.flush()
    assert (setup.seen(), len(setup.seen("read_uncommitted"))) == ([], 10)
    assert setup.committed() == [(0, "owner-1", 1)] * 2
    sink.commit(setup.position(4, 6), 2)
    assert setup.seen() == list(range(10))
    assert setup.committed() == [(4, "owner-1", 2), (6, "owner-1", 2)]
    sink.commit(setup.position(5, 6), 3)  # a checkpoint without events
    sink.close()
    assert setup.recovered(setup.sink(), setup.position(5, 6)) == 3
    assert setup.seen() == list(range(10))


@pytest.mark.both_clients
def test_a_restart_ends_an_open_transaction_and_recovers_the_generation(setup):
    first = setup.sink()
    setup.recovered(first, None)
    first.write(rows(0, 5))
    first.flush()
    first.commit(setup.position(5, 0), 7)
    first.write(rows(5, 5))
    first.flush()  # and then it is killed
    second = setup.sink()
    assert setup.recovered(second, setup.position(10, 0)) == 7
    second.write(rows(5, 5))
    second.flush()
    second.commit(setup.position(10, 0), 8)
    assert setup.seen() == list(range(10))
    assert len(setup.seen("read_uncommitted")) == 15
    second.write(rows(10, 5))
    second.close()  # amid a transaction: it lets go of nothing
    assert setup.committed()[0] == (10, "owner-1", 8)
    assert setup.seen() == list(range(10))
    # What checkpoints of another lineage have committed does not count.
    assert setup.recovered(setup.sink(), setup.position(10, 0, owner="owner-2")) == 0
    # One that was restored from a backup goes on from those of its original.
    assert setup.recovered(setup.sink(), setup.position(10, 0, owner="owner-1.new")) == 8


@pytest.mark.both_clients
def test_a_zombie_is_shut_out(setup):
    zombie, heir, another = (setup.sink() for _ in range(3))
    setup.recovered(zombie, None)
    zombie.write(rows(0, 5))
    zombie.flush()
    setup.recovered(heir, None)
    with pytest.raises(SinkError):
        zombie.commit(setup.position(5, 0), 1)
    setup.recovered(another, None)
    with pytest.raises(SinkError, match="another daemon"):  # noqa: PT012 - either may show it
        heir.write(rows(0, 5))
        heir.flush()
    with pytest.raises(SinkError):
        heir.write(rows(5, 5))
    another.write(rows(0, 3))
    another.flush()
    another.commit(setup.position(3, 0), 1)
    assert setup.seen() == [0, 1, 2]
    with pytest.raises(SinkError):  # a time-out that brokers do not allow
        setup.recovered(setup.sink(transaction_timeout_seconds=1000.0), None)
