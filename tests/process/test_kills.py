"""kill -9 at every step of a checkpoint and at any instant: in the end each event counts once."""

import json
import os
import random
import signal
import time

import pytest

from streammoe.errors import SourceError
from tests.process.points import CHECKPOINT
from tests.process.workspace import Workspace, append, wait_until

EVENTS, MANY = 8_000, 60_000
BAD_ONE_IN = 500
KILLS = int(os.environ.get("STREAMMOE_KILLS", "60"))
"""For `make test-exhaustive`, which plays so many."""
ANY = "any instant"
MODEL = 'n_experts = { kind = "auto", max = 2 }, warmup = 400'
EXTRA = """
    checkpoint.every_events = 400
    predictions = { kind = "file", path = "rows.jsonl", gate = true }
"""
CHANGING = {"events_per_second", "checkpoint", "rmse", "log_loss", "baseline_rmse"}


def events(n):
    rng = random.Random(5)
    for i in range(n):
        a, b, c = (rng.gauss(0, 1) for _ in range(3))
        y = "inf" if i % BAD_ONE_IN == 7 else f"{(2 * a if a > 0 else b - c) + rng.gauss(0, 0.1):.4f}"
        yield f"{a:.4f},{b:.4f},{c:.4f},{y}\n".encode()


def kill(here, point, times, chance):
    """Start a daemon and kill it there; whether that came before its end."""
    command = here.run("--log-level", "debug", at=None if point == ANY else (point, times, "KILL"))
    if point == ANY:
        if chance.random() < 0.8:
            wait_until(lambda: "checkpoint" in command.err or command.code is not None)
        time.sleep(chance.random() * 0.4)  # any instant must do
        command.kill()
    wait_until(lambda: command.code is not None)
    assert command.code in {0, -signal.SIGKILL}, command.err
    return command.code != 0


def outcome(here):
    """What a run to the end leaves: its digest and counts, dead letters by location, and predictions as they are."""
    summary = here.run_here()
    letters = set()
    for line in (here / "letters.jsonl").read_bytes().splitlines():
        try:
            letters.add(json.loads(line)["place"]["offset"])
        except ValueError:
            continue  # torn by a kill
    same = {name: value for name, value in summary.items() if name not in CHANGING}
    return {**same, "letters": letters, "rows": (here / "rows.jsonl").read_bytes()}


@pytest.fixture
def make(tmp_path):
    """Makes a workspace in which nothing has run yet."""
    made = []

    def make(name, n):
        made.append(Workspace(tmp_path / name))
        made[-1].write("all.csv", events(n), b"a,b,c,y\n")
        made[-1].config("all.csv", EXTRA, model=MODEL)
        return made[-1]

    yield make
    for workspace in made:
        workspace.close()


def undisturbed(make, n):
    """The outcome that each of the others must come to."""
    found = outcome(make("undisturbed", n))
    assert found["rows"].count(b"\n") == found["learned"] > 0
    assert len(found["letters"]) == found["rejected"] > 0
    assert found["learned"] + found["rejected"] == n
    return found


def test_killed_at_every_step_of_a_checkpoint_nothing_is_lost_or_doubled(make):
    expected, here = undisturbed(make, EVENTS), make("killed", EVENTS)
    for point in [*CHECKPOINT, ANY]:
        assert kill(here, point, 2, random.Random(point)) or point == ANY
    assert outcome(here) == expected


def test_what_is_appended_between_runs_and_killed_ones_counts_once(make):
    expected, here = undisturbed(make, EVENTS), make("appended", EVENTS)
    path, lines = here / "all.csv", list(events(EVENTS))
    whole = path.read_bytes()
    path.write_bytes(whole.removesuffix(b"".join(lines[2_000:])).removesuffix(b"\n"))
    assert here.run_here()["events"] == 2_000
    for start, point in ((2_000, "half written"), (4_000, "renamed"), (6_000, "committing")):
        # The last line of each time has its end only with those of the next one.
        append(path, b"\n" + b"".join(lines[start : start + 2_000]).removesuffix(b"\n"))
        assert kill(here, point, 2, random.Random(point))
        if start < 4_000:
            assert here.run_here()["events"] == start + 2_000
    append(path, b"\n")
    assert outcome(here) == expected
    append(path, b"1,2,")
    assert here.run_here()["events"] == EVENTS + 1
    append(path, b"3,4\n")
    before = here.checkpoints()
    with pytest.raises(SourceError, match=rf"all.csv grew by 4 bytes .* at byte {len(whole) + 4} "):
        here.run_here()
    assert here.checkpoints() == before


@pytest.mark.exhaustive
def test_killed_at_each_step_and_at_any_instant(make):
    chance, hit, expected = random.Random(1), [], undisturbed(make, MANY)
    points = [(point, chance.randint(1, 8)) for i in range(KILLS // 2) for point in (CHECKPOINT[i % 13], ANY)]
    for start in range(0, len(points), 15):
        here = make(f"killed-{start}", MANY)
        hit += [point for point, times in points[start : start + 15] if kill(here, point, times, chance)]
        assert outcome(here) == expected
    assert set(hit) == {ANY, *CHECKPOINT}
