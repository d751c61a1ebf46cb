"""Every Prometheus metric, in one table. docs/metrics.md is held to it by a test."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from operator import countOf

from prometheus_client import Counter, Gauge, Histogram

from streammoe.catalogue import COMMON, LiveMetrics, Metric, memory_limit
from streammoe.daemon.health import Health
from streammoe.daemon.run_state import RunState
from streammoe.distributions.mixtures import LEVELS
from streammoe.engine.portfolio import MEMBERS
from streammoe.errors import REASONS
from streammoe.kernels.compile import compile_seconds
from streammoe.pipeline.challenger import Challenger
from streammoe.pipeline.presence import MOST_COUNTED, Presence
from streammoe.pipeline.scores import AVERAGES, PrequentialScores
from streammoe.ports import STALLS
from streammoe.text import cut, listed

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Ends of the buckets of all histograms: from a batch of a few records to a checkpoint on a slow disk."""
REFUSED = "refused"
RELOAD_OUTCOMES = ("applied", "unchanged", REFUSED)
OUTCOMES = ("learned", "predicted_only", "rejected", "skipped", "expired")
CONDITIONS = ("alive", "starved", "duplicate")
SCORES = ("log_loss", "rmse", "accuracy")
"""Those by which a champion and its challenger are compared."""

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
        for score in SCORES
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

    The learning loop counts after each batch, and shows what it has learned each second. What must be true while it
    waits is computed when it is asked for.

    Args:
        health: of the daemon; knows when the last checkpoint was taken, and since when sinks have kept it waiting.
    """

    def __init__(self, health: Health | None = None) -> None:
        self.health = Health(math.inf) if health is None else health
        self.live = LiveMetrics(CATALOGUE, self._look)
        self.registry = self.live.registry
        self.counter, self.gauge, self.histogram = self.live.counter, self.live.gauge, self.live.histogram
        self.presence: Presence | None = None
        """Knows which values of columns were missing or unknown in this run."""
        self._totals: dict[tuple[str, ...], int] = {}
        """Those that counters show, by name and labels."""
        self.gauge("streammoe_ready").set_function(lambda: not self.health.problem)
        self.gauge("streammoe_checkpoint_age_seconds").set_function(lambda: time.monotonic() - self.health.saved_at)
        self.gauge("streammoe_mirror_age_seconds").set(math.nan)
        self.gauge("streammoe_memory_limit_bytes").set(memory_limit())
        for outcome in RELOAD_OUTCOMES:
            self.counter("streammoe_reload_total", outcome)
        self.gauge("streammoe_reload_success_timestamp_seconds").set_to_current_time()

    def count(self, state: RunState) -> None:
        """Show what became of events.

        A state counts since the first start; what is shown counts from the first call, since a crash takes back what
        came after a checkpoint, and counters may only go back to 0.
        """
        for outcome in OUTCOMES:
            self._raise("streammoe_events_total", state.outcomes[outcome], outcome)
        for reason in REASONS:
            self._raise("streammoe_rejected_total", state.reasons[reason], reason)
        self.gauge("streammoe_pending_labels").set(state.pending)
        if state.jumps is not None:
            losses = state.jumps.losses.state
            self._raise("streammoe_guard_jumps_total", losses.jumps)
            self.gauge("streammoe_guard_high_windows").set(len(losses.high))

    def count_reload(self, outcome: str) -> None:
        """Count a reload of the settings; the outcome is one of `RELOAD_OUTCOMES`."""
        self.counter("streammoe_reload_total", outcome).inc()
        if outcome != REFUSED:
            self.gauge("streammoe_reload_success_timestamp_seconds").set_to_current_time()

    def publish(self, state: RunState, progress: tuple[int, int] | None) -> None:
        """Show what was learned, and how well it predicts; an unknown value has no sample or is NaN."""
        model, scores, self.presence = state.model, state.pipeline.scores, state.pipeline.presence
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
        members = () if not weights else MEMBERS if model.options.has_curved else MEMBERS[:-1]
        self.live.show("streammoe_member_weight", {(each,): weights.get(each, 0.0) for each in members})
        drift = model.last_drift
        self.gauge("streammoe_drift_last_event").set(0 if drift is None else drift.n)
        self.gauge("streammoe_convergence_residual").set(model.convergence_residual)
        self.live.show("streammoe_expert_mass", {(str(k),): mass for k, mass in enumerate(model.masses)})
        experts = model.experts()
        for condition in CONDITIONS:
            found = sum(expert["condition"] == condition for expert in experts)
            self.gauge("streammoe_experts", condition).set(found)
        for name in ("loss", "divergence"):
            known = {(str(k),): each[name] for k, each in enumerate(experts) if each[name] is not None}
            self.live.show(f"streammoe_expert_{name}", known)
        done, total = progress or (0, 0)
        self.gauge("streammoe_source_progress_ratio").set(done / total if total else math.nan)
        self._show_challenger(state.pipeline.challenger)

    def _show_challenger(self, challenger: Challenger | None) -> None:
        events, scores = dict[tuple[str], float](), {}
        if challenger is not None:
            events = {("learned",): challenger.champion_scores.log_loss.count, ("missed",): challenger.missed}
            scores = challenger.scores
        self.live.show("streammoe_challenger_events", events)
        for name in SCORES:
            shown = {
                (model, average): value
                for model, each in scores.items()
                for average, value in each.means().get(name, {}).items()
            }
            self.live.show(f"streammoe_challenger_{name}", shown)

    def _look(self) -> None:
        """Show what must be true at each scrape: the waits for sinks, the status of the source, and its columns."""
        waits = self.health.waits
        for section, wait in waits.items():
            self.gauge("streammoe_sink_waiting_seconds", section).set(wait.seconds)
            self.gauge("streammoe_sink_rejected", section).set(bool(wait.rejection()))
        self.live.show("streammoe_sink_waited_seconds_total", {(name,): wait.total for name, wait in waits.items()})
        if (presence := self.presence) is not None:
            self.gauge("streammoe_columns_vanished").set(len(presence.lacking))
            lacking = {
                (cut(name), state): count
                for state, counts in (("missing", presence.missing), ("unknown", presence.unknown))
                for name, count in counts.copy().items()
            }
            self.live.show("streammoe_column_values_total", lacking)
        status = self.health.source()
        self.live.show("streammoe_source_incidents_total", {(event,): n for event, n in status.counters.items()})
        self.gauge("streammoe_source_connected").set(status.connected)
        self.gauge("streammoe_source_rejected").set(bool(status.refused))
        self.gauge("streammoe_behind_seconds").set(math.nan if status.behind is None else status.behind)
        for reason in STALLS:
            self.gauge("streammoe_source_stalled", reason).set(countOf(status.stalled.values(), reason))
        for name, values in (
            ("streammoe_consumer_position", status.positions),
            ("streammoe_consumer_lag", status.lags),
            ("streammoe_source_held_back_records", status.held_back),
        ):
            self.live.show(name, {(topic, str(number)): value for (topic, number), value in values.items()})

    def _raise(self, name: str, total: int, *labels: str) -> None:
        """Raise a counter by how much a total has risen since the last call; the first one only says where it is."""
        before = self._totals.get((name, *labels), total)
        self.counter(name, *labels).inc(max(total - before, 0))
        self._totals[name, *labels] = total

    def _show(self, name: str, means: Mapping[str, float], *labels: str) -> None:
        for average in AVERAGES:
            self.gauge(name, *labels, average).set(means[average])
