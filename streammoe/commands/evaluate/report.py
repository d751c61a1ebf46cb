"""Reports of a prequential run: a table, JSON, a plot."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from streammoe.commands.evaluate.outputs import finite_or_none, format_number
from streammoe.commands.evaluate.run import Evaluation
from streammoe.text import share_learned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WINDOWS = 60
"""Maximum number of windows in a plot."""


def table(evaluation: Evaluation) -> str:
    """Format the scores of all learners, and the rejected records, as a table."""
    better = "" if evaluation.classify else "  (lower is better)"
    lines = [*_heading(evaluation), ""]
    width = max(len(row.name) for row in evaluation.rows) + 2
    titles = (evaluation.metric, "last quarter", "log-loss", "events/s")
    lines += [f"{'':{width}}{titles[0]:>10}{titles[1]:>14}{titles[2]:>11}{titles[3]:>12}{better}"]
    for row in evaluation.rows:
        if row.failure is not None:
            lines += [f"{row.name:{width}}{'-':>10}{'-':>14}{'-':>11}{'-':>12}  failed: {row.failure}"]
            continue
        log_loss = "" if row.log_loss is None else format_number(row.log_loss)
        speed = "-" if math.isnan(row.events_per_second) else f"{row.events_per_second:,.0f}"
        score, last_quarter = format_number(row.score), format_number(row.last_quarter)
        lines += [f"{row.name:{width}}{score:>10}{last_quarter:>14}{log_loss:>11}{speed:>12}"]
    lines += ["", *_notes(evaluation)]
    return "\n".join(lines)


def to_json(evaluation: Evaluation) -> str:
    """Format everything except the curves as one JSON object; ``null`` means unknown or not finite."""
    return json.dumps(
        {
            "source": evaluation.source,
            "metric": evaluation.metric.lower(),
            **evaluation.counts(),
            "rows": [
                {name: finite_or_none(value) for name, value in row._asdict().items()}
                for row in evaluation.rows
            ],
            "n_experts": evaluation.model.chosen_n_experts,
            "refused": evaluation.rejected(),
            "vanished": evaluation.vanished,
            "stopped": evaluation.stopped,
            "state_digest": evaluation.model.state_digest(),
            "settings": evaluation.settings,
            "version": version("streammoe"),
        },
        allow_nan=False,
    )  # fmt: skip


def figure(evaluation: Evaluation) -> Figure:
    """Plot the score of each learner, in windows of equally many events."""
    from matplotlib.figure import Figure as NewFigure

    picture = NewFigure(figsize=(9.0, 4.2), layout="constrained")
    axes = picture.subplots()
    _draw_scores(axes, evaluation)
    axes.set_xlabel("events learned")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return picture


def _draw_scores(axes: Any, evaluation: Evaluation) -> None:
    tops, length = [], 0
    for name, curve in evaluation.curves.items():
        if not len(curve):
            continue
        edges = np.linspace(0, len(curve), min(len(curve), MAX_WINDOWS) + 1).astype(np.int64)
        ends, length = edges[1:], max(length, int(edges[1]))
        values = evaluation.score(np.add.reduceat(curve, edges[:-1]) / np.diff(edges))
        ours = name == "streammoe"
        style = {"lw": 2.2, "zorder": 3} if ours else {"lw": 1.3, "ls": "-" if name.startswith("river ") else ":"}
        axes.plot(ends, values, label=name, **style)
        tops.append(float(np.nanmax(values[len(values) // 10 :])) if np.isfinite(values).any() else 0.0)
    unit = "share of events" if evaluation.classify else f"in units of {evaluation.target}"
    axes.set_ylabel(f"{evaluation.metric} ({unit})")
    axes.set_title(f"{Path(evaluation.source).name}: {evaluation.metric} of predictions of {evaluation.target}, "
                   f"windows of {length:,} event{'s' if length > 1 else ''}")  # fmt: skip
    if evaluation.classify:
        axes.set_ylim(bottom=0.0, top=1.02)
    elif tops:
        # The first windows of a learner that starts badly would dwarf all others.
        axes.set_ylim(bottom=0.0, top=1.15 * max(tops) or None)
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize="small")


def _heading(evaluation: Evaluation) -> list[str]:
    learned, rejected = evaluation.outcomes["learned"], evaluation.outcomes["rejected"]
    what = f"{learned:,} events, each predicted before it is learned"
    if rejected:
        events = evaluation.outcomes.total() - evaluation.outcomes["skipped"]
        what = f"{share_learned(learned, rejected, events)}. Each is predicted before it is learned"
    lines = [f"{evaluation.source}: {what}"]
    if evaluation.stopped:
        lines += ["stopped before the end; results so far"]
    return lines


def _notes(evaluation: Evaluation) -> list[str]:
    lines = ["events/s: ours include parsing the records, the others start from dicts"]
    if evaluation.model.is_warming_up:
        quick = "" if evaluation.model.options.is_choosing else ", or mixtures that were fitted quickly"
        lines += [f"the warm-up has not ended: a single expert predicted{quick}; see model.warmup"]
    lines += [
        f"{name} has vanished: each event had it at first, and then {events:,} in succession came without it"
        for name, events in evaluation.vanished.items()
    ]
    return lines + evaluation.notes()
