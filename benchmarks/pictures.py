"""Which member is trusted on what kind of stream: the picture of docs/learning.md.

`python -m benchmarks.pictures` prints how much each is trusted at the end, and draws docs/pictures/members.png.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from benchmarks import drift
from benchmarks.report import parsed, table
from streammoe import MoERegressor
from streammoe.engine import portfolio

PALETTE = ("#0072B2", "#D55E00", "#E69F00", "#000000", "#009e73", "#56B4E9", "#999999", "#CC79A7", "#F0E442")
MEMBERS = dict(zip(portfolio.MEMBERS, PALETTE, strict=True))
"""With colors that differ for color-blind eyes too (Okabe and Ito, and a grey)."""
POINTS = 100
COLORS = 64
OUT = Path(__file__).parents[1] / "docs/pictures/members.png"


def _lines(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, what is a line of them, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X @ [1.0, -1.0, 0.5], 0.3 * rng.normal(size=n)


def _regions(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, line, noise = _lines(seed, n)
    return X, np.where(X[:, 0] > 0.0, 3.0 * line, X[:, 2]) + noise


def _moving(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, _, noise = _lines(seed, n)
    slopes = np.cumsum(0.05 * np.random.default_rng(seed).normal(size=X.shape), axis=0)
    return X, (X * slopes).sum(axis=1) + noise


def _jumping(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X, slopes = rng.normal(size=(n, 10)), np.repeat(rng.normal(size=(n // 500 + 1, 10)), 500, axis=0)[:n]
    return X, (X * slopes).sum(axis=1) + 0.3 * rng.normal(size=n)


def _growing(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, line, noise = _lines(seed, n)
    trend = np.arange(n) / 100.0
    return np.column_stack([X, trend]), line + 2.0 * trend + noise


def _unrelated(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, _, noise = _lines(seed, n)
    return X, noise


def _walking(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, _, noise = _lines(seed, n)
    return X, np.cumsum(noise)


def _curved(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    X, _, noise = _lines(seed, n)
    return X, (X**2).sum(axis=1) + noise


def _turning(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    found = drift.gradual(seed, n)
    return found.X, found.y


STREAMS: dict[str, Callable[[int, int], tuple[np.ndarray, np.ndarray]]] = {
    "two regions": _regions,
    "two regions that turn slowly": _turning,
    "a line that moves fast": _moving,
    "a line of ten inputs that jumps": _jumping,
    "a line, of an input that grows": _growing,
    "inputs that say nothing": _unrelated,
    "a random walk": _walking,
    "a bowl": _curved,
}
"""Kinds of streams, in the order of the members that they are for."""


def shares(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the weight of each member after every so many events, (points, members)."""
    model, found = MoERegressor(2), []
    for rows, targets in zip(np.array_split(X, POINTS), np.array_split(y, POINTS), strict=True):
        model.learn_array(rows, targets)
        found.append([model.member_weights.get(name, 0.0) for name in MEMBERS])
    return np.array(found)


def main(argv: list[str] | None = None) -> None:
    """Print the figures, and draw."""
    given = parsed(__doc__, argv, seeds=4, events=3_000)
    figure = Figure(figsize=(9.0, 4.8), layout="constrained")
    figure.suptitle("Who is trusted on what kind of stream", fontsize=11)
    rows = []
    for panel, (title, make) in zip(figure.subplots(2, 4).flat, STREAMS.items(), strict=True):
        means = np.mean([shares(*make(seed, given.events)) for seed in range(given.seeds)], axis=0)
        at = np.linspace(given.events / POINTS, given.events, POINTS)
        panel.stackplot(at, means.T, labels=MEMBERS, colors=MEMBERS.values(), alpha=0.8)
        panel.set_title(title, fontsize=8)
        panel.set(ylim=(0.0, 1.0), xlim=(0, given.events), xticks=(0, given.events // 2, given.events))
        panel.set_xlabel("events", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.label_outer()
        rows.append([title, *(f"{share:.2f}" for share in means[POINTS // 2 :].mean(axis=0))])
    figure.supylabel("weight in the prediction", fontsize=9)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8, columnspacing=1.0)
    print(table(["over the second half", *MEMBERS], rows))
    # With few colors a PNG is a third as large, and it contains no software version.
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(OUT, optimize=True)


if __name__ == "__main__":
    main()
