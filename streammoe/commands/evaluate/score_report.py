"""Reports of a prequential run: a table, JSON."""

from __future__ import annotations

import json
import math
from importlib.metadata import version

from streammoe.commands.evaluate.output_files import finite_or_none, format_number
from streammoe.commands.evaluate.prequential import Evaluation
from streammoe.text import share_learned


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
    """Format everything as one JSON object; ``null`` means unknown or not finite."""
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
        lines += ["the warm-up has not ended: single experts predicted; see model.warmup"]
    lines += [
        f"{name} has vanished: each event had it at first, and then {events:,} in succession came without it"
        for name, events in evaluation.vanished.items()
    ]
    return lines + evaluation.notes()
