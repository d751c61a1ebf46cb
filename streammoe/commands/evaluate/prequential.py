"""Run the daemon's pipeline on a source prequentially, and other learners on the same events."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

from streammoe.assembly import batches_of
from streammoe.commands.evaluate.output_files import describe_n_experts, finite_or_none, format_number
from streammoe.commands.evaluate.peers import Event, make_baseline, make_peer
from streammoe.commands.evaluate.tally import Tally
from streammoe.daemon.loop import ProgressListener
from streammoe.daemon.model import compile_kernels, model_from, schema_of
from streammoe.daemon.signals import StopFlag
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.engine.intervals import crps
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.scores import MIN_PROBABILITY, Average, ClassificationScores, PrequentialScores, Spread
from streammoe.ports import Batch
from streammoe.settings import Settings
from streammoe.text import share_learned
from streammoe.types import BoolArray, FloatArray


class LearnerScores(NamedTuple):
    """Results of one learner."""

    name: str
    score: float
    """Root mean squared error, or accuracy, over all events."""
    last_quarter: float
    log_loss: float | None
    """Mean negative log-likelihood of the outcomes, in nats; only known for our model."""
    events_per_second: float
    failure: str | None = None


@dataclass
class Evaluation(Tally):
    """Results of a run."""

    source: str
    classify: bool
    model: MixtureOfExperts
    settings: dict[str, Any]
    """Schema and model, as plain values."""
    intervals: list[dict[str, Any]] = field(default_factory=list)
    """Coverage and mean width of the intervals of our model, by output and level; empty for classes."""
    crps: float | None = None
    """Mean continuous ranked probability score of our model, over events and outputs; None for classes."""
    rows: list[LearnerScores] = field(default_factory=list)
    """Our model first, the baseline last."""
    stopped: bool = False
    """Whether the run was stopped before the end."""
    vanished: dict[str, int] = field(default_factory=dict)
    """See `streammoe.pipeline.presence.Presence`."""

    @property
    def metric(self) -> str:
        """Name of the score."""
        return "accuracy" if self.classify else "RMSE"

    def score(self, loss: Any) -> Any:
        """Convert a mean loss to the score: the root of squared errors, or 1 minus the misses."""
        return 1.0 - loss if self.classify else np.sqrt(loss)


def evaluate(
    settings: Settings,
    against: Sequence[str] = (),
    *,
    source_name: str,
    on_batch: ProgressListener | None = None,
    stop: StopFlag | None = None,
) -> Evaluation:
    """Predict and learn all events of a source, with our model and with others; write nothing.

    Args:
        settings: source, schema, model, and how many records may be rejected; all others are ignored.
        against: names of other learners, see `streammoe.commands.evaluate.peers.make_peer`.
        source_name: for messages and reports.
        on_batch: called with the source's progress after each batch.
        stop: checked after each batch, and during fits.

    Raises:
        ConfigError: there is no such learner.
        SourceError: reading failed, or no event could be learned.
        TooManyBadRecords: more of the records were rejected than `dead_letters.max_ratio` allows.
    """
    schema, classify = schema_of(settings), settings.model.kind == "classifier"
    outputs = len(schema.targets)
    peers = [make_peer(name, classify=classify, outputs=outputs) for name in dict.fromkeys(against)]
    peers.append(make_baseline(classify=classify, outputs=outputs))
    scores = _Misses() if classify else _SquaredErrors(outputs)
    pipeline = Pipeline(model_from(settings), schema, scores)
    evaluation = Evaluation(source_name, classify, pipeline.model, settings.learning_settings())
    seconds = 0.0
    uses_features = any(each.looks for each in peers)
    batches = batches_of(settings, on_batch, stop)
    compile_kernels(settings)
    try:
        for batch in batches:
            started = time.perf_counter()
            with cancellable(lambda: stop is not None and stop.requested):
                processed = pipeline.process(batch)
            seconds += time.perf_counter() - started
            evaluation.count(processed, batch)
            if not batch.too_long and processed.outcomes["learned"]:
                events = _events(pipeline, batch, processed.bad, uses_features)
                for each in peers:
                    each.run(events)
    except FitCancelled:
        pass
    evaluation.stopped = stop is not None and stop.requested
    if not evaluation.stopped:
        evaluation.check_learned(source_name, schema)
        max_ratio = settings.dead_letters.max_ratio
        evaluation.check_rejected(
            source_name, max_ratio, instead="no scores", remedy="To score the others nevertheless"
        )
    ours = np.concatenate([np.empty(0), *scores.pieces])
    if isinstance(scores, _SquaredErrors):
        seconds -= scores.seconds
        evaluation.intervals, evaluation.crps = scores.of_intervals(schema.targets), scores.crps.means()["running"]
    row = _row(evaluation, f"streammoe, {describe_n_experts(pipeline.model)}", ours, seconds)
    evaluation.rows = [row._replace(log_loss=scores.log_loss.means()["running"])]
    evaluation.rows += [_row(evaluation, p.name, np.array(p.losses), p.seconds, p.failure) for p in peers]
    if pipeline.presence is not None:
        evaluation.vanished = pipeline.presence.vanished
    return evaluation


def _events(pipeline: Pipeline, batch: Batch, bad: BoolArray, uses_features: bool) -> list[Event]:
    """Return the events of a batch that our model has learned."""
    # Records rejected for their features are in `bad`, whichever fields are decoded here.
    roles = pipeline.columns.roles(pipeline.model.column_kinds)
    roles = roles if uses_features else roles._replace(kinds={})
    fields = roles.fields
    decoded = decoder(batch.format).decode(batch, roles)
    learned = ~bad[decoded.rows] & (decoded.weights > 0.0)
    if decoded.labels is None:
        learned &= ~np.isnan(decoded.Y).any(axis=1)
    else:
        learned &= np.array([label is not None for label in decoded.labels], np.bool_)
    numbers = [(j, name) for j, name in enumerate(fields) if j not in decoded.texts]
    X = decoded.X.tolist()
    events = []
    for i in np.flatnonzero(learned).tolist():
        row = X[i]
        x = {name: row[j] for j, name in numbers if not math.isnan(row[j])}
        texts = {fields[j]: text for j, column in decoded.texts.items() if (text := column[i]) is not None}
        y = tuple(decoded.Y[i].tolist()) if decoded.labels is None else str(decoded.labels[i])
        events.append(Event(x, texts, y, float(decoded.weights[i])))
    return events


def _row(
    evaluation: Evaluation, name: str, losses: FloatArray, seconds: float, failure: str | None = None
) -> LearnerScores:
    n, score = len(losses), evaluation.score
    if failure is not None or not n:
        return LearnerScores(name, math.nan, math.nan, None, math.nan, failure)
    speed = n / seconds if seconds else math.nan
    return LearnerScores(name, float(score(losses.mean())), float(score(losses[n * 3 // 4 :].mean())), None, speed)


class _SquaredErrors(PrequentialScores):
    """Scores that record the squared errors of all events, and score all that is said of their distribution.

    Attributes:
        crps: the continuous ranked probability score, in units of the target.
        seconds: time spent with distributions, which learning does not need.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs, every=1)
        self.pieces: list[FloatArray] = []
        self.crps, self.seconds = Average(), 0.0

    def update(
        self, losses: FloatArray, predictions: FloatArray, Y: FloatArray, spreads: Sequence[Spread] = ()
    ) -> None:
        started = time.perf_counter()
        self.score_intervals(Y, spreads)
        found = np.full(len(Y), math.nan)
        for each in spreads:
            found[each.rows] = crps(each.trace, Y[each.rows], each.noise).mean(axis=1)
        self.crps.update(found[np.isfinite(found)])
        self.seconds += time.perf_counter() - started
        self.log_loss.update(losses)
        self.pieces.append(((Y - predictions) ** 2).mean(axis=1))


class _Misses(ClassificationScores):
    """Scores that record the misses of all events."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[FloatArray] = []

    def update(
        self, losses: FloatArray, predictions: FloatArray, Y: FloatArray, spreads: Sequence[Spread] = ()
    ) -> None:
        if not len(losses):
            return
        self.log_loss.update(np.minimum(losses, -math.log(MIN_PROBABILITY)))
        classes = Y[:, 0].astype(np.int64)
        known = predictions.max(axis=1, initial=0.0) > 0.0
        missed = (predictions.argmax(axis=1) != classes) | ~known
        self.pieces.append(missed.astype(np.float64))


# --- reports --------------------------------------------------------------------------------------------------------


def table(evaluation: Evaluation) -> str:
    """Format the scores of all learners, and the rejected records, as a table."""
    better = "" if evaluation.classify else "  (lower is better)"
    lines = [*_heading(evaluation), ""]
    width = max(len(row.name) for row in evaluation.rows) + 2
    losses = [row.log_loss for row in evaluation.rows if row.log_loss is not None]
    titles = (evaluation.metric, "last quarter", "log-loss", "events/s")
    above = f"{'difference':>12}" if len(losses) > 1 else ""
    lines += [f"{'':{width}}{titles[0]:>10}{titles[1]:>14}{titles[2]:>11}{above}{titles[3]:>12}{better}"]
    for row in evaluation.rows:
        if row.failure is not None:
            lines += [f"{row.name:{width}}{'-':>10}{'-':>14}{'-':>11}{'-':>12}  failed: {row.failure}"]
            continue
        log_loss = "" if row.log_loss is None else format_number(row.log_loss)
        speed = "-" if math.isnan(row.events_per_second) else f"{row.events_per_second:,.0f}"
        score, last_quarter = format_number(row.score), format_number(row.last_quarter)
        beside = "" if row.log_loss is None else format_number(row.log_loss - losses[0])
        beside = f"{beside:>12}" if above else ""
        lines += [f"{row.name:{width}}{score:>10}{last_quarter:>14}{log_loss:>11}{beside}{speed:>12}"]
    lines += ["", *_notes(evaluation)]
    return "\n".join(lines)


def to_values(evaluation: Evaluation) -> dict[str, Any]:
    """Return everything as JSON values; None means unknown or not finite."""
    return {
        "source": evaluation.source,
        "metric": evaluation.metric.lower(),
        **evaluation.counts(),
        "rows": [{name: finite_or_none(value) for name, value in row._asdict().items()} for row in evaluation.rows],
        "crps": evaluation.crps and finite_or_none(evaluation.crps),
        "intervals": evaluation.intervals,
        "n_experts": evaluation.model.chosen_n_experts,
        "refused": evaluation.rejected(),
        "vanished": evaluation.vanished,
        "stopped": evaluation.stopped,
        "state_digest": evaluation.model.state_digest(),
        "settings": evaluation.settings,
        "version": version("streammoe"),
    }


def to_json(evaluation: Evaluation) -> str:
    """Format everything as one JSON object."""
    return json.dumps(to_values(evaluation), allow_nan=False)


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
    if evaluation.crps is not None and math.isfinite(evaluation.crps):
        lines += [f"CRPS of what our model predicts: {format_number(evaluation.crps)}, in units of the target"]
    for output in dict.fromkeys(each["output"] for each in evaluation.intervals):
        own = [each for each in evaluation.intervals if each["output"] == output and each["coverage"] is not None]
        said = (f"{each['level']:.0%} {each['coverage']:.1%}, width {format_number(each['width'])}" for each in own)
        lines += [f"its intervals of {output}, and the share of targets in them: {'; '.join(said)}"] if own else []
    if evaluation.model.is_warming_up:
        lines += ["the warm-up has not ended: single experts predicted; see model.warmup"]
    lines += [
        f"{name} has vanished: each event had it at first, and then {events:,} in succession came without it"
        for name, events in evaluation.vanished.items()
    ]
    return lines + evaluation.notes()
