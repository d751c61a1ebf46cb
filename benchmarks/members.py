"""Measure the worth of each member of the portfolio: errors of the defaults without it over those with all of them.

The first events of all streams of `benchmarks.real`; log-losses of classes, RMSE of numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.real import peers, streams
from benchmarks.report import parsed, table
from streammoe.engine import portfolio

KINDS = portfolio.KINDS


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


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    given = parsed(__doc__, argv, events=20_000)
    left_out = [*(kind.name for kind in KINDS), "series", "curved"]
    ratios: dict[tuple[str, bool], list[float]] = {(name, kind): [] for name in left_out for kind in (False, True)}
    for name in streams.names("first"):
        if command := streams.missing(name):
            print(f"{name}: left out; `{command}` installs its data")
            continue
        stream = streams.make(name)
        n = min(len(stream), given.events)
        every = error(stream, n)
        for member in left_out:
            with without(member) as settings:
                ratios[member, stream.classify].append(error(stream, n, **settings) / every)
    rows = []
    for member in left_out:
        cells = []
        for found in (ratios[member, False], ratios[member, True]):
            cells += [f"{np.exp(np.mean(np.log(found))):.3f}", f"{max(found):.3f}"] if found else ["", ""]
        rows.append([member, *cells])
    print(table(["left out", "RMSE, geometric mean", "worst", "log-loss of classes", "worst"], rows))


if __name__ == "__main__":
    main()
