"""Plays the incidents, and prints the table."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import benchmarks.incidents
from benchmarks.incidents.causes import INCIDENTS, LASTS_SECONDS, MINUTES
from benchmarks.incidents.parts import Lab, Scene
from benchmarks.report import machine, markdown
from tests.kafka_lab.lab import wait_until

FIRES_SECONDS, RESOLVES_SECONDS = 420, 1_200
"""How long an alert, and its end, are waited for."""


def measured(lab: Lab, name: str) -> list[str]:
    """Play an incident; return the row of the table."""
    alert, play = INCIDENTS[name]
    prometheus, playing = lab.prometheus, play(lab)
    scene: Scene = next(playing)

    def say(what: str) -> None:
        print(f"{datetime.now(UTC):%H:%M:%S} {name}: {what}", file=sys.stderr, flush=True)

    try:
        say("started")
        wait_until(lambda: lab.over.is_set() or scene.is_well(), f"{name}: the daemon is well", 10 * MINUTES, every=1.0)
        say("is well")
        if not alert:
            lab.over.wait()
            fired = prometheus.fired.get(name, {})
            return [name, str(scene.rate), "none", "–", said(fired, 0.0, set()), "–"]
        prometheus.fired.pop(name, None)  # at its start, on a busy machine
        caused = time.monotonic()
        lasts = next(playing)

        def fired_after() -> float | None:
            times = prometheus.fired.get(name, {}).get(alert)
            return None if times is None else times[0] - caused

        def sleep_until(at: float, condition: Callable[[], object] = lambda: False) -> None:
            while time.monotonic() < at and not condition() and not lab.over.is_set():
                time.sleep(1.0)

        say("caused")
        sleep_until(caused + (lasts or FIRES_SECONDS), lambda: not lasts and fired_after() is not None)
        if lasts >= LASTS_SECONDS:
            sleep_until(caused + FIRES_SECONDS, lambda: fired_after() is not None)
        say(f"fired {fired_after()}, firing {prometheus.firing(name)}")
        repaired = time.monotonic() if lasts else caused
        next(playing, None)
        say("repaired")
        sleep_until(repaired + RESOLVES_SECONDS, lambda: not prometheus.firing(name))
        resolved = f"{time.monotonic() - repaired:.0f}"
        # Nothing may come again.
        sleep_until(time.monotonic() + 2 * MINUTES)
        stays = set(prometheus.firing(name))
        say(f"resolved after {resolved}; firing {stays}; exit codes {scene.supervisor.codes}")
        others = {other: times for other, times in prometheus.fired.get(name, {}).items() if other != alert}
        after = fired_after()
        cells = ["never" if after is None else f"{after:.0f}", said(others, caused, stays)]
        return [name, str(scene.rate), alert, *cells, "–" if after is None else "never" if alert in stays else resolved]
    finally:
        scene.close()


def said(fired: Mapping[str, list[float]], since: float, stays: set[str]) -> str:
    """Say which alerts were firing, and from when to when."""
    parts = (
        f"{name} ({first - since:.0f} to {last - since:.0f} s{', stays' if name in stays else ''})"
        for name, (first, last) in fired.items()
    )
    return ", ".join(parts) or "none"


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=benchmarks.incidents.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=INCIDENTS, default=list(INCIDENTS), metavar="NAME")
    parser.add_argument("--client", default="kafka-python", help="source.client")
    parser.add_argument("--keep", type=Path, help="a folder for logs and data, which is kept")
    given = parser.parse_args(argv)
    print(machine(), "\n", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streammoe-")))
        folder.mkdir(parents=True, exist_ok=True)
        lab = Lab(folder, given.client, stack)
        pool = stack.enter_context(ThreadPoolExecutor(len(given.only)))
        stack.callback(lab.over.set)  # also if it is interrupted
        playing = {}
        for name in given.only:
            playing[name] = pool.submit(measured, lab, name)
            time.sleep(5.0)  # not all start at once
        rows = []
        for name, row in playing.items():
            if INCIDENTS[name][0]:
                try:
                    rows.append(row.result())
                except Exception as error:  # noqa: BLE001 - the others are worth a table
                    rows.append([name, "", INCIDENTS[name][0], "failed", str(error), ""])
        lab.over.set()
        rows += [row.result() for name, row in playing.items() if not INCIDENTS[name][0]]
    print(markdown(["incident", "events/s", "alert", "fires after s", "others", "resolves after s"], rows))


if __name__ == "__main__":
    main()
