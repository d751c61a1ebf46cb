"""Rounds of broken records until the time is up; a round that fails is shrunk and written to a file."""

import argparse
import logging
import math
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.rounds import breaks, kept, planned, play, play_tables, shrunk, written


def fuzz(seed, folder, *, seconds=math.inf, rounds=math.inf):
    """Play so many rounds, or for so long; returns how many records were read, and what went wrong."""
    started = told = time.monotonic()
    records, number, stopped, outcomes, reasons, failures = 0, 0, 0, Counter(), Counter(), []
    while number < rounds and time.monotonic() - started < seconds:
        plan = planned(seed, number)
        lines = [] if plan.way == "tables" else written(plan, seed, number)
        try:
            found = play_tables(plan, seed, number) if plan.way == "tables" else play(plan, lines)
        except Exception as error:  # noqa: BLE001 - whatever it is, it should not have come
            why = f"round {number} of seed {seed}: {type(error).__name__}: {error}"
            failures.append(f"{why}; {plan}")
            if lines:
                lines = shrunk(plan, lines)
                file = folder / f"fuzz-{seed}-{number}.json"
                file.write_text(kept(plan, lines, breaks(plan, lines) or why), encoding="utf-8")
                failures[-1] += f"; kept in {file}"
            print(failures[-1][:2000], flush=True)
        else:
            records += found.records
            outcomes.update(found.outcomes)
            reasons.update(found.reasons)
            stopped += found.stopped
        number += 1
        if time.monotonic() - told > 30.0:
            told = time.monotonic()
            print(f"{records:>12,} records in {number} rounds, {told - started:.0f} s", flush=True)
    rate = records / (time.monotonic() - started)
    print(f"{records:,} records in {number} rounds, {rate:,.0f}/s; {stopped} stopped at a broken header")
    for name, counts in (("became", outcomes), ("refused", reasons)):
        print(f"{name}: " + ", ".join(f"{word} {count:,}" for word, count in counts.most_common()))
    return records, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", type=Path, default=Path(), help="folder for rounds that fail")
    arguments = parser.parse_args()
    print(f"--seed {arguments.seed}", flush=True)
    logging.disable(logging.WARNING)  # models and pipelines have much to say of such input
    _, failures = fuzz(arguments.seed, arguments.keep, seconds=arguments.seconds)
    print(f"{len(failures)} rounds failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
