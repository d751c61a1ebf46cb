"""How often do intervals hold the target, and how often is the likeliest class right, next to what the model says?

The defaults on all streams of `benchmarks.real`, over all events from the first on: the share of targets in central
intervals, in %, and the expected calibration error of classes (15 bins of the largest probability; Guo et al. 2017).
"""

from __future__ import annotations

import numpy as np

from benchmarks.real import peers, streams
from benchmarks.report import parsed, table
from streammoe.engine.intervals import mixture_intervals

LEVELS = (0.5, 0.8, 0.9, 0.95)
BINS = 15


def coverage(stream: streams.Stream, n: int) -> list[float]:
    """Return the share of targets in intervals of each level, in %."""
    inside = np.zeros(len(LEVELS))
    for piece, outcome, model in peers.outcomes(stream, n, traced=True):
        y = stream.codes[piece]
        for at, level in enumerate(LEVELS):
            low, high = mixture_intervals(*outcome.trace, level, model.noise)[:, 0].T
            inside[at] += ((low <= y) & (y <= high)).sum()
    return (100.0 * inside / n).tolist()


def calibration_error(stream: streams.Stream, n: int) -> float:
    """Return the mean of |share of hits − largest probability| over bins of the latter, in %."""
    probabilities = peers.ours(stream, n).values
    largest, hits = probabilities.max(axis=1), probabilities.argmax(axis=1) == stream.codes[:n]
    of_bin = np.minimum((largest * BINS).astype(int), BINS - 1)
    gaps = np.bincount(of_bin, hits - largest, minlength=BINS)
    return float(100.0 * np.abs(gaps).sum() / n)


def main(argv: list[str] | None = None) -> None:
    """Print a table of numbers, and one of classes."""
    given = parsed(__doc__, argv, events=1_000_000)
    covered, errors = [], []
    for name in streams.names():
        if command := streams.missing(name):
            print(f"{name}: left out; `{command}` installs its data")
            continue
        stream = streams.make(name)
        n = min(len(stream), given.events)
        if stream.classify:
            errors.append([name, f"{calibration_error(stream, n):.1f}"])
        else:
            covered.append([name, *(f"{share:.1f}" for share in coverage(stream, n))])
    print(table(["stream", *(f"{100 * level:g} %" for level in LEVELS)], covered))
    print(f"\n{table(['stream', 'calibration error'], errors)}")


if __name__ == "__main__":
    main()
