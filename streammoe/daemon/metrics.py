"""Every Prometheus metric, in one table. docs/metrics.md is held to it by a test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from operator import countOf

from prometheus_client import Counter, Gauge, Histogram

from streammoe.catalogue import COMMON, LiveMetrics, Metric, memory_limit
from streammoe.daemon.guards import LossState
from streammoe.daemon.health import SINKS, Health
from streammoe.distributions.mixtures import LEVELS
from streammoe.engine.portfolio import MEMBERS
from streammoe.errors import REASONS
from streammoe.estimators import MixtureOfExperts
from streammoe.kernels.compile import compile_seconds
from streammoe.pipeline.challenger import Challenger
from streammoe.pipeline.presence import MOST_COUNTED, Presence
from streammoe.pipeline.scores import AVERAGES, PrequentialScores, Scores
from streammoe.pipeline.sink_wait import SinkWait
from streammoe.ports import STALLS, SourceStatus
from streammoe.text import cut, listed

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Ends of the buckets of all histograms: from a batch of a few records to a checkpoint on a slow disk."""
REFUSED = "refused"
RELOAD_OUTCOMES = ("applied", "unchanged", REFUSED)
OUTCOMES = ("learned", "predicted_only", "rejected", "skipped", "expired")
CONDITIONS = ("alive", "starved", "duplicate")
COMPARISON_INTERVAL = 1_000
"""Events between two comparisons of all experts."""

SINGLE = "y"
"""Name of the only output of a model, in labels; its lags have it, too."""


CATALOGUE: dict[str, Metric] = {
    "streammoe_events_total": Metric(Counter, "Events by outcome", ("outcome",)),
    "streammoe_rejected_total": Metric(Counter, "Rejected records by reason", ("reason",)),
    "streammoe_column_values_total": Metric(
        Counter,
        f"Values of a column that are missing or unknown levels, of the first {MOST_COUNTED} columns",
        ("column", "state"),
    ),
    "streammoe_columns_vanished": Metric(Gauge, "Columns that came with every event and come no more"),
    "streammoe_pending_labels": Metric(Gauge, "Features that wait for their label, and labels for their features"),
    "streammoe_prequential_log_loss": Metric(
        Gauge, "Mean of -log s(y|x), each event predicted before it is learned", ("average",)
    ),
    "streammoe_prequential_rmse": Metric(
        Gauge, "Root mean squared error, each event predicted before it is learned", ("average",)
    ),
    "streammoe_baseline_rmse": Metric(
        Gauge, "Root mean squared error of predicting the mean of all targets so far", ("average",)
    ),
    "streammoe_output_rmse": Metric(
        Gauge, "streammoe_prequential_rmse of each of several outputs", ("output", "average")
    ),
    "streammoe_interval_coverage": Metric(
        Gauge,
        f"Share of the targets in their intervals, by level: {listed([f'{each:g}' for each in LEVELS], 'or')}",
        ("output", "level", "average"),
    ),
    "streammoe_interval_width": Metric(
        Gauge, "Mean width of these intervals, in units of the target", ("output", "level", "average")
    ),
    "streammoe_prequential_accuracy": Metric(
        Gauge,
        "Share of the events whose most probable class was right, each predicted before it is learned",
        ("average",),
    ),
    "streammoe_baseline_accuracy": Metric(
        Gauge, "Share of the events for which the most frequent class so far was right", ("average",)
    ),
    **{
        f"streammoe_challenger_{score}": Metric(
            Gauge, f"streammoe_prequential_{score} over the events that both models have learned", ("model", "average")
        )
        for score in ("log_loss", "rmse", "accuracy")
    },
    "streammoe_challenger_events": Metric(
        Gauge, "Events since the challenger began that both models have learned, or the challenger missed", ("outcome",)
    ),
    "streammoe_model_features": Metric(Gauge, "Features of the experts, intercept and powers included"),
    "streammoe_model_classes": Metric(Gauge, "Classes that a classifier has seen"),
    "streammoe_model_events": Metric(Gauge, "Events that the model has learned, warm-up included"),
    "streammoe_warming_up": Metric(Gauge, "1 until the mixture is first fitted, else 0"),
    "streammoe_step_size": Metric(Gauge, "Step size of the next event"),
    "streammoe_outliers_total": Metric(Counter, "Events beyond the tails of Gaussian experts, which counted less"),
    "streammoe_member_weight": Metric(
        Gauge,
        f"Weight of a member in the next prediction: {listed(MEMBERS, 'or')}",
        ("member",),
    ),
    "streammoe_drifts_total": Metric(Counter, "Concept drifts detected"),
    "streammoe_drift_last_event": Metric(Gauge, "Events learned when the last drift was found; 0 before the first"),
    "streammoe_expert_mass": Metric(Gauge, "Mean responsibility of an expert", ("expert",)),
    "streammoe_expert_loss": Metric(Gauge, "Mean of -log e_k(y|x), weighted by responsibilities", ("expert",)),
    "streammoe_expert_divergence": Metric(
        Gauge, "Mean symmetric divergence between an expert's distribution and the nearest other, in nats", ("expert",)
    ),
    "streammoe_experts": Metric(Gauge, "Experts by condition", ("condition",)),
    "streammoe_convergence_residual": Metric(
        Gauge, "Norm of the mean of S - s over the mean of its norm: near 0 at a stationary point, 1 far from one"
    ),
    "streammoe_guard_jumps_total": Metric(Counter, "Jumps of the loss"),
    "streammoe_guard_high_windows": Metric(
        Gauge, "Consecutive windows whose loss is far above the usual one; 3 are a jump"
    ),
    "streammoe_starts_total": Metric(Counter, "Starts with this checkpoint folder, this one included"),
    "streammoe_memory_limit_bytes": Metric(Gauge, "Memory of the machine, or of its part that this process may use"),
    "streammoe_kernel_compile_seconds": Metric(
        Gauge, "Seconds spent compiling kernels since this start; 0 where they came from numba's cache"
    ),
    "streammoe_batch_seconds": Metric(Histogram, "Time from a batch's bytes to learned events", (), SECONDS),
    "streammoe_checkpoint_seconds": Metric(Histogram, "Time that learning waited for a checkpoint", (), SECONDS),
    "streammoe_checkpoint_age_seconds": Metric(
        Gauge, "Seconds since the state of the last durable checkpoint, or since the start"
    ),
    "streammoe_unsaved_events": Metric(
        Gauge, "Records processed since that state, which a crash makes the next start process again"
    ),
    "streammoe_checkpoint_failures_total": Metric(Counter, "Failed attempts to save"),
    "streammoe_mirror_age_seconds": Metric(
        Gauge,
        "Seconds since the state of the newest mirrored checkpoint, or since the start; NaN without a mirror",
    ),
    "streammoe_mirror_failures_total": Metric(Counter, "Failed attempts to mirror one"),
    "streammoe_reload_total": Metric(Counter, "Reloads of the settings by SIGHUP", ("outcome",)),
    "streammoe_reload_success_timestamp_seconds": Metric(
        Gauge, "Time at which the settings were last loaded, in seconds since 1970"
    ),
    "streammoe_sink_waiting_seconds": Metric(
        Gauge, "How long a sink has kept the daemon waiting for its answer; 0 if it does not", ("sink",)
    ),
    "streammoe_sink_waited_seconds_total": Metric(
        Counter,
        "Seconds that a sink has kept the daemon waiting, the present wait included",
        ("sink",),
    ),
    "streammoe_sink_rejected": Metric(
        Gauge, "1 while a sink is rejected because of its login or certificate, else 0", ("sink",)
    ),
    "streammoe_ready": Metric(Gauge, "1 while /readyz answers 200, else 0"),
    "streammoe_source_connected": Metric(Gauge, "1 while the source answers, else 0"),
    "streammoe_source_rejected": Metric(Gauge, "1 while the source rejects the login or certificate, else 0"),
    "streammoe_source_stalled": Metric(Gauge, f"Partitions that are held up: {listed(STALLS, 'or')}", ("reason",)),
    "streammoe_behind_seconds": Metric(
        Gauge, "Age of the newest learned record of the partition that is furthest behind; 0 where all is read"
    ),
    "streammoe_source_incidents_total": Metric(
        Counter, "Incidents of the source, such as reconnected or offset_reset", ("event",)
    ),
    "streammoe_consumer_lag": Metric(Gauge, "Unread records of a partition", ("topic", "partition")),
    "streammoe_source_held_back_records": Metric(
        Gauge, "Records read from a partition that wait for older ones of others", ("topic", "partition")
    ),
    "streammoe_consumer_position": Metric(Gauge, "Next offset to read of a partition", ("topic", "partition")),
    "streammoe_source_progress_ratio": Metric(Gauge, "Share of a finite source that has been read; NaN if endless"),
    **COMMON,
}


class Metrics:
    """The catalogue as live metrics in their own registry.

    The learning loop updates most of them once per batch. Those that must be true while it waits are computed when they
    are asked for.

    Args:
        health: of the daemon; knows when the last checkpoint was taken, and since when sinks have kept it waiting.
    """

    def __init__(self, health: Health | None = None) -> None:
        self.health = Health(math.inf) if health is None else health
        self._source: Callable[[], SourceStatus] = lambda: SourceStatus(connected=False)
        self.live = LiveMetrics(CATALOGUE, self._look_at_source)
        self.registry = self.live.registry
        self.counter, self.gauge, self.histogram = self.live.counter, self.live.gauge, self.live.histogram
        self._compared: tuple[int | None, int] = (None, -COMPARISON_INTERVAL)
        """Number of experts at the last comparison, and of events that the model had learned."""
        self._totals: dict[tuple[str, ...], int] = {}
        """Those that counters show, by name and labels."""
        self._members: tuple[str, ...] = ()
        """Members of the portfolio whose weights are shown."""
        self._status = SourceStatus(connected=False)
        self._of_challenger: Mapping[tuple[str, ...], float] = {}
        """What is shown of the challenger, by name and labels."""
        self.gauge("streammoe_ready").set_function(lambda: not self.health.problem)
        self.gauge("streammoe_checkpoint_age_seconds").set_function(lambda: time.monotonic() - self.health.saved_at)
        self.gauge("streammoe_mirror_age_seconds").set(math.nan)
        for section, wait in self.health.waits.items():
            self._show_wait(section, wait)
        waits = self.health.waits
        self.counter("streammoe_sink_waited_seconds_total").compute = lambda: {
            (section,): waits[section].total for section in SINKS
        }
        self.counter("streammoe_source_incidents_total").compute = lambda: {
            (event,): times for event, times in self._status.counters.items()
        }
        self.gauge("streammoe_memory_limit_bytes").set(memory_limit())
        for outcome in RELOAD_OUTCOMES:
            self.counter("streammoe_reload_total", outcome)
        self.gauge("streammoe_reload_success_timestamp_seconds").set_to_current_time()

    def follow(self, status: Callable[[], SourceStatus]) -> None:
        """Call this at each scrape, in another thread, to show the source as it is then."""
        self._source = status

    def count(
        self, outcomes: Mapping[str, int], reasons: Mapping[str, int], pending: int = 0, losses: LossState | None = None
    ) -> None:
        """Show what became of events.

        Args:
            outcomes: events by outcome, as all counts since the first start; what is shown counts from this one, since
                a crash takes them back, and counters may only go back to 0.
            reasons: rejected records by reason.
            pending: events that wait for their label or features.
            losses: of the guard, if jumps are watched for.
        """
        for outcome in OUTCOMES:
            self._raise("streammoe_events_total", outcomes.get(outcome, 0), outcome)
        for reason in REASONS:
            self._raise("streammoe_rejected_total", reasons.get(reason, 0), reason)
        self.gauge("streammoe_pending_labels").set(pending)
        if losses is not None:
            self._raise("streammoe_guard_jumps_total", losses.jumps)
            self.gauge("streammoe_guard_high_windows").set(len(losses.high))

    def count_reload(self, outcome: str) -> None:
        """Count a reload of the settings; the outcome is one of `RELOAD_OUTCOMES`."""
        self.counter("streammoe_reload_total", outcome).inc()
        if outcome != REFUSED:
            self.gauge("streammoe_reload_success_timestamp_seconds").set_to_current_time()

    def show_columns(self, presence: Presence) -> None:
        """Show which values of columns were missing or unknown in this run."""
        self.gauge("streammoe_columns_vanished").set_function(lambda: len(presence.lacking))
        self.counter("streammoe_column_values_total").compute = lambda: {
            (cut(name), state): count
            for state, counts in (("missing", presence.missing), ("unknown", presence.unknown))
            for name, count in counts.copy().items()
        }

    def publish(self, model: MixtureOfExperts, scores: Scores, progress: tuple[int, int] | None) -> None:
        """Show the model and its scores after a batch; an unknown value has no sample or is NaN."""
        for name, means in scores.means().items():
            self._show(f"streammoe_{name if name.startswith('baseline') else f'prequential_{name}'}", means)
        if isinstance(scores, PrequentialScores):
            for q, name in enumerate(model.output_names if scores.outputs > 1 else ()):
                self._show("streammoe_output_rmse", scores.rmse(q), str(name))
            outputs = model.output_names or [SINGLE]
            for (score, q, level), average in scores.intervals.items():
                self._show(f"streammoe_interval_{score}", average.means(), str(outputs[q]), f"{level:g}")
        else:
            self.gauge("streammoe_model_classes").set(len(model.output_names))
        self.gauge("streammoe_kernel_compile_seconds").set(compile_seconds())
        self.gauge("streammoe_model_features").set(model.n_expert_features)
        self.gauge("streammoe_model_events").set(model.n)
        self.gauge("streammoe_warming_up").set(model.is_warming_up)
        self.gauge("streammoe_step_size").set(model.step_size)
        self._raise("streammoe_outliers_total", model.n_outliers)
        self._raise("streammoe_drifts_total", model.drifts)
        weights = model.member_weights
        # A member that takes no part counts 0, whether it has left, has yet to join or left in an earlier run.
        if weights:
            self._members = MEMBERS if model.options.has_curved else MEMBERS[:-1]
        for member in self._members:
            self.gauge("streammoe_member_weight", member).set(weights.get(member, 0.0))
        drift = model.last_drift
        self.gauge("streammoe_drift_last_event").set(0 if drift is None else drift.n)
        self.gauge("streammoe_convergence_residual").set(model.convergence_residual)
        self._publish_experts(model)
        done, total = progress or (0, 0)
        self.gauge("streammoe_source_progress_ratio").set(done / total if total else math.nan)

    def show_challenger(self, challenger: Challenger | None) -> None:
        """Show how the challenger does, next to the champion over the same events; nothing if there is none."""
        shown: dict[tuple[str, ...], float] = {}
        if challenger is not None:
            shown["streammoe_challenger_events", "learned"] = challenger.champion_scores.log_loss.count
            shown["streammoe_challenger_events", "missed"] = challenger.missed
            shown |= {
                (f"streammoe_challenger_{name}", model, average): value
                for model, scores in challenger.scores.items()
                for name, means in scores.means().items()
                if not name.startswith("baseline")
                for average, value in means.items()
            }
        for gone in self._of_challenger.keys() - shown.keys():
            self.live.remove(*gone)
        for series, value in shown.items():
            self.gauge(*series).set(value)
        self._of_challenger = shown

    def _publish_experts(self, model: MixtureOfExperts) -> None:
        masses = model.masses
        for expert in range(model.options.most_experts):
            self.gauge("streammoe_expert_mass", str(expert)).set(masses[expert] if expert < len(masses) else math.nan)
        # Comparing all experts costs as much as learning K events: too much to do after each batch of one.
        n_experts, at = self._compared
        if n_experts == model.chosen_n_experts and at <= model.n < at + COMPARISON_INTERVAL:
            return
        self._compared = (model.chosen_n_experts, model.n)
        experts = model.experts()
        for condition in CONDITIONS:
            found = sum(expert["condition"] == condition for expert in experts)
            self.gauge("streammoe_experts", condition).set(found)
        for k in range(model.options.most_experts):
            for name in ("loss", "divergence"):
                value = experts[k][name] if k < len(experts) else None
                self.gauge(f"streammoe_expert_{name}", str(k)).set(math.nan if value is None else value)

    def _look_at_source(self) -> None:
        """Show the status of the source; series of partitions that are no longer read are removed."""
        status = self._source()
        before, self._status = self._status, status
        self.gauge("streammoe_source_connected").set(status.connected)
        self.gauge("streammoe_source_rejected").set(bool(status.refused))
        self.gauge("streammoe_behind_seconds").set(math.nan if status.behind is None else status.behind)
        for reason in STALLS:
            self.gauge("streammoe_source_stalled", reason).set(countOf(status.stalled.values(), reason))
        for name, values, earlier in (
            ("streammoe_consumer_position", status.positions, before.positions),
            ("streammoe_consumer_lag", status.lags, before.lags),
            ("streammoe_source_held_back_records", status.held_back, before.held_back),
        ):
            for topic, partition in earlier.keys() - values.keys():
                self.live.remove(name, topic, str(partition))
            for (topic, partition), value in values.items():
                self.gauge(name, topic, str(partition)).set(value)

    def _show_wait(self, section: str, wait: SinkWait) -> None:
        self.gauge("streammoe_sink_waiting_seconds", section).set_function(lambda: wait.seconds)
        self.gauge("streammoe_sink_rejected", section).set_function(lambda: bool(wait.rejection()))

    def _raise(self, name: str, total: int, *labels: str) -> None:
        """Raise a counter by how much a total has risen since the last call; the first one only says where it is."""
        before = self._totals.get((name, *labels), total)
        self.counter(name, *labels).inc(max(total - before, 0))
        self._totals[name, *labels] = total

    def _show(self, name: str, means: Mapping[str, float], *labels: str) -> None:
        for average in AVERAGES:
            self.gauge(name, *labels, average).set(means[average])
