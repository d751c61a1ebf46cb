"""Reports of a batch fit: a table, JSON."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from streammoe.batch import Fit
from streammoe.commands.evaluate.output_files import finite_or_none, format_number
from streammoe.commands.fit.one_source import FileFit


def table(result: FileFit, out: Path | None) -> str:
    """Format the progress and the scores of a fit, and the rejected records, as a table; `out` is the model file."""
    fit = result.fit
    score = ("accuracy", fit.accuracy) if fit.rmse is None else ("RMSE", fit.rmse)
    rounds = f"{fit.rounds:,} round{'' if fit.rounds == 1 else 's'}"
    shares = "  ".join(f"{share:.3f}" for share in fit.model.masses)
    options = fit.model.options
    chosen = f"selected from 1 to {options.most_experts}" if options.is_choosing and fit.start == "warmup" else ""
    gained = f"penalized log-likelihood per row; {format_number(fit.trace[0].objective)} at the start"
    lines = [
        ("log-loss", format_number(fit.log_loss), "nats, mean over the fitted rows"),
        (score[0], format_number(score[1] or 0.0), "over the fitted rows"),
        ("objective", format_number(fit.objective), gained),
        ("gradient", format_number(fit.trace[-1].gradient), "norm, at the last round"),
        ("experts", str(len(fit.model.masses)), chosen),
        ("shares", shares, "of the experts"),
        ("seconds", format_number(fit.seconds), ""),
        *([] if out is None else [("model", str(out), "")]),
    ]
    width = max(len(value) for _, value, _ in lines)
    return "\n".join(
        [
            f"{result.source}: {fit.n:,} rows fitted by {fit.method}, {rounds}, {_ending(fit)}",
            "",
            *(f"{name:12}{value:{width}}  {note}".rstrip() for name, value, note in lines),
            *(["", *result.records.notes()] if result.records.notes() else []),
        ]
    )


def _ending(fit: Fit) -> str:
    return f"{'converged' if fit.converged else 'not converged'} ({fit.reason})"


def to_json(result: FileFit, out: Path | None) -> str:
    """Format everything as one JSON object; ``null`` means unknown or not finite."""
    fit = result.fit
    return json.dumps(
        {
            "source": result.source,
            "method": fit.method,
            "start": fit.start,
            **result.records.counts(),
            "rounds": fit.rounds,
            "converged": fit.converged,
            "reason": fit.reason,
            "objective": fit.objective,
            "objective_at_start": fit.trace[0].objective,
            "gradient": finite_or_none(fit.trace[-1].gradient),
            "log_loss": finite_or_none(fit.log_loss),
            "rmse": finite_or_none(fit.rmse),
            "accuracy": finite_or_none(fit.accuracy),
            "n_experts": fit.model.chosen_n_experts,
            "expert_masses": fit.model.masses.tolist(),
            "seconds": fit.seconds,
            "refused": result.records.rejected(),
            "model": None if out is None else str(out),
            "state_digest": fit.model.state_digest(),
            "trace": [{name: finite_or_none(value) for name, value in each._asdict().items()} for each in fit.trace],
            "settings": result.settings,
            "version": version("streammoe"),
        },
        allow_nan=False,
    )
