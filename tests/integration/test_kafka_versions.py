"""The oldest and the newest brokers and clients that docs/kafka.md names, each in one run with all guarantees."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.integration.conftest import available
from tests.kafka_lab.broker import Broker
from tests.kafka_lab.lab import Daemon
from tests.kafka_lab.topics import Topics

ROOT = Path(__file__).parents[2]
BROKERS = ("3.3.2", "4.4.0")
"""The first one whose KRaft is for production, and the newest."""
N = 3_000

pytestmark = pytest.mark.exhaustive


def oldest(package, extra):
    """The lowest version of a package that pyproject.toml allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [found] = filter(None, (re.match(rf"{package}(?:\[[^]]*\])?>=([\d.]+)", each) for each in extras[extra]))
    return found[1]


CLIENTS = [
    ("kafka-python", None),
    ("kafka-python", oldest("kafka-python", "kafka")),
    ("librdkafka", None),
    ("librdkafka", oldest("confluent-kafka", "kafka-fast")),
]


@pytest.fixture(scope="module", params=BROKERS)
def old_or_new(request, tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("kafka"), kafka=request.param)
    yield available(broker.start)
    broker.kill9()  # its data is not needed any more


@pytest.mark.parametrize(("name", "version"), CLIENTS, ids=lambda given: given or "installed")
def test_each_event_counts_once_and_each_prediction_is_seen_once(old_or_new, name, version, tmp_path, monkeypatch):
    if version is not None:
        package = "kafka-python" if name == "kafka-python" else "confluent-kafka"
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "older")]
        subprocess.run([*install, f"{package}=={version}"], check=True)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'older'}:{ROOT}:{ROOT / 'connectors'}")
    topics = Topics(old_or_new.address)
    source, predictions = topics.create(partitions=2), topics.create()
    values = [json.dumps({"x": i % 17, "y": 3 * (i % 17) + i % 2}).encode() for i in range(N)]
    for partition in (0, 1):
        topics.fill(source, values[partition::2], partition=partition)
    sink = {"kind": "kafka", "topic": predictions, "bootstrap_servers": old_or_new.address, "client": name}
    sink |= {"transactional": True}
    settings = {f"predictions.{key}": value for key, value in sink.items()}
    settings |= {"source.client": name, "source.max_poll_records": 100, "checkpoint.every_events": 300}
    daemon = Daemon(tmp_path / "daemon", old_or_new.address, source, settings)
    daemon.start()
    daemon.wait_for_events(600)
    daemon.kill()
    summary = daemon.finish()
    assert summary["learned"] == N
    seen = [json.loads(record.value)["place"] for record in topics.read(predictions, isolation_level="read_committed")]
    assert len({(place["partition"], place["offset"]) for place in seen}) == len(seen) == N
    topics.close()


def test_the_document_names_these_versions():
    document = (ROOT / "docs" / "kafka.md").read_text()
    for version in (*BROKERS, *(version for _, version in CLIENTS if version)):
        assert version in document
