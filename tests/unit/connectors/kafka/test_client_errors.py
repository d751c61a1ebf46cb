"""What errors of both clients mean to a sink."""

import pytest
from confluent_kafka import KafkaError, KafkaException
from kafka import errors

from streammoe_connectors.kafka import kafka_python, librdkafka
from streammoe_connectors.kafka.contract import Cause

CASES = [
    (Cause.NO_ANSWER, errors.KafkaTimeoutError("120 s"), KafkaError._MSG_TIMED_OUT),
    (Cause.UNKNOWN_TOPIC, errors.UnknownTopicOrPartitionError(), KafkaError.UNKNOWN_TOPIC_OR_PART),
    (Cause.TOO_LARGE, errors.MessageSizeTooLargeError(), KafkaError.MSG_SIZE_TOO_LARGE),
    (Cause.NOT_AUTHORIZED, errors.TopicAuthorizationFailedError("p"), KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (
        Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED,
        errors.TransactionalIdAuthorizationFailedError(),
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    (
        Cause.TRANSACTION_TIMEOUT_TOO_LONG,
        errors.KafkaError("InvalidTransactionTimeout"),
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
    ),
    (Cause.TRANSACTION_ENDED, errors.ProducerFencedError(), KafkaError._FENCED),
    (Cause.TRANSACTION_ENDED, errors.KafkaError("cannot send", errors.ProducerFencedError()), KafkaError._FENCED),
    (Cause.OTHER, errors.CorruptRecordError(), KafkaError.UNKNOWN),
]


@pytest.mark.parametrize(("cause", "of_python", "code"), CASES, ids=[case[0].name for case in CASES])
def test_both_clients_fail_for_the_same_causes(cause, of_python, code):
    of_librdkafka = librdkafka.producer.client_error(KafkaException(KafkaError(code, "its words")))
    assert kafka_python.producer.client_error(of_python).cause is of_librdkafka.cause is cause
    assert of_librdkafka.retriable is (cause is Cause.NO_ANSWER)


def test_what_brokers_say_while_others_take_over_is_asked_again():
    for code in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._TRANSPORT):
        assert librdkafka.producer.client_error(KafkaException(KafkaError(code))).retriable
