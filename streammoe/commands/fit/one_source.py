"""Fit a model to a source: read its records as the daemon does, into a model that keeps them all, and fit them."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streammoe import batch
from streammoe.assembly import batches_of
from streammoe.batch import Fit, FitPlan
from streammoe.commands.evaluate.output_files import describe_n_experts, finite_or_none, format_number
from streammoe.commands.evaluate.tally import Tally
from streammoe.daemon.loop import ProgressListener
from streammoe.daemon.model import model_from, schema_of
from streammoe.daemon.resume import load_matching_model
from streammoe.daemon.signals import StopFlag
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.estimators import MixtureOfExperts
from streammoe.model.gathering import gathering
from streammoe.pipeline.pipeline import Pipeline
from streammoe.settings import Settings

LOGGER = logging.getLogger("streammoe.fit")


@dataclass
class FileFit:
    """A fit, and the outcomes of the records."""

    source: str
    settings: dict[str, Any]
    """Schema and model, as plain values."""
    fit: Fit
    records: Tally


def fit_source(
    settings: Settings,
    *,
    source_name: str,
    plan: FitPlan,
    from_model: Path | None = None,
    on_batch: ProgressListener | None = None,
    stop: StopFlag | None = None,
) -> FileFit | None:
    """Fit the model that the settings describe to all records of a source.

    Args:
        settings: source, schema, model, and how many records may be rejected; all others are ignored.
        source_name: for messages and reports.
        plan: how to fit; `from_model` decides the start.
        from_model: a saved model whose parameters are the start; by default those of a warm-up.
        on_batch: called with the source's progress after each batch.
        stop: checked throughout.

    Returns:
        None if it was stopped before the first round; later, the best round so far.

    Raises:
        ConfigError: an argument cannot be used, or the fit does not converge to finite parameters.
        CheckpointError: `from_model` is not sound, or does not match the settings.
        SourceError: reading failed, or no record could be used.
        TooManyBadRecords: more of the records were rejected than `dead_letters.max_ratio` allows; nothing is fitted.
    """
    model, plan = model_to_fit(settings, plan, from_model)
    pipeline = Pipeline(model, schema_of(settings), is_pretrained=from_model is not None)
    records = Tally()
    with gathering(model.learner):
        for each in batches_of(settings, on_batch, stop):
            records.count(pipeline.process(each), each)
        if stop is not None and stop.requested:
            return None
        check_records(records, source_name, settings, model)
        try:
            with cancellable(lambda: stop is not None and stop.requested):
                done = batch.fit_gathered(model, plan)
        except FitCancelled:
            return None
    return FileFit(source_name, settings.learning_settings(), done, records)


def model_to_fit(settings: Settings, plan: FitPlan, from_model: Path | None) -> tuple[MixtureOfExperts, FitPlan]:
    """Return the model that the settings describe, or a saved one, and the plan with that start.

    Raises:
        ConfigError: the model cannot be fitted like this.
        CheckpointError: `from_model` is not sound, or does not match the settings.
    """
    model = model_from(settings)
    if from_model is not None:
        model, plan = load_matching_model(from_model, model, settings), plan._replace(start="model")
        LOGGER.info(
            "starting from the parameters of %s; the %d events that it has learned are not learned again",
            from_model,
            model.n,
        )
    plan.check(model)
    return model, plan


def check_records(records: Tally, source_name: str, settings: Settings, model: MixtureOfExperts) -> None:
    """Check that the records can be fitted, and log how many are, and are not.

    Raises:
        SourceError: no record could be used.
        TooManyBadRecords: more of them were rejected than the settings allow.
    """
    records.check(source_name, settings, instead="nothing was fitted", remedy="To fit the others nevertheless")
    if rejected := records.outcomes["rejected"]:
        n = records.counts()["events"] - records.outcomes["skipped"]
        counts = records.format_reasons()
        LOGGER.warning("%s: %d of %d records are rejected and not fitted (%s)", source_name, rejected, n, counts)
    LOGGER.info("fitting %s to %d rows", describe_n_experts(model), records.outcomes["learned"])


# --- reports --------------------------------------------------------------------------------------------------------


def table(result: FileFit, out: Path | None) -> str:
    """Format the progress and the scores of a fit, and the rejected records, as a table; `out` is the model file."""
    fit = result.fit
    score = ("accuracy", fit.accuracy) if fit.rmse is None else ("RMSE", fit.rmse)
    rounds = f"{fit.rounds:,} round{'' if fit.rounds == 1 else 's'}"
    ended = "converged" if fit.converged else "not converged"
    shares = "  ".join(f"{share:.3f}" for share in fit.model.masses)
    options = fit.model.options
    chosen = f"selected from 1 to {options.most_experts}" if options.is_choosing and fit.start == "warmup" else ""
    gained = f"penalized log-likelihood per row; {format_number(fit.trace[0].objective)} at the start"
    lines = [
        ("log-loss", format_number(fit.log_loss), "nats, mean over the fitted rows"),
        (score[0], format_number(score[1] or 0.0), "over the fitted rows"),
        ("objective", format_number(fit.objective), gained),
        ("experts", str(len(fit.model.masses)), chosen),
        ("shares", shares, "of the experts"),
        ("seconds", format_number(fit.seconds), ""),
        *([] if out is None else [("model", str(out), "")]),
    ]
    width = max(len(value) for _, value, _ in lines)
    return "\n".join(
        [
            f"{result.source}: {fit.n:,} rows fitted, {rounds}, {ended} ({fit.reason})",
            "",
            *(f"{name:12}{value:{width}}  {note}".rstrip() for name, value, note in lines),
            *(["", *result.records.notes()] if result.records.notes() else []),
        ]
    )


def to_json(result: FileFit, out: Path | None) -> str:
    """Format everything as one JSON object; ``null`` means unknown or not finite."""
    fit = result.fit
    return json.dumps(
        {
            "source": result.source,
            "start": fit.start,
            **result.records.counts(),
            "rounds": fit.rounds,
            "converged": fit.converged,
            "reason": fit.reason,
            "objective": fit.objective,
            "objective_at_start": fit.trace[0].objective,
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
