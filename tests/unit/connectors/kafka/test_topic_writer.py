import socket

import pytest

from streammoe.errors import SinkError
from streammoe_connectors.kafka import topic_writer
from streammoe_connectors.kafka.topic_writer import TopicWriter


def test_a_broker_that_does_not_answer_is_an_error_of_writing(monkeypatch):
    monkeypatch.setattr(topic_writer, "_CONNECT_SECONDS", 0.1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # nobody listens there
        servers = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(SinkError):
            TopicWriter(servers, "t", partitions=None, low_latency=False, settings={})
