"""What sinks ask of a Kafka client, and the clients to choose from."""

from __future__ import annotations

import enum
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from streammoe.errors import not_installed
from streammoe.ports import Location, TopicPartition
from streammoe_connectors.kafka.consumer import AssignedConsumer
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.settings import CLIENTS, Connection
from streammoe_connectors.kafka.source_settings import ReadingSettings


class Cause(enum.Enum):
    """Why a client could not do what it was asked, as far as that changes what to do about it."""

    NO_ANSWER = enum.auto()
    UNKNOWN_TOPIC = enum.auto()
    INVALID_TOPIC = enum.auto()
    TOO_LARGE = enum.auto()
    NOT_AUTHORIZED = enum.auto()
    TRANSACTIONAL_ID_NOT_AUTHORIZED = enum.auto()
    TRANSACTION_TIMEOUT_TOO_LONG = enum.auto()
    TRANSACTION_ENDED = enum.auto()
    """It was aborted by brokers, or another producer of the same transactional id has taken over."""
    OTHER = enum.auto()


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
        self.retriable = retriable or cause is Cause.NO_ANSWER


class Undelivered(NamedTuple):
    """A record that was accepted by `Producer.send` and then failed."""

    error: ClientError
    size: int
    location: Location | None
    """``None`` if the client only knows that some were not delivered."""


class Producer(Protocol):
    """A producer of records; all methods raise `ClientError`.

    Those for transactions may block for longer than anybody wants to wait; they may be called in another thread.
    """

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; `Cause.NO_ANSWER` after about two seconds."""
        ...

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[tuple[str, bytes]],
        location: Location,
    ) -> bool:
        """Accept a record; return ``False`` if too much is unacknowledged to accept another one.

        Args:
            topic: to write to.
            value: of the record.
            key: chooses the partition as in Java's clients, unless `partition` is given.
            partition: to write to.
            headers: of the record.
            location: returned with the record if it fails.
        """
        ...

    @property
    def n_pending(self) -> int:
        """Number of records that are neither acknowledged nor have failed, as of the last `collect` or `flush`."""
        ...

    def collect(self) -> Undelivered | None:
        """Process acknowledgements; return a record that failed, if one has."""
        ...

    def find_failure(self) -> Undelivered | None:
        """Return the first record that failed, in the order of `send`, also if earlier ones are still pending."""
        ...

    def flush(self, seconds: float) -> None:
        """Send what lingers, and wait for all acknowledgements for up to so many seconds."""
        ...

    def init_transactions(self) -> None:
        """Fence other producers of the same transactional id; `Cause.NO_ANSWER` if that takes long."""
        ...

    def begin_transaction(self) -> None:
        """Open a transaction."""
        ...

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str, group: str) -> None:
        """Let the transaction commit these offsets to a group without members, each with these metadata."""
        ...

    def commit_transaction(self) -> None:
        """Commit the transaction."""
        ...

    def abort_transaction(self) -> None:
        """Abort the transaction."""
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


class Client(Protocol):
    """A package for Kafka, as a module of functions."""

    def client_options(self, connection: Connection) -> dict[str, Any]:
        """See `settings.client_options`."""
        ...

    def secrets_of(self, options: Mapping[str, Any]) -> list[str]:
        """See `settings.secrets_of`."""
        ...

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

    def committed_metadata(
        self, options: Mapping[str, Any], group: str, partitions: Sequence[TopicPartition]
    ) -> list[str | None]:
        """Return the metadata of a group's committed offsets, once transactions that would change them have ended.

        Raises:
            ClientError: with `Cause.NO_ANSWER` if that takes more than about ten seconds.
        """
        ...


def require_client(connection: Connection, what: str) -> None:
    """Raise `ConfigError` if the package of a connection's client, which `what` needs, is not installed."""
    client = CLIENTS[connection.client]
    if importlib.util.find_spec(client.module) is None:
        raise not_installed(what, client.package, client.extra)


def load_client(name: str) -> Client:
    """Return the client of this name, whose package must be installed."""
    client: Client
    if name == "librdkafka":
        from streammoe_connectors.kafka import librdkafka as client
    else:
        from streammoe_connectors.kafka import kafka_python as client
    return client
