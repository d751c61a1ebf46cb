"""Another number of daemons for the same topic, while events go on to arrive."""

import json

import numpy as np

from streammoe.persistence import CheckpointStore, read_checkpoint
from streammoe.scaleout import watcher
from streammoe.scaleout.watcher import Watcher
from tests.kafka_lab.lab import Daemon, Producer, wait_until
from tests.unit.scaleout.shards import Largest

PARTITIONS = 4
MOST = 60_000
"""Events that there are to send, far more than are sent until the last daemon begins."""


def lines(n):
    rng = np.random.default_rng(0)
    for i, (a, b) in enumerate(rng.normal(size=(n, 2)).tolist()):
        yield json.dumps({"i": i, "a": a, "b": b, "y": 2 * a - b}).encode()


class Shards:
    """Daemons of one group."""

    def __init__(self, folder, address, topic, count, start):
        common = {
            "source.group": topic,
            "source.start": start,
            "source.discover_seconds": 1.0,
            "schema.ignore": ["i"],
            "model.warmup": 20,
            "model.n_experts": 1,
            "model.reservoir": 50,
            "checkpoint.every_seconds": 0.2,
            # What each shard has learned can be read in its predictions, which are written once each.
            "predictions.kind": "file",
        }
        self.daemons = []
        for i in range(count):
            own = folder / f"{i}-of-{count}"
            own_settings = {"source.shard": f"{i}/{count}", "predictions.path": str(own / "rows.jsonl")}
            self.daemons.append(Daemon(own, address, topic, common | own_settings))

    @property
    def folders(self):
        return [daemon.state for daemon in self.daemons]

    def have_learned(self):
        return all(daemon.events > 30 for daemon in self.daemons)

    def start(self):
        self.processes = [daemon.start() for daemon in self.daemons]

    def stop(self):
        for process in self.processes:
            process.terminate()
        for daemon, process in zip(self.daemons, self.processes, strict=True):
            daemon.end(process)

    def finish(self):
        for daemon in self.daemons:
            daemon.finish()

    def places(self):
        """Where each event was that they have learned."""
        paths = [daemon.folder / "rows.jsonl" for daemon in self.daemons]
        rows = [json.loads(line) for path in paths if path.exists() for line in path.read_text().splitlines()]
        return [(row["place"]["partition"], row["place"]["offset"]) for row in rows]


def test_each_event_is_learned_by_one_daemon_whatever_their_number_is(topics, tmp_path, monkeypatch):
    topic, path = topics.create(partitions=PARTITIONS), tmp_path / "lines"
    path.write_bytes(b"\n".join(lines(MOST)))
    starts = {2: "earliest", 3: "committed", 1: "committed"}
    divisions = [Shards(tmp_path, topics.address, topic, count, start) for count, start in starts.items()]
    two, three, one = divisions
    two.start()
    producer = Producer(topics.address, topic, path, PARTITIONS, rate=300)
    try:
        wait_until(two.have_learned, "two have learned")
        two.stop()
        three.start()
        wait_until(three.have_learned, "three have learned")
        three.stop()
        one.start()
        wait_until(one.have_learned, "one has learned")
        one.stop()
        sent = producer.stop()
    finally:
        producer.kill()
    one.finish()
    each = [place for division in divisions for place in division.places()]
    assert len(each) == len(set(each)) == sent
    checkpoints = [read_checkpoint(folder) for division in divisions for folder in division.folders]
    assert sum(checkpoint.metadata["counters"]["outcomes"]["learned"] for checkpoint in checkpoints) == sent
    assert sum(checkpoint.metadata["n"] for checkpoint in checkpoints) == sent
    (held,) = checkpoints[-1].metadata["positions"][0]["topics"].values()
    assert held["partitions"] == {str(number): len(range(number, sent, PARTITIONS)) for number in range(PARTITIONS)}
    # All of them together are one model, in which each event counts once.
    names = {f"{i}": folder for i, folder in enumerate(f for division in divisions for f in division.folders)}
    (tmp_path / "global").mkdir()
    monkeypatch.setattr(watcher, "reduce_with_details", Largest())
    merged = Watcher(names, CheckpointStore(tmp_path / "global")).round()
    assert (merged.problems, merged.error) == ({}, None)
    assert merged.newest.n == sent
