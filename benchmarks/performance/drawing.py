"""Pictures of the figures for docs/performance.md."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.performance import contenders, growth
from benchmarks.pictures import LINES, plain, save, two_panels
from benchmarks.report import Record, Results


def draw(results: Results, out: Path) -> None:
    """Draw what there are results of."""
    out.mkdir(parents=True, exist_ok=True)
    for record in results.records:
        if record["part"] == "events":
            save(_events(record), out / "speed-events.png")
        if record["part"] == "profile":
            save(_lengths(record), out / "speed-lengths.png")
    axes = {record["axis"]: record for record in results.records if record["part"] == "growth"}
    if {"p", "K"} <= axes.keys():
        save(_growth(axes), out / "speed-growth.png")


def _events(record: Record) -> Figure:
    """Draw a point for each learner, the fastest on top."""
    found = sorted(record["found"].items(), key=lambda item: -item[1]["us"])
    figure = Figure(figsize=(9.0, 6.2), layout="constrained")
    figure.suptitle("CPU time to predict and learn one event", fontsize=11)
    panel = figure.subplots()
    names = [name.replace("\\|", "|") for name, _ in found]
    costs = [one["us"] for _, one in found]
    ours = [name.startswith("streammoe") for name in names]
    for is_ours, label, style in ((True, "streammoe", LINES[0]), (False, "others", LINES[1])):
        places = [at for at, own in enumerate(ours) if own is is_ours]
        panel.plot([costs[at] for at in places], places, label=label, **{**style, "linestyle": ""})
    reference = record["found"][contenders.REFERENCE]["us"]
    panel.axvline(reference, color="0.3", linewidth=1.0, linestyle=":")
    for at, cost in enumerate(costs):
        panel.text(1.15 * cost, at, f"{cost:,.3g}" if cost < 1000.0 else f"{cost:,.0f}", va="center", fontsize=8)
    panel.set_yticks(range(len(found)), names, fontsize=8)
    panel.set(xscale="log", xlabel="µs (dotted: River's scaler and linear regression)", xlim=(0.3, 3.0 * max(costs)))
    plain(panel, "x", (1, 10, 100, 1000))
    panel.legend(fontsize=8)
    return figure


def _lengths(record: Record) -> Figure:
    """Plot the cost of an event against the length of calls; one event is a call of the same kernel."""
    us = record["us"]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    figure.suptitle("Cost of learning an event by the length of calls", fontsize=11)
    panel = figure.subplots()
    lengths = [name for name in us if name.isdigit()]
    panel.plot([int(name) for name in lengths], [us[name] for name in lengths], label="learn_array", **LINES[0])
    panel.plot([1], [us["learn_one"]], label="learn_one", **{**LINES[1], "linestyle": ""})
    panel.set(xscale="log", yscale="log", xlabel="events in a call", ylabel="CPU µs per event")
    plain(panel, "x", [int(name) for name in lengths if int(name) in {1, 10, 100, 1_000, 10_000}])
    plain(panel, "y", (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0))
    panel.legend(fontsize=8)
    return figure


def _growth(axes: dict[str, Record]) -> Figure:
    """Plot the cost against the numbers of features and of experts."""
    figure, (left, right) = two_panels("Cost of learning an event from an array")
    labels = {
        "portfolio": "default",
        "polyak": 'serve="polyak"',
        "dsyr": "2K + 1 rank-1 updates by BLAS",
    }
    for panel, axis in ((left, "p"), (right, "K")):
        found = axes[axis]["us"]
        for (name, label), style in zip(labels.items(), LINES, strict=False):
            values = [one[name] for one in found.values() if name in one]
            if values:
                panel.plot([int(value) for value in found], values, label=label, **style)
        panel.set(xscale="log", yscale="log", xlabel=growth.AXES[axis][0])
        plain(panel, "x", [int(value) for value in found])
        plain(panel, "y", (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0))
        panel.legend(fontsize=8)
    left.set_ylabel("CPU µs per event")
    return figure
