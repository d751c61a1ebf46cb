"""Pictures of streams whose relation changes, for docs/learning.md.

`python -m benchmarks.pictures --out DIR` draws them and prints the underlying figures; without `--out` it only prints.
It takes minutes (`--only` selects some, `--seeds` sets the number of streams). Equal arguments give equal figures.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from PIL import Image

from benchmarks import drift, tasks
from benchmarks.report import machine, table
from streammoe import MoERegressor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    Make = Callable[[int, int], tasks.Stream]

LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#E69F00", "linestyle": "-.", "marker": "^"},
    {"color": "#000000", "linestyle": ":", "marker": "D"},
    {"color": "#009e73", "linestyle": "-", "marker": "v"},
    {"color": "#56B4E9", "linestyle": "--", "marker": "<"},
    {"color": "#CC79A7", "linestyle": "-.", "marker": ">"},
    {"color": "#F0E442", "linestyle": ":", "marker": "P"},
)
"""Colors that differ for color-blind eyes too (Okabe and Ito), and marks that differ without any color."""
FOLLOWING: dict[str, dict[str, Any]] = {
    "drift off": drift.CHOICES["portfolio"],
    "constant 0.01, averaging none": drift.CHOICES["constant 0.01, none"],
    "default": drift.CHOICES["adaptive, portfolio (default)"],
}
CHANGES: dict[str, Callable[[int, int], drift.Changing]] = {
    "it changes at once": drift.abrupt,
    "it changes slowly": drift.gradual,
}
MEMBERS = ("average", "fitted", "latest", "quick", "recent", "steady", "floor", "curved")
COLORS = 64


class Picture(NamedTuple):
    """A picture and the underlying figures."""

    figure: Figure
    figures: str


def change(seeds: int, events: int) -> Picture:
    """Plot the error around an abrupt change of the experts."""
    figure = Figure(figsize=(8.0, 3.8), layout="constrained")
    panel = figure.subplots()
    title = "After a change another member serves, until the mixture has followed; the detector refits it"
    figure.suptitle(title, fontsize=11)
    window = min(drift.WINDOW, max(events // 40, 1))
    streams = [drift.abrupt(seed, events) for seed in range(seeds)]
    rows = []
    for (name, arguments), style in zip(FOLLOWING.items(), LINES, strict=False):
        runs = [drift.run(stream, **arguments) for stream in streams]
        moving = drift.over_oracle(runs, window)
        panel.plot(np.arange(window, events)[::20], moving[::20], label=name, linewidth=1.5, **_line(style))
        later = (events // 2 + events // at - window - 1 for at in (20, 10, 2))
        rows.append([name, *(f"{moving[min(place, len(moving) - 1)]:.2f}" for place in later)])
    panel.axvline(events // 2, color="0.5", linewidth=1.0, linestyle=":")
    panel.set(xlabel="events (the relation changes at the dotted line)", yscale="log", xlim=(events // 4, events))
    panel.set(ylabel=f"RMSE of the last {window} / oracle", ylim=(0.97, 6.0))
    plain(panel, "y", (1.0, 1.5, 2.0, 3.0, 5.0))
    panel.legend(fontsize=8)
    headers = [f"{events // at:,} after the change" for at in (20, 10, 2)]
    return Picture(figure, table(["RMSE over the oracle's", *headers], rows))


def trust(seeds: int, events: int) -> Picture:
    """Plot who is trusted while a relation changes at once, and while it changes slowly."""
    figure, panels = two_panels("Who is trusted: the mixture while nothing changes, single experts while it is wrong")
    rows = []
    step = max(events // 200, 1)
    for panel, (title, make) in zip(panels, CHANGES.items(), strict=True):
        streams = [make(seed, events) for seed in range(seeds)]
        runs = []
        for stream in streams:
            model, weights = MoERegressor(2), []
            for start in range(0, events, step):
                model.learn_array(stream.X[start : start + step], stream.y[start : start + step])
                weights.append([model.member_weights.get(name, 0.0) for name in MEMBERS])
            runs.append(weights)
        means = np.array(runs).mean(axis=0)
        at = np.minimum(np.arange(1, len(means) + 1) * step, events)
        served = means.sum(axis=1) > 0.0
        panel.stackplot(
            at[served], means[served].T, labels=MEMBERS, colors=[line["color"] for line in LINES], alpha=0.8
        )
        for place in (streams[0].begins, streams[0].ends):
            panel.axvline(place, color="0.2", linewidth=1.0, linestyle=":")
        panel.set(title=title, xlabel="events (the relation changes at or between dotted lines)", xlim=(0, events))
        panel.set(ylim=(0.0, 1.0))
        plain(panel, "x", range(0, events + 1, max(events // 4, 1)))
        for name, place in (
            ("before", streams[0].begins),
            ("after 500 more", streams[0].begins + 500),
            ("at the end", events),
        ):
            shares = means[min(place // step, len(means)) - 1]
            rows.append([title, f"{name}: event {place:,}", *(f"{share:.2f}" for share in shares)])
    panels[0].set_ylabel("weight in the prediction")
    panels[1].legend(fontsize=8, loc="lower right")
    return Picture(figure, table(["relation", "", *MEMBERS], rows))


PICTURES: dict[str, Callable[[int, int], Picture]] = {
    "drift": change,
    "trust": trust,
}


def draw(names: Sequence[str], out: Path | None, *, seeds: int, events: int) -> None:
    """Print the figures of some pictures, and draw them as `out`/NAME.png where there is an `out`.

    Args:
        names: of `PICTURES`.
        out: a folder, created if necessary.
        seeds: number of streams of each kind.
        events: number of events of each stream.
    """
    for name in names:
        begun = time.perf_counter()
        picture = PICTURES[name](seeds, events)
        print(f"{name}: {events:,} events, {seeds} streams\n\n{picture.figures}\n", flush=True)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            save(picture.figure, out / f"{name}.png")


def save(figure: Figure, path: Path) -> None:
    """Convert to a PNG with few colors, which is a third as large and contains no software version."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    Image.open(drawn).convert("RGB").quantize(COLORS).save(path, optimize=True)


# -- Drawing -----------------------------------------------------------------------------------------------------------


def two_panels(title: str) -> tuple[Figure, Sequence[Axes]]:
    """Create two panels side by side with a title."""
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    panels: Sequence[Axes] = figure.subplots(1, 2)
    return figure, panels


def _line(style: dict[str, Any]) -> dict[str, Any]:
    """Return a style without markers, for curves of many points."""
    return {**style, "marker": None}


def plain(panel: Axes, axis: str, ticks: Sequence[float]) -> None:
    """Set plain numbers as ticks of a logarithmic axis, within its range."""
    shown = panel.yaxis if axis == "y" else panel.xaxis
    shown.set_minor_locator(NullLocator())
    shown.set_minor_formatter(NullFormatter())
    limits = panel.get_ylim() if axis == "y" else panel.get_xlim()
    shown.set_ticks([tick for tick in ticks if limits[0] <= tick <= limits[1]])
    shown.set_major_formatter(lambda value, _: f"{value:,g}")
    panel.grid(visible=True, alpha=0.3)


def main(argv: list[str] | None = None) -> None:
    """Print the figures, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to draw NAME.png")
    parser.add_argument("--only", action="append", choices=list(PICTURES), help="may be repeated")
    parser.add_argument("--seeds", type=int, default=4, help="streams of each kind")
    parser.add_argument("--events", type=int, default=20_000, help="of each stream")
    chosen = parser.parse_args(argv)
    print(machine(), "\n")
    draw(chosen.only or list(PICTURES), chosen.out, seeds=chosen.seeds, events=chosen.events)


if __name__ == "__main__":
    main()
