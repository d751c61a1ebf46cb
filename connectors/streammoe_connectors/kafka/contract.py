"""What sources and sinks ask of a Kafka client, whichever it is."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from streammoe.ports import Location, TopicPartition
from streammoe_connectors.kafka.consumer import AssignedConsumer
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source_settings import ReadingSettings


class Cause(enum.Enum):
    """Why a client could not do what it was asked, as far as that changes what to do about it."""

    NO_ANSWER = enum.auto()
    REJECTED = enum.auto()
    """Brokers reject the login or the certificate, or this client theirs; new ones may be there at any time."""
    UNKNOWN_TOPIC = enum.auto()
    TOO_LARGE = enum.auto()
    NOT_AUTHORIZED = enum.auto()
    TRANSACTIONAL_ID_NOT_AUTHORIZED = enum.auto()
    TRANSACTION_TIMEOUT_TOO_LONG = enum.auto()
    TRANSACTION_ENDED = enum.auto()
    """It was aborted by brokers, or another producer of the same transactional id has taken over."""
    OTHER = enum.auto()


CAUSES = {
    3: Cause.UNKNOWN_TOPIC,
    **dict.fromkeys((10, 18), Cause.TOO_LARGE),
    **dict.fromkeys((29, 30, 31), Cause.NOT_AUTHORIZED),
    # The epoch, state or id of a producer is not, or no longer, valid; it is fenced.
    **dict.fromkeys((47, 48, 49, 90), Cause.TRANSACTION_ENDED),
    50: Cause.TRANSACTION_TIMEOUT_TOO_LONG,
    53: Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED,
    58: Cause.REJECTED,
    # Responses of brokers while others take over, or replicas are missing.
    **dict.fromkeys((5, 6, 7, 8, 13, 14, 15, 16, 19, 20, 51, 88), Cause.NO_ANSWER),
}
"""By the numbers of errors in Kafka's protocol."""


class ClientError(Exception):
    """A client could not do what it was asked.

    Args:
        cause: of the failure.
        text: the client's own words.
        retriable: whether the same may succeed later, possibly with a new producer.
    """

    def __init__(self, cause: Cause, text: str, *, retriable: bool = False) -> None:
        super().__init__(text)
        self.cause = cause
        self.retriable = retriable or cause in {Cause.NO_ANSWER, Cause.REJECTED}


TransactionStep = Literal["init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"]
"""Both clients have methods of these names."""


class Topic(NamedTuple):
    """What a producer has to know of the topic that it writes to."""

    partitions: int
    max_bytes: int | None
    """The largest batch that it takes, before compression; ``None`` if this user may not see its settings."""


class Outgoing(NamedTuple):
    """A record to be sent."""

    value: bytes
    key: bytes
    location: Location
    """Of the record that it comes from, for messages."""
    headers: Sequence[tuple[str, bytes]] = ()
    partition: int | None = None
    """``None`` if the key chooses, as in Java's clients."""


class Producer(Protocol):
    """A producer of records, each sent once and in the order of its partition; all methods raise `ClientError`.

    Those for transactions may block for longer than anybody wants to wait; they may be called in another thread.
    """

    failed: list[tuple[ClientError, Outgoing | None]]
    """Why records cannot be delivered, in the order in which that was found, and which; ``None`` if the client knows no
    more than that some were not delivered."""
    rejections: list[str]
    """Why brokers have rejected the login or a certificate, in the client's words; the caller may clear it."""

    def send(self, topic: str, record: Outgoing) -> None:
        """Accept a record; `Cause.NO_ANSWER` if that is not possible at the moment."""
        ...

    def pending(self) -> int:
        """Process what has been acknowledged or has failed; return how many records are neither."""
        ...

    def flush(self, seconds: float) -> None:
        """Send what lingers, and wait for all acknowledgements for up to so many seconds."""
        ...

    def transact(self, step: TransactionStep) -> None:
        """Take a step of a transaction; the first one fences other producers of the same transactional id.

        `Cause.NO_ANSWER` if that takes long, after which the same step may be repeated.
        """
        ...

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Let the transaction commit these offsets to its group, which has no members, each with these metadata."""
        ...

    def close(self, seconds: float) -> None:
        """Close the connections; send what is left for up to so many seconds, and then discard it."""
        ...


class Transactional(NamedTuple):
    """What makes a producer transactional."""

    name: str
    """The transactional id."""
    timeout: float
    """Seconds after which brokers abort an open transaction."""
    group: str
    """The consumer group whose offsets are committed."""


class Client(Protocol):
    """A package for Kafka, as a module of functions."""

    def check_producer_options(self, connection: Connection, section: str) -> None:
        """Raise `ConfigError` if the `options` of a connection do not suit a producer."""
        ...

    def create_consumer(self, options: Mapping[str, Any], settings: ReadingSettings) -> AssignedConsumer:
        """Return a consumer.

        Raises:
            SourceError: the options are invalid, or the user is not authorized to read.
            ConfigError: a file in the options cannot be read.
            ClusterUnavailableError: no broker responded, or it rejects the login.
        """
        ...

    def create_producer(
        self, options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None
    ) -> Producer:
        """Return a producer; `ClientError`, with `Cause.NO_ANSWER` if no broker responds.

        Raises:
            ConfigError: an option is invalid for a producer, or a file in the options cannot be read.
        """
        ...

    def topic(self, options: Mapping[str, Any], name: str) -> Topic:
        """Return what there is to know of a topic.

        Raises:
            ClientError: the topic is missing; or, with `Cause.NO_ANSWER`, that takes more than about five seconds.
            ConfigError: see `create_producer`.
        """
        ...
