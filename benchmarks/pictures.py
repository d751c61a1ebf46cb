"""How do warm-up, steps, prior, drift and the number of experts affect the error? Pictures for docs/learning.md.

`python -m benchmarks.pictures --out DIR` draws them and prints the underlying figures; without `--out` it only prints.
It takes minutes (`--only` selects some, `--seeds` sets the number of streams). Equal arguments give equal figures.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from PIL import Image

from benchmarks import drift, tasks
from benchmarks.n_experts import learned, ratio
from benchmarks.report import machine, table
from streammoe import MoEClassifier, MoERegressor, schedules
from streammoe.options import Auto

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
WARMUPS = (0, 50, 100, 200, 400, 1000, 2000)
STRENGTHS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)
STEPS: dict[str, dict[str, Any]] = {
    "n^-0.6, averaged (default)": {"serve": "polyak"},
    "n^-1, raw": {"schedule": schedules.Power(1.0), "averaging": None, "serve": "polyak"},
    "n^-0.6, raw": {"averaging": None, "serve": "polyak"},
    "constant 0.01, raw": {"schedule": schedules.Constant(0.01), "averaging": None, "serve": "polyak"},
}
FOLLOWING: dict[str, dict[str, Any]] = {
    "drift off": drift.CHOICES["portfolio"],
    "constant 0.01, averaging none": drift.CHOICES["constant 0.01, none"],
    "default": drift.CHOICES["adaptive, portfolio (default)"],
}
CHANGES: dict[str, Callable[[int, int], drift.Changing]] = {
    "it changes at once": drift.abrupt,
    "it changes slowly": drift.gradual,
}
MEMBERS = ("average", "latest", "one_expert", "refitted", "steady", "quick", "floor", "curved")
MIXTURES: dict[str, tuple[Make, int]] = {
    "two experts": (tasks.two_experts, 2),
    "four experts, full gate": (tasks.full_gate, 4),
}
MOST_EXPERTS = 6
COLORS = 64
SHOWN = (0, 7, 13)
"""Places on the curves of steps whose figures are printed."""


class Picture(NamedTuple):
    """A picture and the underlying figures."""

    figure: Figure
    figures: str


def startup(seeds: int, events: int) -> Picture:
    """Plot two experts over time with and without a warm-up, and four experts by its size."""
    streams = [tasks.two_experts(events, seed) for seed in range(seeds)]
    window = max(events // 80, 1)
    figure, (left, right) = two_panels(
        "Wait for a batch start: without one the error stays high for thousands of events"
    )
    runs = {
        "warm-up (default, 420 events)": [_predicted(stream, 2) for stream in streams],
        "warmup=0": [_predicted(stream, 2, warmup=0) for stream in streams],
    }
    truth = np.array([stream.truth for stream in streams])
    for (name, predictions), style in zip(runs.items(), LINES, strict=False):
        sums = np.cumsum(((np.array(predictions) - truth) ** 2).mean(axis=0))
        moving = np.sqrt((sums[window:] - sums[:-window]) / window)
        left.plot(np.arange(window, events)[::20], moving[::20], label=name, linewidth=1.5, **_line(style))
    left.set(title="two experts", xlabel="events", xscale="log", yscale="log")
    left.set_ylabel(f"RMSE to the truth, last {window} predictions")
    plain(left, "y", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0))
    plain(left, "x", (500, 1000, 2000, 5000, 10_000, 20_000))
    left.legend(fontsize=8)
    rows = []
    for (title, (make, n_experts)), style in zip(MIXTURES.items(), LINES, strict=False):
        found = []
        for warmup in WARMUPS:
            errors = [_error(stream, n_experts, warmup=warmup) for stream in _streams(make, seeds, events)]
            found.append(float(np.sqrt(np.mean(np.square(errors)))))
            rows.append([title, warmup, f"{found[-1]:.4f}", f"{max(errors):.4f}"])
        right.plot(range(len(WARMUPS)), found, label=title, **style)
    right.set(title="by size of the buffer", xlabel="warmup, events", yscale="log")
    right.set_ylabel("RMSE to the truth, last fifth")
    right.set_xticks(range(len(WARMUPS)), [f"{warmup:,}" for warmup in WARMUPS])
    plain(right, "y", (0.02, 0.05, 0.1, 0.2, 0.5))
    right.legend(fontsize=8)
    return Picture(figure, table(["stream", "warmup", "RMSE to the truth, last fifth", "worst stream"], rows))


def steps(seeds: int, events: int) -> Picture:
    """Plot the error against the true function over events, for several step sizes."""
    figure, panels = two_panels("Longer steps, averaged, come nearest to the truth; constant ones stop getting nearer")
    rows = []
    ends = np.geomspace(events / 20, events, 14).round().astype(int)
    for panel, (title, (make, n_experts)) in zip(panels, MIXTURES.items(), strict=True):
        streams = _streams(make, seeds, events)
        truth = np.array([stream.truth for stream in streams])
        for (name, arguments), style in zip(STEPS.items(), LINES, strict=False):
            squares = (np.array([_predicted(stream, n_experts, **arguments) for stream in streams]) - truth) ** 2
            found = [float(np.sqrt(squares[:, int(0.8 * end) : end].mean())) for end in ends]
            panel.plot(ends, found, label=name, markersize=4, **style)
            rows.append([title, name, *(f"{found[at]:.3f}" for at in SHOWN)])
        panel.set(title=title, xlabel="events", xscale="log", yscale="log")
        plain(panel, "y", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0))
        plain(panel, "x", (1000, 2000, 5000, 10_000, 20_000))
    panels[0].set_ylabel("RMSE to the truth, last fifth so far")
    panels[1].legend(fontsize=8)
    shown = [f"{ends[at]:,} events" for at in SHOWN]
    return Picture(figure, table(["stream", "steps", *shown], rows))


def prior(seeds: int, events: int) -> Picture:
    """Plot the final excess over the oracle by the strength of the prior."""
    figure, (left, right) = two_panels("A weak prior costs nothing; one event and more bias permanently")
    regression = [
        [
            100.0 * (_ratio(stream, 4, prior_strength=strength) - 1.0)
            for stream in _streams(tasks.full_gate, seeds, events)
        ]
        for strength in STRENGTHS
    ]
    several = [tasks.classes(3, events, seed) for seed in range(seeds)]
    classes = [[_excess(stream, prior_strength=strength) for stream in several] for strength in STRENGTHS]
    at = np.arange(len(STRENGTHS))
    for panel, found, default in ((left, regression, 0.1), (right, classes, 0.04)):
        values = np.array(found)
        panel.plot(at, values.mean(axis=1), label=f"mean of {seeds} streams", **LINES[0])
        panel.plot(at, values.max(axis=1), label="worst stream", **LINES[1])
        panel.set(xlabel="prior_strength, events", yscale="log")
        # One position for each power of ten, and 0 in front of them.
        panel.set_xticks(at, [f"{strength:g}" for strength in STRENGTHS])
        panel.axvline(np.log10(default) + 4.0, color="0.5", linewidth=1.0, linestyle=":", label=f"default, {default}")
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    left.set(title="regression, four experts", ylabel="RMSE above the oracle's, %")
    right.set(title="three classes, two experts", ylabel="log-loss above the oracle's, nats")
    plain(left, "y", (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0))
    plain(right, "y", (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2))
    rows = [
        [f"{strength:g}", f"{np.mean(a):.2f}", f"{max(a):.2f}", f"{np.mean(b):.4f}", f"{max(b):.4f}"]
        for strength, a, b in zip(STRENGTHS, regression, classes, strict=True)
    ]
    return Picture(figure, table(["prior_strength", "RMSE above, %", "worst", "log-loss above, nats", "worst"], rows))


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


def choice(seeds: int, events: int) -> Picture:
    """Plot the prequential loss by the number of experts, and which number "auto" selected."""
    figure, panels = two_panels('Too few experts cost much, too many little, and "auto" finds the number')
    rows = []
    numbers = range(1, MOST_EXPERTS + 1)
    for panel, (title, (make, right)) in zip(panels, MIXTURES.items(), strict=True):
        streams = _streams(make, seeds, events)
        losses = np.array([[_loss(MoERegressor(K), stream) for K in numbers] for stream in streams])
        chosen = [MoERegressor(Auto(MOST_EXPERTS)) for _ in streams]
        auto = [_loss(model, stream) for model, stream in zip(chosen, streams, strict=True)]
        taken = Counter(str(model.chosen_n_experts) for model in chosen)
        told = ", ".join(f"{number} in {times} of {seeds}" for number, times in sorted(taken.items()))
        means = losses.mean(axis=0)
        panel.plot(numbers, means, label="n_experts as given", **LINES[0])
        panel.axhline(float(np.mean(auto)), label=f'"auto" (selected {told})', **_line(LINES[1]))
        panel.set(title=f"{title} made the stream", xlabel="n_experts", xticks=list(numbers))
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
        rows += [
            [title, K, f"{mean:.4f}", f"{mean - means[right - 1]:+.4f}"] for K, mean in zip(numbers, means, strict=True)
        ]
        rows.append([title, f"auto: {told}", f"{np.mean(auto):.4f}", f"{np.mean(auto) - means[right - 1]:+.4f}"])
    panels[0].set_ylabel("log-loss before learning,\nlast quarter, nats an event")
    return Picture(figure, table(["stream", "n_experts", "log-loss", "above the right number's"], rows))


def trust(seeds: int, events: int) -> Picture:
    """Plot who is trusted while a relation changes at once, and while it changes slowly."""
    figure, panels = two_panels("Who is trusted: the average while nothing changes, the others while it is wrong")
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
    panels[0].legend(fontsize=8, loc="lower left")
    return Picture(figure, table(["relation", "", *MEMBERS], rows))


PICTURES: dict[str, Callable[[int, int], Picture]] = {
    "startup": startup,
    "steps": steps,
    "prior": prior,
    "drift": change,
    "choice": choice,
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


# -- One run -----------------------------------------------------------------------------------------------------------


def _streams(make: Make, seeds: int, events: int) -> list[tasks.Stream]:
    return [make(events, seed) for seed in range(seeds)]


def _predicted(stream: tasks.Stream, n_experts: int, **arguments: Any) -> np.ndarray:
    """Return (n,) predictions, each made before its event was learned."""
    return learned(MoERegressor(n_experts, **arguments), stream.X, stream.y)[0]


def _error(stream: tasks.Stream, n_experts: int, **arguments: Any) -> float:
    """Return the RMSE against the true function over the last fifth."""
    last = slice(4 * len(stream.y) // 5, None)
    return tasks.rmse(stream.truth[last], _predicted(stream, n_experts, **arguments)[last])


def _ratio(stream: tasks.Stream, n_experts: int, **arguments: Any) -> float:
    return ratio(stream, _predicted(stream, n_experts, **arguments))


def _loss(model: MoERegressor, stream: tasks.Stream) -> float:
    """Return the mean log-loss over the last quarter."""
    return float(learned(model, stream.X, stream.y)[1][-(len(stream.y) // 4) :].mean())


def _excess(stream: tasks.Stream, **arguments: Any) -> float:
    """Return the log-loss of two experts above that of the true probabilities, over the last quarter."""
    losses = MoEClassifier(2, **arguments).learn_array(stream.X, stream.y)
    best = -np.log(stream.truth[np.arange(len(stream.y)), stream.y])
    return float((losses - best)[-(len(stream.y) // 4) :].mean())


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
