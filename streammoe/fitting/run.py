"""A batch fit of a source: its records go the way of the daemon's, into a model that keeps them all, and are fitted."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streammoe import batch
from streammoe.assembly import model_from, open_source, schema_of
from streammoe.batch import Fit, Listener
from streammoe.estimators import MixtureOfExperts
from streammoe.evaluation.tally import Tally
from streammoe.runtime.daemon import POLL_SECONDS, ProgressListener
from streammoe.runtime.given_model import given_model
from streammoe.runtime.pipeline import Pipeline
from streammoe.runtime.scores import ClassificationScores, PrequentialScores
from streammoe.runtime.signals import StopFlag
from streammoe.settings import Settings

LOGGER = logging.getLogger("streammoe.fit")


@dataclass
class FileFit:
    """A fit, and what became of the records."""

    source: str
    target: str
    settings: dict[str, Any]
    """Schema and model, as plain values."""
    fit: Fit
    records: Tally


def fit_source(
    settings: Settings,
    *,
    source_name: str,
    method: str = "em",
    rounds: int = batch.ROUNDS,
    tolerance: float = batch.TOLERANCE,
    step: float | None = None,
    from_model: Path | None = None,
    on_batch: ProgressListener | None = None,
    on_round: Listener | None = None,
    stop: StopFlag | None = None,
) -> FileFit | None:
    """Fit the model that the settings describe to all records of a source.

    Args:
        settings: source, schema and model; the other sections are not looked at.
        source_name: for messages and reports.
        method, rounds, tolerance, step, on_round: see `streammoe.batch.fit`.
        from_model: a saved model whose parameters are the start; without it those of a warm-up.
        on_batch: told the source's progress after each batch.
        stop: asked after each batch whether to end.

    Returns:
        None if it was asked to stop while it still read.

    Raises:
        ConfigError: an argument cannot be used, or nothing finite comes of the records.
        CheckpointError: `from_model` holds no sound model, or another one.
        SourceError: reading failed, or no record could be used.
    """
    schema = schema_of(settings)
    model: MixtureOfExperts = model_from(settings)
    if from_model is not None:
        model = given_model(from_model, model, schema)
    start = "warmup" if from_model is None else "model"
    batch.check(model, method=method, start=start, rounds=rounds, tolerance=tolerance, step=step)
    scores = ClassificationScores() if settings.model.kind == "classifier" else PrequentialScores(len(schema.targets))
    pipeline = Pipeline(model, schema, scores, is_given=from_model is not None)
    records = Tally()
    target = ", ".join(schema.targets)
    with model.gathering():
        source = open_source(settings)
        try:
            source.seek(None)
            while not source.finished:
                if stop is not None and stop.requested:
                    return None
                found = source.poll(POLL_SECONDS)
                if found is not None:
                    records.count(pipeline.process(found))
                if on_batch is not None:
                    on_batch(source.progress())
        finally:
            source.close()
        records.require_learned(source_name, target)
        LOGGER.info("fitting %s experts to %d rows", model.n_experts, records.outcomes["learned"])
        done = batch.fit_gathered(
            model, method=method, start=start, rounds=rounds, tolerance=tolerance, step=step, on_round=on_round
        )
    return FileFit(source_name, target, settings.learning_settings(), done, records)
