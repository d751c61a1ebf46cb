"""How often do intervals hold the target, and how often is the likeliest class right, next to what the model says?

The defaults on all streams of `benchmarks.real`, and on simulated ones: the share of targets in central intervals, in
%, over all events; that of 90 % over the last three quarters, with and without `calibrate`; the mean width of these and
their interval score (Gneiting and Raftery 2007, eq. 43), over those without; and the continuous ranked probability
score. Of classes the expected calibration error (15 bins of the largest probability; Guo et al. 2017).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.real import peers, streams
from benchmarks.report import parsed, table
from streammoe.distributions.mixtures import LEVELS
from streammoe.engine.intervals import crps, level_intervals

BINS = 15
AT = LEVELS.index(0.9)
EVENTS = 20_000
"""Events of a simulated stream."""


class Scores(NamedTuple):
    """Scores of a stream."""

    covered: np.ndarray
    """(n, L) whether the target was in the interval of each level."""
    width: float
    interval_score: float
    crps: float


def simulated() -> dict[str, streams.Stream]:
    """Return streams whose noise is not what the model supposes, or does not stay as it is."""
    rng = np.random.default_rng(streams.SEED)
    n = EVENTS
    X, noise, t = rng.normal(size=(n, 2)), rng.normal(size=n), np.arange(n) / n
    line = X @ [1.0, -1.0]
    targets = {
        "noise_of_inputs": line + np.exp(X[:, 0]) * noise,
        "noise_that_grows": line + 100.0**t * noise,
        "noise_that_jumps": line + np.where(t * 8 % 2 < 1, 1.0, 10.0) * noise,
        "noise_of_two_sides": line + rng.exponential(size=n) * np.where(rng.random(n) < 0.8, 1.0, -5.0),
        "turning_line": np.cos(20.0 * t) * line + 0.1 * noise,
        "heavy_tails": line + rng.standard_t(2.0, size=n),
    }
    frame = pd.DataFrame(X, columns=["x0", "x1"])
    return {name: streams.Stream(name, frame.assign(y=y), classify=False) for name, y in targets.items()}


def scores(stream: streams.Stream, n: int, *, calibrate: bool) -> Scores:
    """Return how well a stream's intervals and distributions were."""
    covered, widths, misses, ranked = [], [], [], []
    for piece, outcome, model in peers.outcomes(stream, n, traced=True, calibrate=calibrate):
        y = stream.codes[piece]
        low, high = np.moveaxis(level_intervals(outcome.trace, model.noise)[:, 0], -1, 0)
        covered.append((low <= y[:, None]) & (y[:, None] <= high))
        widths.append((high - low)[:, AT])
        misses.append(np.maximum(low[:, AT] - y, 0.0) + np.maximum(y - high[:, AT], 0.0))
        ranked.append(crps(outcome.trace, y[:, None], model.noise)[:, 0])
    width = np.nanmean(np.concatenate(widths))
    missed = np.nanmean(np.concatenate(misses)) * 2.0 / (1.0 - LEVELS[AT])
    return Scores(np.concatenate(covered), width, width + missed, float(np.nanmean(np.concatenate(ranked))))


def row(stream: streams.Stream, n: int) -> list[str]:
    """Return the row of a stream in the table of numbers."""
    ours, plain = (scores(stream, n, calibrate=each) for each in (True, False))
    shares = [*ours.covered.mean(axis=0), *(each.covered[n // 4 :, AT].mean() for each in (ours, plain))]
    ratios = [ours.width / plain.width, ours.interval_score / plain.interval_score]
    return [
        stream.name,
        *(f"{100.0 * each:.1f}" for each in shares),
        *(f"{each:.3f}" for each in ratios),
        f"{ours.crps:.4g}",
    ]


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
            covered.append(row(stream, n))
    covered += [row(stream, min(len(stream), given.events)) for stream in simulated().values()]
    heading = ["stream", *(f"{level:.0%}" for level in LEVELS), "90% later", "90% without", "width", "score", "CRPS"]
    print(table(heading, covered))
    print(f"\n{table(['stream', 'calibration error'], errors)}")


if __name__ == "__main__":
    main()
