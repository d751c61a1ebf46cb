"""kill -9 at every step of a checkpoint and at any instant: a short form of benchmarks/file_kills.py."""

import random
from itertools import cycle, islice

import pytest

from benchmarks import file_kills
from tests.process.points import CHECKPOINT

pytestmark = [pytest.mark.process, pytest.mark.slow]

FEW = ["sinks synced", "half written", "renamed", "pruning", "told"]
"""Steps of a checkpoint in the short form for every run."""
assert set(FEW) < set(CHECKPOINT)


def check(folder, events, rounds):
    """Play rounds of kills, compare each with an undisturbed run, and return where the daemon was killed."""
    file_kills.write_events(folder / "events.csv", events)
    undisturbed = file_kills.outcome(file_kills.prepare(folder, "undisturbed"))
    assert undisturbed["rows"].count(b"\n") == undisturbed["learned"] > 0
    assert len(undisturbed["letters"]) == undisturbed["rejected"] > 0
    assert undisturbed["learned"] + undisturbed["rejected"] == events
    hit = []
    for number, kills in enumerate(rounds):
        found = file_kills.play(file_kills.prepare(folder, str(number)), kills, undisturbed)
        assert found.wrong == [], number
        hit += found.kills
    return hit


def test_killed_at_every_step_of_a_checkpoint_nothing_is_lost_or_doubled(tmp_path):
    kills = [file_kills.Kill(step, 2) for step in FEW] + [file_kills.Kill(file_kills.RANDOM, seconds=0.1)]
    assert set(check(tmp_path, 20_000, [kills])) >= set(FEW)


@pytest.mark.exhaustive
def test_killed_at_each_step_and_at_any_instant(tmp_path):
    kills = list(islice(file_kills.kills_of(random.Random(1), cycle(CHECKPOINT)), 60))
    hit = check(tmp_path, file_kills.EVENTS, batched(kills, 20))
    assert set(hit) == {file_kills.RANDOM, *CHECKPOINT}
    assert len(hit) > 0.8 * len(kills), "the daemon came to its end before most of the kills"


def batched(kills, size):
    return [kills[start : start + size] for start in range(0, len(kills), size)]
