"""Run the daemon's pipeline on a source prequentially, and other learners on the same events."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from streammoe.assembly import open_source
from streammoe.commands.evaluate.binned_sums import BinnedSums
from streammoe.commands.evaluate.outputs import describe_n_experts
from streammoe.commands.evaluate.peers import Event, Peer, make_baseline, make_peer
from streammoe.commands.evaluate.tally import Tally
from streammoe.daemon.loop import POLL_SECONDS, ProgressListener
from streammoe.daemon.model import compile_kernels, model_from, schema_of
from streammoe.daemon.signals import StopFlag
from streammoe.engine.interruption import FitCancelled, cancellable
from streammoe.estimators import MixtureOfExperts
from streammoe.pipeline.decoders import decoder
from streammoe.pipeline.pipeline import Pipeline, PredictionWriter
from streammoe.pipeline.scores import MIN_PROBABILITY, ClassificationScores, PrequentialScores
from streammoe.ports import Batch, Predictions, PredictionSink, Source
from streammoe.settings import Settings
from streammoe.types import BoolArray, FloatArray


class Row(NamedTuple):
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
    target: str
    classify: bool
    model: MixtureOfExperts
    settings: dict[str, Any]
    """Schema and model, as plain values."""
    rows: list[Row] = field(default_factory=list)
    """Our model first, the baseline last."""
    curves: dict[str, BinnedSums] = field(default_factory=dict)
    """Squared errors, or misses, of each learner."""
    shares: BinnedSums | None = None
    """The gate's share for each expert, if requested."""
    warm_up: int = 0
    """Number of events before there was a gate."""
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
    shares: bool = False,
    on_batch: ProgressListener | None = None,
    stop: StopFlag | None = None,
) -> Evaluation:
    """Predict and learn all events of a source, with our model and with others; write nothing.

    Args:
        settings: source, schema, model, and how many records may be rejected; all others are ignored.
        against: names of other learners, see `streammoe.commands.evaluate.peers.make_peer`.
        source_name: for messages and reports.
        shares: whether to record the gate's shares, which takes time.
        on_batch: called with the source's progress after each batch.
        stop: checked after each batch, and during fits.

    Raises:
        ConfigError: there is no such learner.
        SourceError: reading failed, or no event could be learned.
        TooManyBadRecords: more of the records were rejected than `dead_letters.max_ratio` allows.
    """
    run = _Run(settings, against, source_name, shares=shares)
    source = open_source(settings)
    try:
        source.seek(None)
        compile_kernels(settings)
        return run.run(source, on_batch, stop)
    finally:
        source.close()


class _Run:
    """Our model and the other learners during a run."""

    def __init__(self, settings: Settings, against: Sequence[str], source_name: str, *, shares: bool) -> None:
        schema = schema_of(settings)
        classify = settings.model.kind == "classifier"
        outputs = len(schema.targets)
        self.peers: list[Peer] = [
            *(
                make_peer(name, classify=classify, outputs=outputs, seed=settings.model.seed)
                for name in dict.fromkeys(against)
            ),
            make_baseline(classify=classify, outputs=outputs),
        ]
        self.max_ratio = settings.dead_letters.max_ratio
        self.scores = _LabelCurves() if classify else _NumberCurves(outputs)
        model = model_from(settings)
        self.sink = _ShareSink(model.most_experts)
        writer = PredictionWriter(self.sink, 0.0, gate=True) if shares else None
        self.schema = schema
        self.pipeline = Pipeline(model, schema, self.scores, writer)
        self.seconds = 0.0
        self.evaluation = Evaluation(
            source_name, ", ".join(schema.targets), classify, self.pipeline.model, settings.learning_settings()
        )
        if shares:
            self.evaluation.shares = self.sink.curve

    def run(self, source: Source, on_batch: ProgressListener | None, stop: StopFlag | None) -> Evaluation:
        evaluation = self.evaluation
        while not source.finished and not (stop is not None and stop.requested):
            batch = source.poll(POLL_SECONDS)
            if batch is not None:
                try:
                    with cancellable(lambda: stop is not None and stop.requested):
                        self._process(batch)
                except FitCancelled:
                    evaluation.stopped = True
                    break
            if on_batch is not None:
                on_batch(source.progress())
        evaluation.stopped = evaluation.stopped or not source.finished
        if not evaluation.stopped:
            evaluation.check_learned(evaluation.source, self.schema)
            evaluation.check_rejected(
                evaluation.source,
                self.max_ratio,
                instead="no scores",
                remedy="To score the others nevertheless",
            )
        ours = self.scores.curve
        evaluation.rows = [self._row(f"streammoe, {describe_n_experts(self.pipeline.model)}", ours, self.seconds)]
        evaluation.rows += [self._row(p.name, p.curve, p.seconds, p.failure) for p in self.peers]
        evaluation.rows[0] = evaluation.rows[0]._replace(log_loss=self.scores.log_loss.means()["running"])
        evaluation.curves = {"streammoe": ours, **{p.name: p.curve for p in self.peers}}
        evaluation.warm_up = self.sink.warm_up
        if self.pipeline.presence is not None:
            evaluation.vanished = self.pipeline.presence.vanished
        return evaluation

    def _process(self, batch: Batch) -> None:
        started = time.perf_counter()
        processed = self.pipeline.process(batch)
        self.seconds += time.perf_counter() - started
        self.evaluation.count(processed, batch)
        if not batch.too_long and processed.outcomes["learned"]:
            events = self._events(batch, processed.bad)
            for each in self.peers:
                each.run(events)

    def _events(self, batch: Batch, bad: BoolArray) -> list[Event]:
        """Return the events of a batch that our model has learned."""
        # Records rejected for their features are in `bad`, whichever fields are decoded here.
        uses_features = any(each.looks for each in self.peers)
        roles = self.pipeline.roles()
        roles = roles if uses_features else roles._replace(fields=())
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

    def _row(self, name: str, curve: BinnedSums, seconds: float, failure: str | None = None) -> Row:
        score = self.evaluation.score
        if failure is not None:
            return Row(name, math.nan, math.nan, None, math.nan, failure)
        speed = curve.count / seconds if seconds else math.nan
        return Row(name, float(score(curve.mean()[0])), float(score(curve.mean(0.25)[0])), None, speed)


class _NumberCurves(PrequentialScores):
    """Scores that record the squared errors of all events."""

    def __init__(self, outputs: int) -> None:
        super().__init__(outputs)
        self.curve = BinnedSums()

    def update(self, losses: FloatArray, predictions: FloatArray, Y: FloatArray) -> None:
        self.log_loss.update(losses)
        self.curve.add(((Y - predictions) ** 2).mean(axis=1, keepdims=True))


class _LabelCurves(ClassificationScores):
    """Scores that record the misses of all events."""

    def __init__(self) -> None:
        super().__init__()
        self.curve = BinnedSums()

    def update(self, losses: FloatArray, predictions: FloatArray, Y: FloatArray) -> None:
        if not len(losses):
            return
        self.log_loss.update(np.minimum(losses, -math.log(MIN_PROBABILITY)))
        classes = Y[:, 0].astype(np.int64)
        known = predictions.max(axis=1, initial=0.0) > 0.0
        missed = (predictions.argmax(axis=1) != classes) | ~known
        self.curve.add(missed.astype(np.float64)[:, None])


class _ShareSink(PredictionSink):
    """A sink that records the gate's shares instead of writing predictions."""

    def __init__(self, n_experts: int) -> None:
        self.curve = BinnedSums(n_experts)
        self.warm_up = 0

    def write(self, rows: Predictions) -> None:
        assert rows.gate is not None  # noqa: S101 - they were requested
        if isinstance(rows.targets, np.ndarray):
            known = ~np.isnan(rows.targets).any(axis=1)
        else:
            known = np.array([target is not None for target in rows.targets], np.bool_)
        gate = rows.gate[known]
        shares = np.zeros((len(gate), self.curve.n_columns))
        shares[:, : gate.shape[1]] = gate
        if self.warm_up == self.curve.count:
            # A single expert predicts until a gate has been fitted.
            mixed = np.flatnonzero((shares[:, 1:] > 0.0).any(axis=1))
            self.warm_up += int(mixed[0]) if mixed.size else len(gate)
        self.curve.add(shares)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
