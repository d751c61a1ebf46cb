"""Every Prometheus metric, in one table. docs/metrics.md is held to it by a test."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from streammoe.estimators import MixtureOfExperts
from streammoe.kernels.compile import compile_seconds
from streammoe.pipeline.scores import AVERAGES, ClassificationScores, PrequentialScores, Scores
from streammoe.ports import SourceStatus

BATCH_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
CHECKPOINT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
REFUSED = "refused"
RELOAD_OUTCOMES = ("applied", "unchanged", REFUSED)
OUTCOMES = ("learned", "predicted_only", "rejected", "skipped", "expired")
RESEED_OUTCOMES = ("tried", "kept")
CONDITIONS = ("alive", "starved", "duplicate")
COMPARED_EVERY = 1_000
"""Events between two comparisons of all experts."""


class Metric(NamedTuple):
    """One row of the catalogue."""

    kind: type[Counter | Gauge | Histogram]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


CATALOGUE: dict[str, Metric] = {
    "streammoe_events_total": Metric(Counter, "Events by what became of them, since the first start", ("outcome",)),
    "streammoe_rejected_total": Metric(Counter, "Refused records by reason, since the first start", ("reason",)),
    "streammoe_pending_labels": Metric(Gauge, "Features that wait for their label, and labels for their features"),
    "streammoe_prequential_log_loss": Metric(
        Gauge, "Mean of -log s(y|x), each event predicted before it is learned", ("average",)
    ),
    "streammoe_prequential_rmse": Metric(
        Gauge, "Root mean squared error, each event predicted before it is learned", ("average",)
    ),
    "streammoe_baseline_rmse": Metric(Gauge, "The same for predicting the mean of all targets so far", ("average",)),
    "streammoe_output_rmse": Metric(
        Gauge, "streammoe_prequential_rmse of each of several outputs", ("output", "average")
    ),
    "streammoe_prequential_accuracy": Metric(
        Gauge, "Part of the events whose likeliest class was theirs, each predicted before it is learned", ("average",)
    ),
    "streammoe_baseline_accuracy": Metric(
        Gauge, "The same for predicting the most frequent class so far", ("average",)
    ),
    "streammoe_model_features": Metric(Gauge, "Features that the experts see, intercept and powers included"),
    "streammoe_model_classes": Metric(Gauge, "Classes that a classifier has met"),
    "streammoe_model_events": Metric(Gauge, "Events that the model has learned, warm-up included"),
    "streammoe_warming_up": Metric(Gauge, "1 while events go to the warm-up buffer, else 0"),
    "streammoe_step_size": Metric(Gauge, "Step size of the next event"),
    "streammoe_drifts_total": Metric(Counter, "Drifts of the relation that were found, since the first start"),
    "streammoe_drift_last_event": Metric(Gauge, "Events learned when the last drift was found; 0 before the first"),
    "streammoe_expert_mass": Metric(Gauge, "Share of the events that an expert answers for", ("expert",)),
    "streammoe_expert_loss": Metric(
        Gauge, "Mean of -log e_k(y|x) over the events that an expert answers for", ("expert",)
    ),
    "streammoe_expert_divergence": Metric(
        Gauge, "Mean symmetric divergence between what an expert says and the nearest other, in nats", ("expert",)
    ),
    "streammoe_experts": Metric(Gauge, "Experts by how they fare", ("condition",)),
    "streammoe_model_candidates": Metric(Gauge, "Mixtures that learn side by side; 1 unless there is a race"),
    "streammoe_reseeds_total": Metric(
        Counter, "Experts that began anew as half of another, since the first start", ("outcome",)
    ),
    "streammoe_convergence_residual": Metric(
        Gauge, "Norm of the mean of S - s over the mean of its norm: near 0 at a stationary point, 1 far from one"
    ),
    "streammoe_guard_jumps_total": Metric(Counter, "Jumps of the loss, since the first start"),
    "streammoe_guard_high_windows": Metric(
        Gauge, "Windows in a row whose loss is far above what is usual; 3 are a jump"
    ),
    "streammoe_kernel_compile_seconds": Metric(
        Gauge, "Seconds spent compiling kernels since this start; 0 where they came from numba's cache"
    ),
    "streammoe_batch_seconds": Metric(Histogram, "Time from a batch's bytes to learned events", (), BATCH_SECONDS),
    "streammoe_checkpoint_seconds": Metric(
        Histogram, "Time from the state of a checkpoint to its being durable", (), CHECKPOINT_SECONDS
    ),
    "streammoe_checkpoint_pause_seconds": Metric(
        Histogram, "Time that learning stood still for a checkpoint", (), CHECKPOINT_SECONDS
    ),
    "streammoe_checkpoint_age_seconds": Metric(
        Gauge, "Seconds since the state of the last durable checkpoint, or since the start"
    ),
    "streammoe_checkpoint_failures_total": Metric(Counter, "Attempts to save that failed, since this start"),
    "streammoe_reload_total": Metric(
        Counter, "Times that SIGHUP was asked to read the settings again, since this start", ("outcome",)
    ),
    "streammoe_reload_success_timestamp_seconds": Metric(
        Gauge, "When the settings were last taken, at the start or after SIGHUP, in seconds since 1970"
    ),
    "streammoe_source_ready": Metric(Gauge, "1 once state and position are restored and reading has begun, else 0"),
    "streammoe_source_connected": Metric(Gauge, "1 while what is read from answers, else 0"),
    "streammoe_source_stalled": Metric(Gauge, "Partitions that hold more, of which nothing has come for a while"),
    "streammoe_source_incidents_total": Metric(
        Counter, "What happened to the source, such as reconnected or offset_reset, since this start", ("event",)
    ),
    "streammoe_consumer_lag": Metric(Gauge, "Records of a partition that are still to be read", ("topic", "partition")),
    "streammoe_consumer_position": Metric(Gauge, "The next offset to read of a partition", ("topic", "partition")),
    "streammoe_source_progress_ratio": Metric(Gauge, "Part of a finite source that has been read; NaN without an end"),
}


class Metrics:
    """The catalogue as live metrics in a registry of their own; written once per batch by the learning loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._of: dict[str, Counter | Gauge | Histogram] = {}
        for name, metric in CATALOGUE.items():
            if metric.kind is Histogram:
                made: Counter | Gauge | Histogram = Histogram(
                    name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
                )
            else:
                made = metric.kind(name, metric.help, metric.labels, registry=self.registry)
            self._of[name] = made
        self._checkpoint_at = time.monotonic()
        self._compared: tuple[int | None, int] = (None, -COMPARED_EVERY)
        """How many experts were last compared, and how many events the model had learned then."""
        self._reseeds = (0, 0)
        self._status = SourceStatus(ready=False, connected=False)
        self._gauge("streammoe_checkpoint_age_seconds").set_function(lambda: time.monotonic() - self._checkpoint_at)
        for outcome in OUTCOMES:
            self.count(outcome, 0)
        for outcome in RESEED_OUTCOMES:
            self._counter("streammoe_reseeds_total", outcome)
        for outcome in RELOAD_OUTCOMES:
            self._counter("streammoe_reload_total", outcome)
        self._gauge("streammoe_reload_success_timestamp_seconds").set_to_current_time()

    def count(self, outcome: str, events: int) -> None:
        """`events` more had this outcome."""
        self._counter("streammoe_events_total", outcome).inc(events)

    def count_rejected(self, reason: str, records: int) -> None:
        """`records` more were refused for this reason."""
        self._counter("streammoe_rejected_total", reason).inc(records)

    def recount(self, outcomes: Mapping[str, int], reasons: Mapping[str, int]) -> None:
        """Begin the counts of events anew, at these: a model has gone back."""
        for name in ("streammoe_events_total", "streammoe_rejected_total"):
            self._of[name].clear()
        for outcome in OUTCOMES:
            self.count(outcome, outcomes.get(outcome, 0))
        for reason, records in reasons.items():
            self.count_rejected(reason, records)

    def jumped(self, times: int) -> None:
        """The loss has jumped so many times more."""
        self._counter("streammoe_guard_jumps_total").inc(times)

    def drifted(self, times: int) -> None:
        """So many drifts more were found."""
        self._counter("streammoe_drifts_total").inc(times)

    def high_windows(self, windows: int) -> None:
        """So many windows in a row are high."""
        self._gauge("streammoe_guard_high_windows").set(windows)

    def pending(self, events: int) -> None:
        """So many events wait for their other half."""
        self._gauge("streammoe_pending_labels").set(events)

    def batch(self, seconds: float) -> None:
        """A batch took so long."""
        self._histogram("streammoe_batch_seconds").observe(seconds)

    def checkpoint(self, taken_at: float, seconds: float) -> None:
        """A checkpoint of the state at that time (`time.monotonic`) was durable so many seconds later."""
        self._histogram("streammoe_checkpoint_seconds").observe(seconds)
        self._checkpoint_at = taken_at

    def checkpoint_pause(self, seconds: float) -> None:
        """Learning has stood still so long for a checkpoint."""
        self._histogram("streammoe_checkpoint_pause_seconds").observe(seconds)

    def checkpoint_failed(self) -> None:
        """An attempt to save has just failed."""
        self._counter("streammoe_checkpoint_failures_total").inc()

    def reloaded(self, outcome: str) -> None:
        """The settings were read again: one of `RELOAD_OUTCOMES`."""
        self._counter("streammoe_reload_total", outcome).inc()
        if outcome != REFUSED:
            self._gauge("streammoe_reload_success_timestamp_seconds").set_to_current_time()

    def publish(self, model: MixtureOfExperts, scores: Scores, progress: tuple[int, int] | None) -> None:
        """Show the model and its scores as they are after a batch. What is not known yet has no sample or is NaN."""
        self._show("streammoe_prequential_log_loss", scores.log_loss.means())
        if isinstance(scores, PrequentialScores):
            self._show("streammoe_prequential_rmse", scores.rmse())
            self._show("streammoe_baseline_rmse", scores.baseline_rmse())
            for q, name in enumerate(model.output_names if scores.outputs > 1 else ()):
                self._show("streammoe_output_rmse", scores.rmse(q), str(name))
        if isinstance(scores, ClassificationScores):
            self._show("streammoe_prequential_accuracy", scores.accuracy())
            self._show("streammoe_baseline_accuracy", scores.baseline_accuracy())
            self._gauge("streammoe_model_classes").set(len(model.output_names))
        self._gauge("streammoe_kernel_compile_seconds").set(compile_seconds())
        self._gauge("streammoe_model_features").set(model.n_expert_features)
        self._gauge("streammoe_model_events").set(model.n)
        self._gauge("streammoe_warming_up").set(model.is_warming_up)
        self._gauge("streammoe_step_size").set(model.step_size)
        drift = model.last_drift
        self._gauge("streammoe_drift_last_event").set(0 if drift is None else drift.n)
        self._gauge("streammoe_convergence_residual").set(model.convergence_residual)
        self._publish_experts(model)
        done, total = progress or (0, 0)
        self._gauge("streammoe_source_progress_ratio").set(done / total if total else math.nan)

    def _publish_experts(self, model: MixtureOfExperts) -> None:
        masses = model.masses
        for expert in range(model.most_experts):
            self._gauge("streammoe_expert_mass", str(expert)).set(masses[expert] if expert < len(masses) else math.nan)
        self._gauge("streammoe_model_candidates").set(model.n_candidates)
        for outcome, times, before in zip(RESEED_OUTCOMES, model.n_reseeds, self._reseeds, strict=True):
            self._counter("streammoe_reseeds_total", outcome).inc(max(times - before, 0))
        self._reseeds = model.n_reseeds
        # Comparing all experts costs as much as learning K events, so a batch of one does not ask for it each time.
        experts, at = self._compared
        if experts == model.chosen_n_experts and at <= model.n < at + COMPARED_EVERY:
            return
        self._compared = (model.chosen_n_experts, model.n)
        fare = model.experts()
        for condition in CONDITIONS:
            found = sum(expert["condition"] == condition for expert in fare)
            self._gauge("streammoe_experts", condition).set(found)
        for k in range(model.most_experts):
            for name in ("loss", "divergence"):
                value = fare[k][name] if k < len(fare) else None
                self._gauge(f"streammoe_expert_{name}", str(k)).set(math.nan if value is None else value)

    def source(self, status: SourceStatus) -> None:
        """Show how the source fares. Series of partitions that are no longer read go."""
        before, self._status = self._status, status
        self._gauge("streammoe_source_ready").set(status.ready)
        self._gauge("streammoe_source_connected").set(status.connected)
        self._gauge("streammoe_source_stalled").set(len(status.stalled))
        for event, times in status.counters.items():
            self._counter("streammoe_source_incidents_total", event).inc(times - before.counters.get(event, 0))
        for name, values, earlier in (
            ("streammoe_consumer_position", status.positions, before.positions),
            ("streammoe_consumer_lag", status.lags, before.lags),
        ):
            for topic, partition in earlier.keys() - values.keys():
                self._of[name].remove(topic, str(partition))
            for (topic, partition), value in values.items():
                self._gauge(name, topic, str(partition)).set(value)

    def _show(self, name: str, means: Mapping[str, float], *labels: str) -> None:
        for average in AVERAGES:
            self._gauge(name, *labels, average).set(means[average])

    def _counter(self, name: str, *labels: str) -> Counter:
        metric = self._of[name].labels(*labels) if labels else self._of[name]
        assert isinstance(metric, Counter)  # noqa: S101 - for the type checker; the catalogue says so
        return metric

    def _gauge(self, name: str, *labels: str) -> Gauge:
        metric = self._of[name].labels(*labels) if labels else self._of[name]
        assert isinstance(metric, Gauge)  # noqa: S101 - same
        return metric

    def _histogram(self, name: str) -> Histogram:
        metric = self._of[name]
        assert isinstance(metric, Histogram)  # noqa: S101 - same
        return metric
