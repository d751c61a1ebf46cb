"""A real Apache Kafka on this machine, without Docker: `make kafka-up`.

python scripts/kafka_broker.py up       # in the background, on 127.0.0.1:9092; does nothing if it runs already
python scripts/kafka_broker.py status
python scripts/kafka_broker.py down
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from streammoe.testing.kafka.broker import KAFKA, STOP_TIMEOUT, Broker, BrokerError, Unavailable, answers

FOLDER = Path(".kafka")
"""Of the broker of `make kafka-up`."""


def running(folder: Path) -> int | None:
    """The process that `up` started with this folder, if it still runs."""
    try:
        pid = int((folder / "broker.pid").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    # The number may have gone to another process since.
    ours = _command(pid).endswith(f"kafka.Kafka {folder.absolute() / 'server.properties'}")
    return pid if ours else None


def _command(pid: int) -> str:
    """The words of a process; nothing if there is none, or it has ended."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        return ""
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return shown.stdout.strip()


def port_of(folder: Path) -> int:
    """Where the broker with this folder listens."""
    settings = (folder / "server.properties").read_text(encoding="utf-8")
    found = re.search(r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+)", settings, re.MULTILINE)
    if found is None:
        raise BrokerError(f"{folder / 'server.properties'} names no listener on 127.0.0.1; remove the folder {folder}")
    return int(found[1])


def up(folder: Path, port: int) -> None:
    """Start a broker in the background, unless one with this folder runs; say how to go on."""
    if running(folder) is not None:
        now = port_of(folder)
        if now != port:
            raise BrokerError(f"the broker of {folder} runs on port {now}; take it down first to move it to {port}")
        if not answers(port):
            raise BrokerError(f"the broker of {folder} runs and does not answer; see {folder / 'broker.log'}")
        print(f"Kafka {KAFKA} runs already on 127.0.0.1:{port}")
    else:
        broker = Broker(folder, port=port, quick=False).start()
        (folder / "broker.pid").write_text(f"{broker.pid}\n", encoding="utf-8")
        print(f"Kafka {KAFKA} runs on {broker.address}, with data and log in {folder}")
    script = os.path.relpath(__file__)
    print(
        f"fill a topic   streammoe produce FILE --topic events --bootstrap-servers 127.0.0.1:{port}\n"
        "learn from it  streammoe run CONFIG --set source.topics=events "
        f"--set source.bootstrap_servers=127.0.0.1:{port}\n"
        f"end it         {'make kafka-down' if folder == FOLDER else f'python {script} down --folder {folder}'}"
    )


def down(folder: Path) -> None:
    """End the broker that `up` started; its data stay."""
    pid = running(folder)
    if pid is None:
        print(f"no broker of {folder} runs")
    else:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        while running(folder) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if running(folder) is not None:
            os.kill(pid, signal.SIGKILL)
        print(f"Kafka has ended; its topics stay in {folder}")
    (folder / "broker.pid").unlink(missing_ok=True)


def status(folder: Path) -> int:
    """Say whether the broker of this folder runs; 0 if it does, and answers."""
    pid = running(folder)
    if pid is None:
        print(f"no broker of {folder} runs")
        return 1
    port = port_of(folder)
    serves = answers(port)
    print(f"Kafka {KAFKA} on 127.0.0.1:{port}, process {pid}, {'answers' if serves else 'does not answer'}")
    return 0 if serves else 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="kafka_broker.py"
    )
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--port", type=int, default=9092, help="of 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="data and log (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        if arguments.command == "up":
            up(arguments.folder, arguments.port)
        elif arguments.command == "down":
            down(arguments.folder)
        else:
            return status(arguments.folder)
    except (Unavailable, BrokerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
