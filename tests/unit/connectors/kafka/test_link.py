"""What clients say of a connection that fails, and how a login that is rejected shows in it."""

from collections import Counter

import pytest

from streammoe_connectors.kafka.link import Link

OUTAGE = "[thrd:sasl_ssl://a:1/1]: sasl_ssl://a:1/1: Connect to ipv4#1 failed: Connection refused"


@pytest.mark.parametrize(
    ("logged", "said"),
    [
        ("[thrd:sasl_plaintext://a:1/bootstrap]: SASL authentication error: no", "SASL authentication error: no"),
        ("<KafkaConnection node_id=bootstrap-0>: Connection lost: socket disconnected", "brokers that reject a login"),
    ],
)
def test_a_login_that_is_rejected_is_told_from_an_outage_and_kept_though_others_fail_too(logged, said, caplog):
    link = Link("SASL_SSL", Counter())
    link.make(0.0)
    link.hear(OUTAGE)
    link.lose("no answer", 1.0)
    assert (link.connected, link.refused) == (False, "")
    for each in (logged, OUTAGE):
        link.hear(each)
    for _ in range(2):
        link.lose("no answer", 2.0)
    assert said in link.refused
    assert said in caplog.text
    assert link._counters == {"login_rejected": 1}
    link.make(3.0)
    assert (link.connected, link.refused) == (True, "")
