"""Does every event of a file count exactly once, however often the daemon is killed?

Each round starts real daemons over the same file, kills them with SIGKILL at random instants of their whole life and at
every step of a checkpoint, lets the last one read to the end, and compares with a run that nobody disturbed: the digest
of the state, all counts, each dead letter, and the predictions byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import machine, table
from tests.process.points import CHECKPOINT

ROOT = Path(__file__).parents[1]
EVENTS = 60_000
BAD_ONE_IN = 500
RANDOM = "any instant"
CONFIG = """
source = { kind = "file", path = "../events.csv", block_bytes = 4096 }
schema.target = "y"
model = { n_experts = 3, warmup = 400, warmup_restarts = 2, batch_size = 24 }
checkpoint = { dir = "state", every_events = 400 }
dead_letters.path = "letters.jsonl"
predictions = { kind = "file", path = "rows.jsonl", gate = true }
metrics.enabled = false
"""
TIMEOUT = 120
LONGEST = 0.4
"""Seconds after the first checkpoint within which a kill at any instant falls; a whole run takes some seconds."""


class Kill(NamedTuple):
    """What is done to one start of the daemon."""

    point: str
    times: int = 1
    seconds: float = 0.0
    """For `RANDOM`: after the start, or after the beginning of learning."""
    while_starting: bool = False


class Round(NamedTuple):
    """What came of one round."""

    kills: list[str]
    """Where the daemon was killed; starts that came to their end before are left out."""
    wrong: list[str]


def write_events(path: Path, events: int = EVENTS) -> None:
    rng = random.Random(5)
    with path.open("w") as stream:
        stream.write("a,b,c,y\n")
        for i in range(events):
            a, b, c = (rng.gauss(0, 1) for _ in range(3))
            y = "nan" if i % BAD_ONE_IN == 7 else f"{(2 * a if a > 0 else b - c) + rng.gauss(0, 0.1):.4f}"
            stream.write(f"{a:.4f},{b:.4f},{c:.4f},{y}\n")


def kills_of(rng: random.Random, points: Iterator[str]) -> Iterator[Kill]:
    """Endless: in turn a step of a checkpoint and any instant, of which some fall into the start."""
    while True:
        yield Kill(next(points), rng.randint(1, 8))
        starting = rng.random() < 0.2
        yield Kill(RANDOM, seconds=rng.uniform(0.0, 2.0 if starting else LONGEST), while_starting=starting)


def start(folder: Path, kill: Kill | None = None) -> subprocess.Popen[str]:
    program = ["-m", "streammoe"]
    if kill is not None and kill.point != RANDOM:
        program = ["-m", "tests.process.points", kill.point, str(kill.times), "KILL"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STREAMMOE_")}
    return subprocess.Popen(
        [sys.executable, *program, "run", "config.toml", "--summary", "json", "--log-level", "debug"],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "connectors")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(folder: Path, kill: Kill) -> bool:
    """Whether the daemon was killed; if not, it has come to its end."""
    daemon = start(folder, kill)
    try:
        if kill.point == RANDOM:
            if not kill.while_starting:
                for line in daemon.stderr or ():
                    if "checkpoint" in line and "DEBUG" in line:
                        break  # it learns
            time.sleep(kill.seconds)
            daemon.kill()
        _, said = daemon.communicate(timeout=TIMEOUT)
    finally:
        daemon.kill()
        daemon.wait()
    if daemon.returncode not in {0, -signal.SIGKILL}:
        raise RuntimeError(f"{kill}: exit {daemon.returncode}\n{said}")
    return daemon.returncode != 0


def outcome(folder: Path) -> dict[str, Any]:
    """What a run to the end leaves: digest and counts, dead letters by place, and predictions as they stand."""
    daemon = start(folder)
    try:
        out, said = daemon.communicate(timeout=TIMEOUT)
    finally:
        daemon.kill()
        daemon.wait()
    if daemon.returncode != 0:
        raise RuntimeError(f"the last run: exit {daemon.returncode}\n{said}")
    summary = json.loads(out)
    changing = {"events_per_second", "checkpoint", "rmse", "log_loss", "baseline_rmse"}
    letters = set()
    for line in (folder / "letters.jsonl").read_bytes().splitlines():
        try:
            letters.add(json.loads(line)["place"]["offset"])
        except ValueError:
            continue  # torn by a kill
    return {
        **{name: value for name, value in summary.items() if name not in changing},
        "letters": letters,
        "rows": (folder / "rows.jsonl").read_bytes(),
    }


def prepare(room: Path, name: str) -> Path:
    """A folder in which nothing has run yet."""
    folder = room / name
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG)
    return folder


def play(folder: Path, kills: list[Kill], undisturbed: dict[str, Any]) -> Round:
    """Kill one daemon after the other, and compare what the last one comes to."""
    done = [kill.point for kill in kills if killed(folder, kill)]
    found = outcome(folder)
    return Round(done, [name for name in undisturbed if found[name] != undisturbed[name]])


def main(argv: list[str] | None = None) -> int:
    """Print a line for each round, and the table; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500, help="at least so many, in all")
    parser.add_argument("--per-round", type=int, default=20, help="starts that are to be killed before one that is not")
    parser.add_argument("--jobs", type=int, default=2, help="rounds at a time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print(machine())
    print(f"seed {arguments.seed}\n", flush=True)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    wrong = rounds = 0
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name, ThreadPoolExecutor(arguments.jobs) as pool:
        room = Path(name)
        write_events(room / "events.csv")
        undisturbed = outcome(prepare(room, "undisturbed"))
        while counts.total() < arguments.kills:
            numbers = range(rounds, rounds + arguments.jobs)
            rounds += arguments.jobs
            for number, found in zip(
                numbers,
                pool.map(lambda n: _round(room, n, arguments.seed, arguments.per_round, undisturbed), numbers),
                strict=True,
            ):
                counts.update(found.kills)
                wrong += bool(found.wrong)
                verdict = f"WRONG: {', '.join(found.wrong)}" if found.wrong else "right"
                print(f"round {number}: {len(found.kills)} kills, {verdict} ({counts.total()} so far)", flush=True)
    print(f"\n{rounds} rounds, {counts.total()} kills, {time.monotonic() - began:.0f} s\n")
    print(table(["killed at", "times"], [[point, counts[point]] for point in [RANDOM, *CHECKPOINT]]))
    print(f"\nrounds that differ from an undisturbed run: {wrong}: {'MISSED' if wrong else 'met'}")
    return int(wrong > 0)


def _round(room: Path, number: int, seed: int, starts: int, undisturbed: dict[str, Any]) -> Round:
    rng = random.Random(f"{seed} {number}")
    first = number * (starts // 2)
    points = (CHECKPOINT[(first + i) % len(CHECKPOINT)] for i in range(starts))
    kills = kills_of(rng, points)
    return play(prepare(room, f"round-{number}"), [next(kills) for _ in range(starts)], undisturbed)


if __name__ == "__main__":
    raise SystemExit(main())
