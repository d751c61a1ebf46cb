"""A real Apache Kafka on this machine, without Docker: `make kafka-up`.

.venv/bin/python -m scripts.kafka_broker up       # in the background, on 127.0.0.1:9092; does nothing if it is running
.venv/bin/python -m scripts.kafka_broker status
.venv/bin/python -m scripts.kafka_broker down
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from streammoe.invocation import command_line, python
from tests.kafka_lab.broker import KAFKA, STOP_TIMEOUT, Broker, BrokerError, Unavailable, answers

FOLDER = Path(".kafka")
"""Folder of the broker that `make kafka-up` starts."""
PORT = 9092
"""The port that the examples expect."""
DATA = Path("demo-state", "trump-approval.csv")
"""What the demo leaves."""
ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "config" / "examples" / "kafka.toml"


def running(folder: Path) -> int | None:
    """Return the process that `up` started with this folder, if it is still running."""
    try:
        pid = int((folder / "broker.pid").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    # The number may have been reused by another process.
    ours = _command(pid).endswith(f"kafka.Kafka {folder.absolute() / 'server.properties'}")
    return pid if ours else None


def _command(pid: int) -> str:
    """Return the command line of a process; empty if it does not exist."""
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        return ""
    shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return shown.stdout.strip()


def port_of(folder: Path) -> int:
    """Return the port of the broker with this folder."""
    settings = (folder / "server.properties").read_text(encoding="utf-8")
    found = re.search(r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+)", settings, re.MULTILINE)
    if found is None:
        raise BrokerError(f"{folder / 'server.properties'} names no listener on 127.0.0.1; remove the folder {folder}")
    return int(found[1])


def up(folder: Path, port: int) -> None:
    """Start a broker in the background, unless one with this folder is running; print what to do next."""
    if running(folder) is not None:
        now = port_of(folder)
        if now != port:
            raise BrokerError(f"the broker of {folder} is running on port {now}; stop it first to move it to {port}")
        if not answers(port):
            raise BrokerError(f"the broker of {folder} is running but does not answer; see {folder / 'broker.log'}")
        print(f"Kafka {KAFKA} is already running on 127.0.0.1:{port}")
    else:
        broker = Broker(folder, port=port, quick=False).start()
        (folder / "broker.pid").write_text(f"{broker.pid}\n", encoding="utf-8")
        print(f"Kafka {KAFKA} is running on {broker.address}, with data and log in {folder}")
    print("\n".join(next_steps(folder, port)))


def next_steps(folder: Path, port: int) -> Iterator[str]:
    """Yield what to do with the broker of this folder, as commands for the shell that started it."""
    address = f"127.0.0.1:{port}"
    send = [os.path.relpath(CONFIG.with_name("send.py")), str(DATA), "polls"]
    run = ["run", os.path.relpath(CONFIG)]
    if port != PORT:
        send.append(address)
        run += ["--set", f"source.bootstrap_servers={address}"]
    if not DATA.exists():
        yield f"get some data  {command_line('demo')}"
    yield f"fill a topic   {python()} {shlex.join(send)}"
    yield f"learn from it  {command_line(*run)}"
    root = shlex.quote(f"PYTHONPATH={os.path.relpath(ROOT)}")
    stop = f"env {root} {python()} -m scripts.kafka_broker {shlex.join(['down', '--folder', str(folder)])}"
    yield f"stop it        {'make kafka-down' if folder == FOLDER else stop}"


def down(folder: Path) -> None:
    """Stop the broker that `up` started; its data stay."""
    pid = running(folder)
    if pid is None:
        print(f"no broker of {folder} is running")
    else:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        while running(folder) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if running(folder) is not None:
            os.kill(pid, signal.SIGKILL)
        print(f"Kafka has stopped; its topics stay in {folder}")
    (folder / "broker.pid").unlink(missing_ok=True)


def status(folder: Path) -> int:
    """Print whether the broker of this folder is running; return 0 if it is, and answers."""
    pid = running(folder)
    if pid is None:
        print(f"no broker of {folder} is running")
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
    parser.add_argument("--port", type=int, default=PORT, help="port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder for data and log (default: %(default)s)")
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
