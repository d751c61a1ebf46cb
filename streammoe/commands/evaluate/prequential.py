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
from streammoe.commands.evaluate.peers import Event, make_peer
from streammoe.commands.evaluate.tally import Tally
from streammoe.daemon.loop import ProgressListener
from streammoe.daemon.model import compile_kernels, model_from, schema_of
from streammoe.daemon.signals import StopFlag
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.engine.intervals import crps
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.scores import Average, ClassificationScores, PrequentialScores, Scores, Spread
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

    def add_row(self, name: str, scores: FloatArray, seconds: float = math.nan, failure: str | None = None) -> None:
        """Add the results of a learner: squared errors, or whether it was right, of all events."""
        n = len(scores)
        score = last_quarter = speed = math.nan
        if failure is None and n:
            means = [float(part.mean()) for part in (scores, scores[n * 3 // 4 :])]
            score, last_quarter = means if self.classify else map(math.sqrt, means)
            speed = n / seconds if seconds else math.nan
        self.rows.append(LearnerScores(name, score, last_quarter, None, speed, failure))


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
    scores: Scores = ClassificationScores() if classify else _AllScores(outputs)
    own, baseline = _Kept(), _Kept()
    names = ("hits", "baseline_hits") if classify else ("squared_error", "baseline_squared_error")
    scores.averages |= zip(names, (own, baseline), strict=True)
    pipeline = Pipeline(model_from(settings), schema, scores)
    evaluation = Evaluation(source_name, classify, pipeline.model, settings.learning_settings())
    seconds = 0.0
    batches = batches_of(settings, on_batch, stop)
    compile_kernels(settings)
    try:
        for batch in batches:
            started = time.perf_counter()
            with cancellable(lambda: stop is not None and stop.requested):
                processed = pipeline.process(batch)
            seconds += time.perf_counter() - started
            evaluation.count(processed, batch)
            if peers and not batch.too_long and processed.outcomes["learned"]:
                events = _events(pipeline, batch, processed.bad)
                for each in peers:
                    each.run(events)
    except FitCancelled:
        pass
    evaluation.stopped = stop is not None and stop.requested
    if not evaluation.stopped:
        evaluation.check(source_name, settings, instead="no scores", remedy="To score the others nevertheless")
    if isinstance(scores, _AllScores):
        seconds -= scores.seconds
        evaluation.intervals, evaluation.crps = scores.of_intervals(schema.targets), scores.crps.means()["running"]
    evaluation.add_row(f"streammoe, {describe_n_experts(pipeline.model)}", own.values(), seconds)
    evaluation.rows[0] = evaluation.rows[0]._replace(log_loss=scores.log_loss.means()["running"])
    for peer in peers:
        evaluation.add_row(peer.name, np.array(peer.scores), peer.seconds, peer.failure)
    evaluation.add_row("most frequent class" if classify else "running mean", baseline.values())
    evaluation.vanished = pipeline.presence.vanished
    return evaluation


def _events(pipeline: Pipeline, batch: Batch, bad: BoolArray) -> list[Event]:
    """Return the events of a batch that our model has learned."""
    # Records rejected for their features are in `bad`, whichever fields are decoded here.
    roles = pipeline.columns.roles(pipeline.model.column_kinds)
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


class _Kept(Average):
    """Averages that keep all values."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[FloatArray] = []

    def update(self, values: FloatArray) -> None:
        super().update(values)
        self._pieces.append(values)

    def values(self) -> FloatArray:
        """Return all of them."""
        return np.concatenate([np.empty(0), *self._pieces])


class _AllScores(PrequentialScores):
    """Scores of all that is said of the distribution of every event.

    Attributes:
        crps: the continuous ranked probability score, in units of the target.
        seconds: time spent with distributions, which learning does not need.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs, every=1)
        self.crps, self.seconds = Average(), 0.0

    def score_intervals(self, Y: FloatArray, spread: Spread | None) -> None:
        started = time.perf_counter()
        super().score_intervals(Y, spread)
        if spread is not None:
            found = crps(spread.trace, Y, spread.noise).mean(axis=1)
            self.crps.update(found[np.isfinite(found)])
        self.seconds += time.perf_counter() - started


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
