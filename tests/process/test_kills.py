"""kill -9 at every step of a checkpoint and at any instant: a short form of benchmarks/file_kills.py."""

import random
from itertools import islice

import pytest

from benchmarks import file_kills
from tests.process.points import CHECKPOINT

pytestmark = [pytest.mark.process, pytest.mark.slow]

KILLS = 30
ROUNDS = 3


def test_killed_at_every_step_of_a_checkpoint_nothing_is_lost_or_doubled(tmp_path):
    file_kills.write_events(tmp_path / "events.csv")
    undisturbed = file_kills.outcome(file_kills.prepare(tmp_path, "undisturbed"))
    assert undisturbed["rows"].count(b"\n") == undisturbed["learned"] > 0
    assert len(undisturbed["letters"]) == undisturbed["rejected"] > 0
    assert undisturbed["learned"] + undisturbed["rejected"] == file_kills.EVENTS
    rng = random.Random(1)
    steps = iter([*CHECKPOINT, *CHECKPOINT])
    kills = list(islice(file_kills.kills_of(rng, steps), KILLS))
    each = KILLS // ROUNDS
    hit = []
    for number in range(ROUNDS):
        folder = file_kills.prepare(tmp_path, str(number))
        found = file_kills.play(folder, kills[number * each : (number + 1) * each], undisturbed)
        assert found.wrong == [], number
        hit += found.kills
    assert set(hit) == {file_kills.RANDOM, *CHECKPOINT}
    assert len(hit) > 0.8 * KILLS, "the daemon came to its end before most of the kills"
