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

MAX_SHARES = 10
"""Maximum number of experts shown separately; matplotlib has that many colors."""


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
    """Plot the windowed score of each learner and, below, the gate's shares over the events."""
    from matplotlib.figure import Figure as NewFigure

    shares = (
        evaluation.shares is not None
        and evaluation.shares.n_columns > 1
        and evaluation.warm_up < evaluation.shares.count
    )
    picture = NewFigure(figsize=(9.0, 6.5 if shares else 4.2), layout="constrained")
    axes = picture.subplots(2 if shares else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if shares else [1])
    _draw_scores(axes[0, 0], evaluation)
    if shares:
        _draw_shares(axes[1, 0], evaluation)
    axes[-1, 0].set_xlabel("events learned")
    axes[-1, 0].xaxis.set_major_formatter("{x:,.0f}")
    return picture


def _draw_scores(axes: Any, evaluation: Evaluation) -> None:
    tops, length = [], 0
    for name, curve in evaluation.curves.items():
        ends, means = curve.windows()
        if not len(ends):
            continue
        length = max(length, int(ends[0]))
        values = evaluation.score(means[:, 0])
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


def _draw_shares(axes: Any, evaluation: Evaluation) -> None:
    assert evaluation.shares is not None  # noqa: S101 - for the type checker; the caller has checked
    ends, means = evaluation.shares.windows(evaluation.warm_up)
    K = evaluation.shares.n_columns
    # Extend the first window back to where the gate begins.
    ends, means = np.append(evaluation.warm_up, ends), np.concatenate([means[:1], means])
    busiest = np.argsort(-means.mean(axis=0), kind="stable")
    shown, others = sorted(busiest[:MAX_SHARES]), busiest[MAX_SHARES:]
    rows = [means[:, k] for k in shown]
    labels = [f"expert {k}" for k in shown]
    if len(others):
        rows.append(means[:, others].sum(axis=1))
        labels.append(f"{K - MAX_SHARES} others")
    axes.stackplot(ends, 100.0 * np.array(rows), labels=labels, alpha=0.85)
    if evaluation.warm_up:
        axes.axvspan(0, evaluation.warm_up, color="0.9", label="one expert predicts")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, float(ends[-1]))
    axes.set_ylabel("share of each expert (%)")
    axes.set_title("Gate")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", frameon=False)


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
        quick = "" if evaluation.model.is_choosing else ", or mixtures that were fitted quickly"
        lines += [f"the warm-up has not ended: a single expert predicted{quick}; see --warmup"]
    lines += [
        f"{name} has vanished: each event had it at first, and then {events:,} in succession came without it"
        for name, events in evaluation.vanished.items()
    ]
    return lines + evaluation.notes()
