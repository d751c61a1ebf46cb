"""librdkafka's mock cluster: brokers over TCP that can be told to fail, which a real one cannot.

The library comes inside the wheel of confluent-kafka and is driven through its C interface, in a process of its own: it
ends with an assertion when a client misbehaves in certain ways. This file is both that process, when it is run as a
script, and `MockCluster`, which starts it and gives it orders: a JSON list a line, each answered by a JSON object.

Clients need `api_version=(2, 3)`: asked for newer versions of ApiVersions the mock answers in a form that kafka-python
cannot read. It keeps nothing over restarts, knows no transactions, and takes no topics from clients.
"""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

API_KEYS = {
    "produce": 0,
    "fetch": 1,
    "list_offsets": 2,
    "metadata": 3,
    "offset_commit": 8,
    "offset_fetch": 9,
    "find_coordinator": 10,
    "join_group": 11,
    "heartbeat": 12,
    "leave_group": 13,
    "sync_group": 14,
}
"""Kafka's number of each request that can be made to fail."""

API_VERSION = (2, 3)
"""What clients of the mock must be told."""

STOP_TIMEOUT = 5


class MockCluster:
    """A mock cluster in a process of its own, from entering to leaving.

    Brokers are numbered from 1. Each order has been carried out when its method returns.
    """

    def __init__(self, brokers=1):
        self._brokers = brokers
        self._process = None
        self.address = ""

    def __enter__(self):
        command = [sys.executable, __file__, str(self._brokers)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._answer()["address"]
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # tells it to end
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def client(self):
        """Arguments that every client of kafka-python needs here."""
        return {"bootstrap_servers": self.address, "api_version": API_VERSION}

    def create_topic(self, name, partitions=1):
        self._order("create_topic", name, partitions)

    def down(self, broker=1):
        """Close the broker's connections and refuse new ones."""
        self._order("down", broker)

    def up(self, broker=1):
        self._order("up", broker)

    def delay(self, milliseconds, broker=1):
        """Answer every request so much later; 0 ends it."""
        self._order("delay", broker, milliseconds)

    def fail(self, api, *codes):
        """Answer the next requests of this kind (see `API_KEYS`) by these error codes, one after the other.

        A consumer that gets one for `fetch` just tries again, whatever the code: kafka-python looks at errors of
        partitions, and the mock fails the request as a whole.
        """
        self._order("fail", API_KEYS[api], list(codes))

    def heal(self, api):
        """Forget the errors of this kind that were not given yet."""
        self._order("heal", API_KEYS[api])

    def trim(self, topic, partition, offset):
        """Delete the records before `offset`, as retention does."""
        self._order("trim", topic, partition, offset)

    def _order(self, name, *arguments):
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        error = self._answer()["error"]
        if error:
            raise ValueError(f"{name} {arguments}: librdkafka answers with error {error}")

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the mock cluster has ended (code {self._process.wait(STOP_TIMEOUT)})")
        return json.loads(line)


# --- in the process of the mock --------------------------------------------------------------------------------------

Pointer, Text, Int, Short, Long = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int16, ctypes.c_int64
FUNCTIONS = {
    "new": (Pointer, [Int, Pointer, Text, ctypes.c_size_t]),
    "destroy": (None, [Pointer]),
    "conf_new": (Pointer, []),
    "conf_set": (Int, [Pointer, Text, Text, Text, ctypes.c_size_t]),
    "mock_cluster_new": (Pointer, [Pointer, Int]),
    "mock_cluster_destroy": (None, [Pointer]),
    "mock_cluster_bootstraps": (Text, [Pointer]),
    "mock_group_initial_rebalance_delay_ms": (None, [Pointer, ctypes.c_int32]),
    "mock_topic_create": (Int, [Pointer, Text, Int, Int]),
    "mock_broker_set_down": (Int, [Pointer, ctypes.c_int32]),
    "mock_broker_set_up": (Int, [Pointer, ctypes.c_int32]),
    "mock_broker_set_rtt": (Int, [Pointer, ctypes.c_int32, Int]),
    "mock_push_request_errors_array": (None, [Pointer, Short, ctypes.c_size_t, ctypes.POINTER(Int)]),
    "mock_clear_request_errors": (None, [Pointer, Short]),
    "mock_partition_delete_records": (Int, [Pointer, Text, ctypes.c_int32, Long]),
}
"""Result and arguments of what is used of rdkafka.h and rdkafka_mock.h."""


def load():
    """librdkafka, as the wheel brings it along, with the types of its functions."""
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    found = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    library = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def serve(brokers):
    """Run a cluster and obey until the standard input ends."""
    library = load()
    message = ctypes.create_string_buffer(512)
    settings = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(settings, b"log_level", b"0", message, len(message))
    producer = 0
    client = library.rd_kafka_new(producer, settings, message, len(message))
    if not client:
        raise RuntimeError(message.value.decode())
    mock = library.rd_kafka_mock_cluster_new(client, brokers)
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(mock, 0)

    def fail(api, codes):
        library.rd_kafka_mock_push_request_errors_array(mock, api, len(codes), (Int * len(codes))(*codes))

    orders = {
        "create_topic": lambda name, count: library.rd_kafka_mock_topic_create(mock, name.encode(), count, 1),
        "down": lambda broker: library.rd_kafka_mock_broker_set_down(mock, broker),
        "up": lambda broker: library.rd_kafka_mock_broker_set_up(mock, broker),
        "delay": lambda broker, ms: library.rd_kafka_mock_broker_set_rtt(mock, broker, ms),
        "fail": fail,
        "heal": lambda api: library.rd_kafka_mock_clear_request_errors(mock, api),
        "trim": lambda topic, partition, offset: library.rd_kafka_mock_partition_delete_records(
            mock, topic.encode(), partition, offset
        ),
    }
    _say({"address": library.rd_kafka_mock_cluster_bootstraps(mock).decode()})
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        _say({"error": orders[name](*arguments) or 0})
    library.rd_kafka_mock_cluster_destroy(mock)
    library.rd_kafka_destroy(client)


def _say(answer):
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
