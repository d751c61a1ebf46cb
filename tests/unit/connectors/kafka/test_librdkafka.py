"""Settings as options of librdkafka; no broker is asked."""

import pytest

from streammoe.errors import ConfigError
from streammoe_connectors.kafka import librdkafka
from streammoe_connectors.kafka.consumer import ClusterUnavailableError
from streammoe_connectors.kafka.librdkafka import consumer as librdkafka_consumer
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source_settings import ReadingSettings

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    "extreme",
    [
        *({"buffer_bytes": size} for size in (1 << 20, 6 << 30, 1 << 50)),
        *({"partition_fetch_bytes": size} for size in (1 << 10, 1 << 30)),
        *({"discover_seconds": seconds} for seconds in (1e-3, 1e9)),
    ],
    ids=str,
)
def test_whatever_the_settings_allow_is_accepted(extreme, monkeypatch):
    monkeypatch.setattr(librdkafka_consumer, "_REQUEST_TIMEOUT", 0.01)
    with pytest.raises(ClusterUnavailableError):
        librdkafka.create_consumer(NOWHERE, ReadingSettings(topics="t", group="g", **extreme))


@pytest.mark.parametrize("options", [{"no.such.option": 1}, {"retries": 0}, {"max.in.flight": 1_000}], ids=str)
def test_options_that_no_producer_of_ours_has_are_found_without_a_broker(options, capfd):
    connection = Connection(bootstrap_servers="127.0.0.1:1", client="librdkafka", options=options)
    with pytest.raises(ConfigError, match=next(iter(options))) as caught:
        librdkafka.check_producer_options(connection, "predictions")
    assert not str(caught.value).endswith("\n")
    assert capfd.readouterr().err == ""
