"""Measure what each member of the portfolio and each other learner is worth, by errors over those of the defaults.

All streams of `benchmarks.real`, a row each, with every single expert left out in turn, and next to them the learners
of a file that `python -m benchmarks.real --out` has written; log-losses of classes, RMSE of numbers. Members are left
out over the first events; other learners are compared over the whole stream.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.real import peers, streams
from benchmarks.real.table import Entry, entries_of
from benchmarks.report import machine, markdown
from streammoe.engine import portfolio

KINDS = portfolio.KINDS
LEFT_OUT = (*(kind.name for kind in KINDS), "series", "curved")
OTHERS = tuple(name for name in peers.LEARNERS if name != peers.OURS)


@contextmanager
def without(name: str) -> Iterator[dict[str, str]]:
    """Leave a member out of new models that are made with the settings given back."""
    portfolio.KINDS = tuple(kind for kind in KINDS if kind.name != name)
    try:
        yield {"curved": {"curved": "off"}, "series": {"lags": "off"}}.get(name, {})
    finally:
        portfolio.KINDS = KINDS


def error(stream: streams.Stream, n: int, **settings: str) -> float:
    """Return RMSE, or the log-loss of classes."""
    score, log_loss = peers.scores(stream, peers.ours(stream, n, **settings))
    return float(log_loss or np.nan) if stream.classify else score


def ratios_of(name: str, events: int, known: Mapping[str, Entry]) -> tuple[bool, list[float]]:
    """Return whether a stream is of classes, and its ratios: without each member, and of each other learner."""
    stream = streams.make(name)
    n = min(len(stream), events)
    every, found = error(stream, n), []
    for member in LEFT_OUT:
        with without(member) as settings:
            found.append(error(stream, n, **settings) / every)
    entry = known.get(name)
    for other in OTHERS:
        ran = entry is not None and other in entry.complete
        found.append(entry.main(other) / entry.main(peers.OURS) if ran and entry is not None else np.nan)
    return stream.classify, found


def shown(ratio: float) -> str:
    """Format a ratio; nothing where there is none."""
    return (
        ""
        if np.isnan(ratio)
        else f"{ratio:.2f}"
        if ratio < 9.995
        else f"{ratio:.0f}"
        if ratio < 1e4
        else f"{ratio:.0e}"
    )


def main(argv: list[str] | None = None) -> None:
    """Print a table of numbers and one of classes, with geometric means and the worst stream at their ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="first events without members; default: 20,000")
    parser.add_argument("--results", type=Path, help="results file of `python -m benchmarks.real --out`")
    given = parser.parse_args(argv)
    print(machine(), "\n", flush=True)
    results = json.loads(given.results.read_text(encoding="utf-8")) if given.results else {"streams": {}}
    known = entries_of(results, streams.names())
    rows: dict[bool, dict[str, list[float]]] = {False: {}, True: {}}
    with threadpool_limits(1):
        for name in streams.names():
            if command := streams.missing(name):
                print(f"{name}: left out; `{command}` installs its data")
                continue
            classify, found = ratios_of(name, given.events, known)
            rows[classify][name] = found
    for classify, title in ((False, "RMSE of numbers"), (True, "log-loss of classes")):
        each = np.array(list(rows[classify].values()))
        ran = ~np.isnan(each).all(axis=0)
        each = each[:, ran]
        summary = {"geometric mean": np.exp(np.nanmean(np.log(each), axis=0)), "largest": np.nanmax(each, axis=0)}
        lines = [(name, np.array(found)[ran]) for name, found in rows[classify].items()] + list(summary.items())
        heads = np.array([*(f"without `{member}`" for member in LEFT_OUT), *(f"`{other}`" for other in OTHERS)])[ran]
        cells = [[name, *map(shown, found)] for name, found in lines]
        print(f"{title}, over that of the defaults:\n\n{markdown(['stream', *heads], cells)}\n")


if __name__ == "__main__":
    main()
