"""The whole daemon, killed again and again: each event's prediction is seen once, and the model is the same."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

EVENTS = 6_000

pytestmark = [pytest.mark.integration, pytest.mark.process, pytest.mark.slow]


class Daemon:
    """The command line in a folder."""

    def __init__(self, folder, address, topic, written):
        self.folder = folder
        folder.mkdir()
        (folder / "config.toml").write_text(f"""
            schema.target = "y"
            model = {{ n_experts = 2, warmup = 100, warmup_restarts = 1 }}
            metrics.enabled = false
            checkpoint = {{ every_events = 300, keep = 3 }}
            predictions = {{ kind = "kafka", topic = "{written}", transactional = true }}
            [source]
            kind = "kafka"
            topics = "{topic}"
            group = "{written}"
            bootstrap_servers = "{address}"
            until = "end"
            max_poll_records = 50
        """)

    def start(self):
        return subprocess.Popen(
            [sys.executable, "-m", "streammoe", "run", "config.toml", "--summary", "json"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def events(n):
    return [json.dumps({"a": i % 7, "b": i % 11, "y": (i % 7) * (1 if i % 2 else -1)}) for i in range(n)]


def seen(topics, written):
    found = topics.read(written, isolation_level="read_committed")
    places = [json.loads(record.value)["place"] for record in found]
    return sorted((place["partition"], place["offset"]) for place in places)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_prediction_is_seen_once_over_random_kills(broker, topics, tmp_path, seed):
    topic = topics.create(partitions=2)
    for partition in (0, 1):
        topics.fill(topic, events(EVENTS // 2), partition=partition)
    digests = []
    for killed in (False, True):
        written = topics.create(name="predictions", partitions=3)
        daemon = Daemon(tmp_path / written, broker.address, topic, written)
        kills = 0
        chance = random.Random(seed)
        while killed and kills < 6:
            process = daemon.start()
            # From its first checkpoint of this run on, at any moment.
            deadline = time.monotonic() + 60
            state = daemon.folder / "state"
            before = newest(state)
            while newest(state) == before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.15)
            if process.poll() is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        process = daemon.start()
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        digests.append(json.loads(out)["state_digest"])
        assert seen(topics, written) == [(p, i) for p in (0, 1) for i in range(EVENTS // 2)]
        assert not killed or kills >= 3
    assert digests[0] == digests[1]


def newest(state):
    return max((path.name for path in state.glob("*.safetensors")), default="")
