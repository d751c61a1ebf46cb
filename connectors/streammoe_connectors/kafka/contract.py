"""What sources and sinks ask of a Kafka client, whichever it is."""

from __future__ import annotations

import enum
import importlib.util
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streammoe.errors import ConfigError, not_installed
from streammoe.ports import Location, TopicPartition
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.settings import Connection, ReadingSettings, TopicSettings

REQUEST_SECONDS = 5.0
"""How long an answer is waited for; the same call may be repeated then."""
FIRST, END = -2, -1
"""The times that stand for the first record of a partition and for its end."""

Records = NDArray[np.void]
"""Records, in order; see `RECORD`."""
RECORD: np.dtype[Any] = np.dtype(
    [
        ("offset", np.int64),
        ("time", np.int64),
        ("value", object),
        ("key", object),
        ("headers", object),
        ("topic", object),
        ("partition", np.int64),
        ("arrived", float),
    ]
)
"""A record: its offset in its partition; its timestamp in milliseconds since 1970, −1 if unknown; its value, ``None``
for a tombstone; its key, ``None`` without one; its headers. Where it is from, and when it arrived, in monotonic
seconds, is noted by the buffer that it is put into."""
NONE: Records = np.empty(0, RECORD)
"""No record."""
Result = TypeVar("Result")


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
    **dict.fromkeys((3, 100), Cause.UNKNOWN_TOPIC),
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
    """A client could not do what it was asked, in its own words; `retriable` if a new one may be able to later."""

    def __init__(self, cause: Cause, text: str, *, retriable: bool = False) -> None:
        super().__init__(text)
        self.cause = cause
        self.retriable = retriable or cause in {Cause.NO_ANSWER, Cause.REJECTED}


class OffsetsLostError(Exception):
    """Partitions no longer hold the records to be read next."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        super().__init__()
        self.partitions = partitions


Troubles = dict[Cause, str]
"""Why connections have failed lately, in the client's words: the latest ones of each cause, `Cause.REJECTED` or
`Cause.NO_ANSWER`. The caller clears them once the cluster answers."""


def explained(error: ClientError, troubles: Troubles) -> ClientError:
    """Return why there is no answer, with why connections have failed."""
    if Cause.REJECTED in troubles:
        return ClientError(Cause.REJECTED, troubles[Cause.REJECTED])
    if Cause.NO_ANSWER in troubles and error.cause is Cause.NO_ANSWER:
        return ClientError(error.cause, f"{error}; the client says: {troubles[Cause.NO_ANSWER]}")
    return error


def in_background(call: Callable[[], Result]) -> Future[Result]:
    """Run a call that may never return, in a thread that ends with the process."""
    pending: Future[Result] = Future()

    def run() -> None:
        try:
            pending.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            pending.set_exception(error)

    threading.Thread(target=run, name="streammoe-kafka", daemon=True).start()
    return pending


class TopicDescription(NamedTuple):
    """What the cluster says of a topic to be read."""

    id: str | None  # tells it from others of the same name, earlier or later; ``None`` from brokers older than 2.8
    leaders: Mapping[int, int | None]  # the nodes that lead its partitions, in order; ``None`` without a leader


class AssignedConsumer(Protocol):
    """A consumer of assigned partitions, which uses its group only to commit.

    All requests raise `ClientError`. The first two may be called in any thread, several at a time; the others in the
    one that reads.
    """

    failed_commits: deque[str]
    """The reasons of commits that failed; the caller takes them out."""
    troubles: Troubles

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Return what the cluster says of those of these topics that exist; ``None`` for all that the settings read."""

    def offsets(
        self, partitions: Sequence[TopicPartition], time: int, *, stable: bool = False
    ) -> dict[TopicPartition, int]:
        """Return an offset of each partition; all of them have one leader.

        It is that of the first record at a time in milliseconds since 1970 or later, −1 if there is none; or that of
        `FIRST` or `END`, which is before the first open transaction if it is to be `stable`.
        """

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata | None]]:
        """Return the committed offsets, with their metadata if they are ours, once no transaction holds any."""

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait: bool = False) -> None: ...

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Assign these partitions, each read from its offset."""

    def pause(self, partition: TopicPartition) -> None: ...

    def resume(self, partition: TopicPartition) -> None: ...

    def poll(self, seconds: float) -> dict[TopicPartition, Records]:
        """Return records that arrived within so many seconds; `OffsetsLostError` if the next ones are gone."""

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that the latest records came from, as far as that is known."""

    def place(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        """Return the next offset to fetch and the high watermark of the last fetch, as far as they are known."""

    def close(self) -> None:
        """Close connections, within a second or two."""


TransactionStep = Literal["init_transactions", "begin_transaction", "commit_transaction", "abort_transaction"]
"""Both clients have methods of these names."""


class Topic(NamedTuple):
    """What a producer has to know of the topic that it writes to."""

    partitions: int
    max_bytes: int | None  # the largest batch, before compression; ``None`` if this user may not see its settings


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
    troubles: Troubles

    def send(self, topic: str, record: Outgoing) -> None:
        """Accept a record; `Cause.NO_ANSWER` if that is not possible at the moment."""

    def pending(self) -> int:
        """Process what has been acknowledged or has failed; return how many records are neither."""

    def flush(self, seconds: float) -> None:
        """Send what lingers, and wait for all acknowledgements for up to so many seconds."""

    def transact(self, step: TransactionStep) -> None:
        """Take a step of a transaction; the first one fences other producers of the same transactional id.

        `Cause.NO_ANSWER` if that takes long, after which the same step may be repeated.
        """

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        """Let the transaction commit these offsets to its group, which has no members, each with these metadata."""

    def close(self, seconds: float) -> None:
        """Close the connections; send what is left for up to so many seconds, and then discard it."""


class Transactional(NamedTuple):
    """What makes a producer transactional."""

    name: str  # the transactional id
    timeout: float  # seconds after which brokers abort an open transaction
    group: str  # whose offsets are committed


class Client(Protocol):
    """A package for Kafka, as a module of functions.

    Those that connect read passwords and certificates from their files. They raise `ClientError` if no broker answers
    within `REQUEST_SECONDS` or the login is rejected, and `ConfigError` if an option is invalid or a file cannot be
    read.
    """

    def check_options(self, connection: Connection) -> None:
        """Raise `ConfigError` if the client does not know the `options` of a connection."""

    def create_consumer(self, connection: Connection, settings: ReadingSettings) -> AssignedConsumer: ...

    def create_producer(
        self, connection: Connection, settings: TopicSettings, transactional: Transactional | None
    ) -> Producer: ...

    def topic(self, connection: Connection, name: str) -> Topic:
        """Return what there is to know of a topic to be written."""


def load_client(connection: Connection, section: str) -> Client:
    """Return the client of a connection, by which the settings of a section asks for it.

    Raises:
        ConfigError: its package is not installed, or it does not know the options.
    """
    client: Client
    if connection.client == "librdkafka":
        module, package, extra = "confluent_kafka", "confluent-kafka", "kafka-fast"
    else:
        module, package, extra = "kafka", "kafka-python", "kafka"
    if importlib.util.find_spec(module) is None:
        raise not_installed(f'{section}.kind = "kafka"', package, extra)
    if connection.client == "librdkafka":
        from streammoe_connectors.kafka import librdkafka as client
    else:
        from streammoe_connectors.kafka import kafka_python as client
    try:
        client.check_options(connection)
    except ConfigError as error:
        raise ConfigError(f"{section}.options: {error}") from None
    return client
