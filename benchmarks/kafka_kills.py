"""Does every event count exactly once, however often daemon and broker are killed?

Each round starts daemons over a topic of a real broker, kills them with SIGKILL at random moments, lets the last one
read to the end, and compares with a run that nobody disturbed: the digest of the state where the order of events is
fixed, else counts and the statistics of least squares, which know no order.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import kafka_lab as lab
from benchmarks.report import machine, table
from scripts.kafka_broker import Broker
from streammoe.estimators import model_of
from streammoe.persistence import read_checkpoint
from streammoe.testing.topics import Topics

OFTEN = {"every_events": 700, "every_seconds": 0.2}
"""Checkpoints: so many that kills fall into them, too."""
TOLERANCE = 1e-9


Kill = Callable[[Path, random.Random, "subprocess.Popen[bytes]"], int]
"""Kills something under a running daemon; says how many events had been dealt with by then."""


class Round(NamedTuple):
    """What came of one round."""

    kills: int
    in_vain: int
    """Kills that hit before the first or after the last event, and so showed little."""
    right: bool
    detail: str


def live_partition(room: lab.Lab, topics: Topics, rng: random.Random, events: int = 12_000) -> Round:
    """One partition, killed while a producer runs: equal to an undisturbed run, bit for bit."""
    topic = topics.create(1)
    config = room.config(topic, **OFTEN)
    records = lab.values(*lab.events(events, rng.randrange(1 << 30)))
    daemon = lab.begun(config)
    producer = room.fill(topic, records, rate=events / 5.0)
    found = [lab.killed_after(config, daemon, rng.uniform(0.5, 3.0))]
    while producer.busy and len(found) < 3:
        found.append(lab.killed_once(config, rng, 1.0))
    producer.wait()
    summary = lab.finish(config)
    undisturbed = lab.finish(room.config(topic))
    right = summary["state_digest"] == undisturbed["state_digest"] and summary["learned"] == events
    return Round(len(found), _in_vain(found, events), right, f"{summary['learned']} of {events} learned")


def finished_partitions(room: lab.Lab, topic: str, events: int, undisturbed: str, rng: random.Random) -> Round:
    """Four partitions of a topic that is complete: the same."""
    config = room.config(topic, **OFTEN)
    found = [lab.killed_once(config, rng, 2.0), lab.killed_once(config, rng, 2.0)]
    summary = lab.finish(config)
    right = summary["state_digest"] == undisturbed and summary["learned"] == events
    return Round(len(found), _in_vain(found, events), right, f"{summary['learned']} of {events} learned")


def live_partitions(room: lab.Lab, topics: Topics, rng: random.Random, kill: Kill, events: int = 12_000) -> Round:
    """Four partitions while a producer runs: counts of each and the statistics of least squares are exact."""
    topic = topics.create(4)
    config = room.config(topic, model=lab.LEAST_SQUARES, **OFTEN)
    X, y = lab.events(events, rng.randrange(1 << 30))
    daemon = lab.begun(config)
    producer = room.fill(topic, lab.values(X, y), 4, rate=events / 5.0)
    found = [kill(config, rng, daemon)]
    while producer.busy and len(found) < 3:
        found.append(kill(config, rng, lab.begun(config)))
    producer.wait()
    summary = lab.finish(config)
    counts = lab.partitions_of(config, topic)
    checkpoint = read_checkpoint(config.parent / "state")
    parameters: dict[str, Any] = model_of(checkpoint, "here").parameters()
    W = np.column_stack([np.ones(events), X])
    gram = W.T @ W / events
    difference = np.abs(parameters["expert_grams"][0] - gram).max() / np.abs(gram).max()
    best = np.linalg.lstsq(W, y, rcond=None)[0]
    apart = np.abs(parameters["experts"][0, 0] - best).max() / np.abs(best).max()
    right = (
        summary["learned"] == events
        and counts == {partition: len(range(partition, events, 4)) for partition in range(4)}
        and float(max(difference, apart)) <= TOLERANCE
    )
    detail = f"{summary['learned']} of {events} learned, statistics differ by {max(difference, apart):.1e}"
    return Round(len(found), _in_vain(found, events), right, detail)


def kill_daemon(config: Path, rng: random.Random, daemon: subprocess.Popen[bytes]) -> int:
    return lab.killed_after(config, daemon, rng.uniform(0.5, 3.0))


def broker_killer(broker: Broker) -> Kill:
    """Kills the broker under a daemon and a producer, and ends the daemon once the broker is back."""

    def kill_broker(config: Path, rng: random.Random, daemon: subprocess.Popen[bytes]) -> int:
        time.sleep(rng.uniform(0.5, 3.0))
        before = lab.dealt_with(config)
        broker.kill9()
        time.sleep(rng.uniform(0.0, 2.0))
        broker.start()
        lab.wait_for_events(config, daemon)
        lab.kill(daemon)
        return before

    return kill_broker


def _in_vain(found: list[int], events: int) -> int:
    return sum(not 0 < count < events for count in found)


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="that kill the daemon")
    parser.add_argument("--broker-rounds", type=int, default=20, help="that kill the broker")
    parser.add_argument("--only", type=int, action="append", help="which of the four kinds, from 0; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name, Broker(Path(name, "kafka")) as broker:
        room, topics = lab.Lab(Path(name), broker.address), Topics(broker.address)
        events = 200_000
        finished = topics.create(4)
        room.fill(finished, lab.values(*lab.events(events)), 4).wait()
        undisturbed = lab.finish(room.config(finished))["state_digest"]
        kinds: list[tuple[str, int, Callable[[random.Random], Round]]] = [
            ("1 partition, live", arguments.rounds, lambda rng: live_partition(room, topics, rng)),
            (
                "4 partitions, finished",
                arguments.rounds,
                lambda rng: finished_partitions(room, finished, events, undisturbed, rng),
            ),
            ("4 partitions, live", arguments.rounds, lambda rng: live_partitions(room, topics, rng, kill_daemon)),
            (
                "4 partitions, live, broker killed",
                arguments.broker_rounds,
                lambda rng: live_partitions(room, topics, rng, broker_killer(broker)),
            ),
        ]
        for kind in arguments.only or range(len(kinds)):
            title, rounds, play = kinds[kind]
            found = []
            for number in range(rounds):
                found.append(play(random.Random(f"{arguments.seed} {title} {number}")))
                print(f"{title}: round {number + 1} of {rounds}: {found[-1]}", flush=True)
            wrong = sum(not each.right for each in found)
            rows.append(
                [
                    title,
                    str(rounds),
                    str(sum(each.kills for each in found)),
                    str(sum(each.in_vain for each in found)),
                    str(wrong),
                    "met" if not wrong else "MISSED",
                ]
            )
        topics.close()
    print()
    print(table(["what", "rounds", "kills", "of them in vain", "wrong", "verdict"], rows))


if __name__ == "__main__":
    main()
